"""`/v1/uploads`: files uploaded in parts."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from openai import OpenAI

from conversations.files import storage
from conversations.files.uploads import MAX_PART_BYTES
from conversations.models import File, Upload
from core.clock import now
from tenants import scope
from tests.support.api import Api, MakeApi, error, ok

OPENED = {"bytes": 6, "filename": "a.txt", "mime_type": "text/plain", "purpose": "assistants"}


def create_upload(api: Api, **changes: Any) -> str:
    return str(ok(api.post("/uploads", {**OPENED, **changes}))["id"])


def send(api: Api, upload_id: str, content: bytes, name: str = "data") -> Any:
    return api.request("POST", f"/uploads/{upload_id}/parts", files={name: ("part", content)})


def complete(api: Api, upload_id: str, *parts: str, **more: Any) -> Any:
    return api.post(f"/uploads/{upload_id}/complete", {"part_ids": list(parts), **more})


def hidden_files(api: Api) -> int:
    with scope.team(api.caller.team.pk):
        return File.objects.filter(state="pending").count()


def test_the_sdk_uploads_a_file_in_parts(client: OpenAI) -> None:
    made = client.uploads.upload_file_chunked(
        file=b"abc" * 1000, filename="a.txt", bytes=3000, mime_type="text/plain", purpose="user_data", part_size=1024
    )
    assert (made.status, made.bytes) == ("completed", 3000)
    assert made.file is not None
    assert client.files.content(made.file.id).read() == b"abc" * 1000
    assert (made.file.filename, made.file.purpose) == ("a.txt", "user_data")


def test_parts_are_joined_in_the_order_given_at_completion(api: Api) -> None:
    upload = create_upload(api)
    second, first = (ok(send(api, upload, content))["id"] for content in (b"def", b"abc"))
    checksum = hashlib.md5(b"abcdef", usedforsecurity=False).hexdigest()
    file = ok(complete(api, upload, first, second, md5=checksum))["file"]
    assert api.get(f"/files/{file['id']}/content").content == b"abcdef"


def test_the_size_must_match_the_announced_size(api: Api) -> None:
    upload = create_upload(api)
    (one, other) = (ok(send(api, upload, content))["id"] for content in (b"abc", b"def"))
    assert error(complete(api, upload, one)) == (400, "part_ids", "invalid_value")
    assert error(complete(api, upload, one, one)) == (400, "part_ids", "invalid_value")
    assert error(complete(api, upload, one, "part_unknown")) == (404, "part_ids[1]", None)
    assert error(complete(api, upload, one, other, md5="0" * 32)) == (400, "md5", "invalid_value")
    assert ok(complete(api, upload, one, other))["status"] == "completed"
    assert error(complete(api, upload, one, other))[0] == 400


def test_parts_are_deleted_after_completion_or_cancellation(api: Api) -> None:
    completed, cancelled = create_upload(api, bytes=3), create_upload(api)
    part = ok(send(api, completed, b"abc"))["id"]
    ok(send(api, cancelled, b"abc"))
    assert hidden_files(api) == 2
    ok(complete(api, completed, part))
    assert ok(api.post(f"/uploads/{cancelled}/cancel", {}))["status"] == "cancelled"
    while storage.sweep_files():
        pass
    assert hidden_files(api) == 0
    assert error(send(api, cancelled, b"def"))[0] == 400


def test_an_upload_expires_after_an_hour(api: Api) -> None:
    made = ok(api.post("/uploads", OPENED))
    assert made["expires_at"] - made["created_at"] == 3600
    with scope.team(api.caller.team.pk):
        Upload.objects.filter(pk=made["id"]).update(expires_at=now() - timedelta(seconds=1))
    answer = send(api, made["id"], b"abcdef")
    assert error(answer) == (400, "upload_id", "invalid_value")
    assert "expired" in answer.json()["error"]["message"]


def test_the_file_gets_the_requested_expiration(api: Api) -> None:
    upload = create_upload(api, expires_after={"anchor": "created_at", "seconds": 3600})
    file = ok(complete(api, upload, ok(send(api, upload, b"abcdef"))["id"]))["file"]
    assert file["expires_at"] - file["created_at"] == 3600


def test_parts_are_not_listed_as_files(api: Api) -> None:
    ok(send(api, create_upload(api), b"abc"))
    assert ok(api.get("/files"))["data"] == []


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"bytes": 0}, "bytes", "integer_below_min_value"),
        ({"purpose": "fun"}, "purpose", "invalid_value"),
        ({"filename": ""}, "filename", "empty_string"),
        ({"size": 1}, "size", "unknown_parameter"),
    ],
)
def test_invalid_uploads_are_refused(api: Api, changes: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/uploads", {**OPENED, **changes})) == (400, param, code)


@pytest.mark.slow
def test_empty_and_oversized_files_and_parts_are_refused(api: Api) -> None:
    assert error(api.post("/uploads", {**OPENED, "bytes": 1024**3}))[:2] == (413, "bytes")
    upload = create_upload(api)
    assert error(send(api, upload, b""))[:2] == (400, "data")
    assert error(send(api, upload, bytes(MAX_PART_BYTES + 1)))[:2] == (413, "data")
    assert error(send(api, upload, b"abc", name="file")) == (400, "file", "unknown_parameter")


def test_another_teams_upload_is_not_found(api: Api, outsider: Api) -> None:
    upload = create_upload(api)
    for mine in (upload, "upload_unknown"):
        answers = [
            send(outsider, mine, b"abc"),
            complete(outsider, mine, "part_a"),
            outsider.post(f"/uploads/{mine}/cancel", {}),
        ]
        assert [error(answer) for answer in answers] == [(404, None, None)] * 3


def test_uploads_require_the_files_scope(make_api: MakeApi) -> None:
    assert error(make_api(scopes=["files.read"]).post("/uploads", OPENED))[0] == 403
