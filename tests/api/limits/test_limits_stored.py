"""Limits of stored objects (files, bytes and open batches), exact under concurrency."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx2
import pytest

from conversations.models import File
from core.clock import now
from tenants import scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.batches import asked, line, uploaded
from tests.support.limits import limit


def upload(api: Api, content: bytes = b"hello") -> httpx2.Response:
    return api.request("POST", "/files", files={"file": ("a.txt", content)}, data={"purpose": "user_data"})


@pytest.mark.parametrize("of", ["key", "team"])
def test_the_last_file_is_accepted_and_the_next_one_refused(api: Api, of: str) -> None:
    limit(api.caller, of=of, files=2)
    first, _ = ok(upload(api)), ok(upload(api))
    refused = upload(api)
    assert error(refused) == (400, None, "files_limit_reached")
    whose = "your API key" if of == "key" else "your team"
    assert f"{whose} may have 2 files, of which 2 are in use" in refused.json()["error"]["message"]
    ok(api.delete(f"/files/{first['id']}"))
    ok(upload(api))


def test_the_limit_of_a_key_does_not_count_files_of_other_keys(api: Api, make_api: MakeApi) -> None:
    other = make_api(team=api.caller.team)
    limit(api.caller, files=1)
    ok(upload(other))
    ok(upload(api))
    assert error(upload(api))[2] == "files_limit_reached"
    ok(upload(other))


def test_another_team_is_not_affected(api: Api, make_api: MakeApi) -> None:
    limit(api.caller, of="team", files=1, stored_bytes=5)
    ok(upload(api))
    assert error(upload(api))[0] == 400
    ok(upload(make_api()))


def test_stored_bytes_are_counted_to_the_byte(api: Api) -> None:
    limit(api.caller, stored_bytes=10)
    ok(upload(api, b"12345"))
    assert error(upload(api, b"123456")) == (400, None, "stored_bytes_limit_reached")
    ok(upload(api, b"12345"))
    assert error(upload(api, b"1")) == (400, None, "stored_bytes_limit_reached")


def test_expired_files_do_not_count(api: Api) -> None:
    limit(api.caller, files=1)
    file = ok(upload(api))
    with scope.team(api.caller.team.pk):
        File.objects.filter(pk=file["id"]).update(expires_at=now() - timedelta(seconds=1))
    ok(upload(api))


def test_concurrent_uploads_do_not_exceed_the_limit(api: Api) -> None:
    limit(api.caller, files=5)
    with ThreadPoolExecutor(12) as threads:
        statuses = [answer.status_code for answer in threads.map(lambda _: upload(api), range(12))]
    assert sorted(statuses) == [200] * 5 + [400] * 7


def test_an_upload_in_parts_counts_once(api: Api) -> None:
    limit(api.caller, files=1, stored_bytes=8)
    begun = ok(
        api.post("/uploads", {"filename": "a.txt", "bytes": 8, "purpose": "user_data", "mime_type": "text/plain"})
    )
    parts = [
        ok(api.request("POST", f"/uploads/{begun['id']}/parts", files={"data": ("part", piece)}))["id"]
        for piece in (b"1234", b"5678")
    ]
    ok(api.post(f"/uploads/{begun['id']}/complete", {"part_ids": parts}))
    assert error(upload(api, b"1"))[2] == "files_limit_reached"


def test_an_upload_that_cannot_fit_is_refused_before_it_starts(api: Api) -> None:
    limit(api.caller, stored_bytes=8)
    body = {"filename": "a.txt", "bytes": 9, "purpose": "user_data", "mime_type": "text/plain"}
    assert error(api.post("/uploads", body)) == (400, None, "stored_bytes_limit_reached")


def test_open_batches_are_limited(api: Api, no_worker: None) -> None:
    limit(api.caller, open_batches=1)
    first = asked(api, line("a", model="m", input="Hi"))
    body = {"input_file_id": uploaded(api, line("a", model="m")), "endpoint": "/v1/responses"}
    refused = api.post("/batches", {**body, "completion_window": "24h"})
    assert error(refused) == (400, None, "open_batches_limit_reached")
    assert "1 open batches, of which 1 are in use" in refused.json()["error"]["message"]
    ok(api.post(f"/batches/{first['id']}/cancel", {}))
