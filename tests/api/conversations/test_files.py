"""`/v1/files`: upload, list, retrieve, content and deletion. Files are spooled to disk, never held in memory."""

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from openai import OpenAI

from conversations.files import storage
from conversations.models import File, FileState
from core.clock import now
from core.http.pagination import PageRequest
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.waiting import eventually
from tests.support.web import WebProcess

MIB = 1024 * 1024
DAY = 24 * 3600


def upload(api: Api, content: Any = b"hello", name: str = "a.txt", **fields: str) -> httpx2.Response:
    return api.request("POST", "/files", files={"file": (name, content)}, data={"purpose": "user_data", **fields})


def make(api: Api, *names: str, **fields: str) -> list[dict[str, Any]]:
    """Upload files of these names, oldest first."""
    return [ok(upload(api, name=name, **fields)) for name in names]


def ids(page: httpx2.Response) -> list[str]:
    return [row["id"] for row in ok(page)["data"]]


def stored(file_id: str) -> Path:
    """Return the path of a file's content."""
    return settings.STATE_DIR / "files" / file_id[-2:] / file_id


def change(file_id: str, **values: Any) -> None:
    with scope.every_team():
        assert File.objects.filter(pk=file_id).update(**values) == 1


def row(file_id: str) -> File | None:
    with scope.every_team():
        return File.objects.filter(pk=file_id).first()


def expire(file_id: str) -> None:
    past = now() - timedelta(seconds=1)
    change(file_id, expires_at=past, sweep_at=past)


@pytest.fixture(params=["web", "daphne_web"])
def each_api(request: pytest.FixtureRequest, http: httpx2.Client, caller: Caller) -> Api:
    """Return the API on each of the web servers."""
    return Api(http, url=request.getfixturevalue(request.param).url, caller=caller)


# -- round trips -------------------------------------------------------------------------------------------------------


def test_the_sdk_can_upload_read_and_delete_a_file(client: OpenAI) -> None:
    uploaded = client.files.create(
        file=("notes.md", b"# Notes"),
        purpose="assistants",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (uploaded.bytes, uploaded.filename, uploaded.purpose, uploaded.status) == (
        7,
        "notes.md",
        "assistants",
        "processed",
    )
    assert uploaded.expires_at == uploaded.created_at + 3600
    assert client.files.retrieve(uploaded.id) == uploaded
    assert list(client.files.list(purpose="assistants")) == [uploaded]
    assert client.files.wait_for_processing(uploaded.id) == uploaded
    assert client.files.content(uploaded.id).read() == b"# Notes"
    assert client.files.delete(uploaded.id).deleted
    assert list(client.files.list()) == []


def test_a_file_has_exactly_the_fields_of_the_api(api: Api) -> None:
    uploaded = ok(upload(api))
    assert uploaded.pop("id").startswith("file-")
    assert abs(uploaded.pop("created_at") - time.time()) < 30
    assert uploaded == {
        "object": "file",
        "bytes": 5,
        "expires_at": None,
        "filename": "a.txt",
        "purpose": "user_data",
        "status": "processed",
        "status_details": None,
    }


def test_the_content_is_returned_unchanged(each_api: Api) -> None:
    content = os.urandom(3 * MIB + 1)
    uploaded = ok(upload(each_api, content, "random.bin"))
    assert uploaded["bytes"] == len(content)
    assert each_api.get(f"/files/{uploaded['id']}/content").content == content
    found = row(uploaded["id"])
    assert found is not None
    assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_an_upload_needs_no_content_length(each_api: Api) -> None:
    def body() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\n\r\n'
        yield b"x" * MIB
        yield b"\r\n--b--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    uploaded = ok(each_api.request("POST", "/files", content=body(), headers=headers))
    assert (uploaded["bytes"], uploaded["purpose"]) == (MIB, "vision")


@pytest.mark.parametrize("purpose", ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"])
def test_every_purpose_is_accepted(api: Api, purpose: str) -> None:
    assert ok(upload(api, purpose=purpose))["purpose"] == purpose


def test_batch_files_expire_after_thirty_days_by_default(api: Api) -> None:
    uploaded = ok(upload(api, purpose="batch"))
    assert uploaded["expires_at"] == uploaded["created_at"] + 30 * DAY


def test_a_file_expires_after_the_requested_time(api: Api) -> None:
    lifetime = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592000"}
    uploaded = ok(upload(api, **lifetime))
    assert uploaded["expires_at"] == uploaded["created_at"] + 2_592_000


@pytest.mark.slow
def test_concurrent_uploads_stay_separate(api: Api) -> None:
    contents = [bytes([number]) * MIB for number in range(6)]
    with ThreadPoolExecutor(max_workers=6) as threads:
        uploaded = [ok(answer) for answer in threads.map(lambda content: upload(api, content, "same.bin"), contents)]
    assert len({file["id"] for file in uploaded}) == 6
    assert [api.get(f"/files/{file['id']}/content").content for file in uploaded] == contents


@pytest.mark.parametrize(
    ("name", "declared", "content_type", "disposition"),
    [
        ("a.pdf", None, "application/pdf", 'attachment; filename="a.pdf"'),
        ("a.pdf", "text/csv", "text/csv", 'attachment; filename="a.pdf"'),
        ("a", "application/octet-stream", "application/octet-stream", 'attachment; filename="a"'),
        ("a.txt", "nonsense", "text/plain", 'attachment; filename="a.txt"'),
        ("../../etc/passwd", "text/plain", "text/plain", 'attachment; filename="passwd"'),
        ("grün.txt", "text/plain", "text/plain", "attachment; filename*=utf-8''gr%C3%BCn.txt"),
        ("a b.html", "text/html", "text/html", 'attachment; filename="a b.html"'),
    ],
)
def test_the_content_has_its_type_and_file_name(
    api: Api, name: str, declared: str | None, content_type: str, disposition: str
) -> None:
    part = (name, b"hello", declared) if declared else (name, b"hello")
    uploaded = ok(api.request("POST", "/files", files={"file": part}, data={"purpose": "user_data"}))
    answer = api.get(f"/files/{uploaded['id']}/content")
    assert answer.headers["content-type"] == content_type
    assert answer.headers["content-disposition"] == disposition
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (answer.headers["content-length"], answer.content) == ("5", b"hello")


def test_a_long_file_name_is_cut_but_keeps_its_extension(api: Api) -> None:
    uploaded = ok(upload(api, name="n" * 300 + ".txt"))
    assert len(uploaded["filename"]) == 255
    assert uploaded["filename"].endswith(".txt")


# -- lists -------------------------------------------------------------------------------------------------------------


def test_files_are_listed_newest_first(api: Api) -> None:
    uploaded = make(api, "1", "2", "3")
    page = ok(api.get("/files"))
    assert page["data"] == uploaded[::-1]
    assert (page["object"], page["has_more"]) == ("list", False)
    assert (page["first_id"], page["last_id"]) == (uploaded[2]["id"], uploaded[0]["id"])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_cover_the_whole_list(api: Api, order: str) -> None:
    make(api, "1", "2", "3", "4", "5")
    whole = ids(api.get("/files", order=order))
    first = api.get("/files", order=order, limit=2)
    second = api.get("/files", order=order, limit=2, after=whole[1])
    third = api.get("/files", order=order, limit=2, after=whole[3])
    assert [ids(page) for page in (first, second, third)] == [whole[:2], whole[2:4], whole[4:]]
    assert [ok(page)["has_more"] for page in (first, second, third)] == [True, True, False]
    assert ids(api.get("/files", order=order, limit=2, before=whole[4])) == whole[2:4]


def test_the_sdk_follows_all_pages(client: OpenAI, api: Api) -> None:
    uploaded = make(api, "1", "2", "3")
    assert [file.id for file in client.files.list(limit=1)] == [file["id"] for file in uploaded[::-1]]


def test_the_list_can_be_filtered_by_purpose(api: Api) -> None:
    [vision] = make(api, "1", purpose="vision")
    make(api, "2", purpose="evals")
    assert ids(api.get("/files", purpose="vision")) == [vision["id"]]
    assert ids(api.get("/files", purpose="batch")) == []


def test_listing_takes_a_fixed_number_of_queries(api: Api, caller: Caller) -> None:
    def queries() -> int:
        with scope.team(caller.team.pk), CaptureQueriesContext(connection) as queries:
            page = storage.list_files(team_id=caller.team.pk, purpose=None, page=PageRequest(limit=10_000))
            page.as_list(present=storage.public_file)
        return len(queries)

    make(api, "1")
    few = queries()
    make(api, "2", "3", "4")
    assert queries() == few == 1


QUERIES: list[tuple[dict[str, str], int, str | None, str | None]] = [
    ({"limit": "0"}, 400, "limit", "integer_below_min_value"),
    ({"limit": "10001"}, 400, "limit", "integer_above_max_value"),
    ({"limit": "many"}, 400, "limit", "invalid_type"),
    ({"order": "up"}, 400, "order", "invalid_value"),
    ({"purpose": "fun"}, 400, "purpose", "invalid_value"),
    ({"purpos": "vision"}, 400, "purpos", "unknown_parameter"),
    ({"after": "file-unknown"}, 404, "after", None),
    ({"before": "file-unknown"}, 404, "before", None),
]


@pytest.mark.parametrize(("query", "status", "param", "code"), QUERIES, ids=str)
def test_an_invalid_list_parameter_is_rejected_by_name(
    api: Api, query: dict[str, str], status: int, param: str | None, code: str | None
) -> None:
    assert error(api.get("/files", **query)) == (status, param, code)


# -- bad input ---------------------------------------------------------------------------------------------------------

FILE = ("a.txt", b"hello")
LIFETIME = {"expires_after[anchor]": "created_at"}
SECONDS = ("expires_after[seconds]", "3600")
Form = list[tuple[str, Any]]
TABLE: list[tuple[Form, str | None, str | None]] = [
    ([("purpose", "user_data")], "file", "missing_required_parameter"),
    ([("purpose", "user_data"), ("file", "hello")], "file", "invalid_type"),
    ([("purpose", "user_data"), ("file", ("", b"hello"))], "file", "invalid_type"),
    ([("purpose", "user_data"), ("file", ("..", b"hello"))], "file", "missing_required_parameter"),
    ([("purpose", "user_data"), ("file", ("a.txt", b""))], "file", None),
    ([("purpose", "user_data"), ("file", FILE), ("file", FILE)], "file", "invalid_value"),
    ([("purpose", "user_data"), ("file", FILE), ("other", FILE)], "other", "unknown_parameter"),
    ([("purpose", "user_data"), ("file", FILE), ("color", "red")], "color", "unknown_parameter"),
    ([("file", FILE)], "purpose", "missing_required_parameter"),
    ([("purpose", ""), ("file", FILE)], "purpose", "invalid_value"),
    ([("purpose", "fun"), ("file", FILE)], "purpose", "invalid_value"),
    ([("purpose", "assistants_output"), ("file", FILE)], "purpose", "invalid_value"),
    ([("purpose", "vision"), ("purpose", "vision"), ("file", FILE)], "purpose", "invalid_value"),
    ([("purpose[a]", "vision"), ("file", FILE)], "purpose", "invalid_type"),
    ([("expires_after", "3600")], "expires_after", "invalid_type"),
    ([("expires_after[seconds]", "3600")], "expires_after.anchor", "missing_required_parameter"),
    ([("expires_after[anchor]", "created_at")], "expires_after.seconds", "missing_required_parameter"),
    ([("expires_after[anchor]", "now"), ("expires_after[seconds]", "3600")], "expires_after.anchor", "invalid_value"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "soon")], "expires_after.seconds", "invalid_type"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "")], "expires_after.seconds", "invalid_type"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "3600.5")], "expires_after.seconds", "invalid_type"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "3599")], "expires_after.seconds", "integer_below_min_value"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "-1")], "expires_after.seconds", "integer_below_min_value"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "2592001")], "expires_after.seconds", "integer_above_max_value"),
    ([*LIFETIME.items(), ("expires_after[seconds]", "9" * 5000)], "expires_after.seconds", "invalid_type"),
    (
        [*LIFETIME.items(), ("expires_after[x]", "1"), ("expires_after[seconds]", "3600")],
        "expires_after.x",
        "unknown_parameter",
    ),
]


def multipart(form: Form) -> bytes:
    """Encode a form in the given order, including repeated fields."""
    body = b""
    for name, value in form:
        filename, content = value if isinstance(value, tuple) else (None, value.encode())
        attribute = "" if filename is None else f'; filename="{filename}"'
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"{attribute}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--b--\r\n"


def post(api: Api, body: bytes, content_type: str = "multipart/form-data; boundary=b") -> httpx2.Response:
    return api.request("POST", "/files", content=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(("form", "param", "code"), TABLE, ids=lambda value: str(value)[:60])
def test_an_invalid_form_field_is_rejected_by_name(api: Api, form: Form, param: str | None, code: str | None) -> None:
    complete = (
        form
        if any(name.startswith(("purpose", "file")) for name, _ in form)
        else [
            ("purpose", "user_data"),
            ("file", FILE),
            *form,
        ]
    )
    assert error(post(api, multipart(complete))) == (400, param, code)
    assert ids(api.get("/files")) == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"purpose": "user_data"}', "application/json"),
        (b"purpose=user_data", "application/x-www-form-urlencoded"),
        (b"--b--", "multipart/form-data"),
        (b"--b--", "multipart/form-data; boundary="),
        (b"x", "nonsense"),
        (b"--b\r\n" * 2000 + b"--b--", "multipart/form-data; boundary=" + "b" * 5000),
        (
            multipart([("file", FILE)]).replace(
                b"\r\n\r\nhello", b"\r\nContent-Transfer-Encoding: base64\r\n\r\naaaaa"
            ),
            "multipart/form-data; boundary=b",
        ),
        (multipart([(f"field{number}", "x") for number in range(2000)]), "multipart/form-data; boundary=b"),
    ],
)
def test_a_body_that_is_not_a_form_is_rejected(api: Api, body: bytes, content_type: str) -> None:
    assert error(post(api, body, content_type)) == (400, None, "invalid_multipart")


@pytest.mark.parametrize("body", [b"", b"--b--\r\n", b"nonsense"])
def test_an_empty_form_is_rejected(api: Api, body: bytes) -> None:
    assert error(post(api, body)) == (400, "file", "missing_required_parameter")


def test_other_methods_are_not_allowed(api: Api) -> None:
    assert error(api.request("PUT", "/files"))[0] == 405
    assert error(api.request("POST", "/files/file-x", content=b""))[0] == 405
    assert error(api.request("DELETE", "/files/file-x/content"))[0] == 405


def test_an_aborted_upload_leaves_nothing(each_api: Api, request: pytest.FixtureRequest) -> None:
    url = httpx2.URL(str(each_api._url))
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {each_api.headers['Authorization']}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 2000000\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 80)) as client:
        client.sendall(head.encode() + multipart([("purpose", "user_data"), ("file", ("a", b"x" * MIB))]))
    assert ids(each_api.get("/files")) == []


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("GET", "/content")])
def test_another_teams_file_gets_the_404_of_an_unknown_id(api: Api, outsider: Api, method: str, path: str) -> None:
    [uploaded] = make(api, "a.txt")
    foreign = outsider.request(method, f"/files/{uploaded['id']}{path}")
    unknown = outsider.request(method, f"/files/file-unknown{path}")
    assert error(foreign) == error(unknown) == (404, None, None)
    assert foreign.text.replace(uploaded["id"], "file-unknown") == unknown.text
    assert ok(api.get(f"/files/{uploaded['id']}")) == uploaded


def test_files_are_not_listed_for_another_team(api: Api, outsider: Api) -> None:
    [uploaded] = make(api, "a.txt")
    assert ids(outsider.get("/files")) == []
    assert error(outsider.get("/files", after=uploaded["id"])) == (404, "after", None)


def test_a_query_without_team_scope_sees_no_files(api: Api) -> None:
    [uploaded] = make(api, "a.txt")
    assert not File.objects.filter(pk=uploaded["id"]).exists()


REQUESTS = [
    ("POST", "/files", "files.write"),
    ("DELETE", "/files/file-x", "files.write"),
    ("GET", "/files", "files.read"),
    ("GET", "/files/file-x", "files.read"),
    ("GET", "/files/file-x/content", "files.read"),
]


@pytest.mark.parametrize(("method", "path", "needed"), REQUESTS)
def test_requests_require_their_scope(make_api: MakeApi, method: str, path: str, needed: str) -> None:
    others = [name for name in ("files.read", "files.write", "responses.write") if name != needed]
    rejected = make_api(scopes=others).request(method, path)
    assert error(rejected) == (403, None, "insufficient_scope")
    assert needed in rejected.text
    assert make_api(scopes=[needed]).request(method, path).status_code in {200, 400, 404}


@pytest.mark.parametrize(("method", "path", "_needed"), REQUESTS)
def test_requests_without_a_key_are_rejected(
    http: httpx2.Client, web: WebProcess, method: str, path: str, _needed: str
) -> None:
    assert error(Api(http, url=web.url).request(method, path)) == (401, None, None)
    assert error(Api(http, url=web.url, secret="sk-wrong").request(method, path)) == (401, None, "invalid_api_key")


# -- deletion and expiry -----------------------------------------------------------------------------------------------


def test_deleting_a_file_deletes_its_content(api: Api) -> None:
    [uploaded] = make(api, "a.txt")
    assert stored(uploaded["id"]).read_bytes() == b"hello"
    assert ok(api.delete(f"/files/{uploaded['id']}")) == {"id": uploaded["id"], "object": "file", "deleted": True}
    assert not stored(uploaded["id"]).exists()
    assert row(uploaded["id"]) is None
    assert error(api.delete(f"/files/{uploaded['id']}")) == (404, None, None)


def test_a_deletion_is_audited(api: Api, caller: Caller) -> None:
    [uploaded] = make(api, "a.txt")
    answer = api.delete(f"/files/{uploaded['id']}")
    with scope.team(caller.team.pk):
        [line] = AuditEvent.objects.filter(target=uploaded["id"])
    assert (line.action, line.actor) == ("file.deleted", f"key:{caller.key.pk}")
    assert line.request_id == answer.headers["x-request-id"]
    assert line.before["filename"] == "a.txt"


def test_only_one_of_concurrent_deletions_succeeds(api: Api) -> None:
    [uploaded] = make(api, "a.txt")
    with ThreadPoolExecutor(max_workers=8) as threads:
        answers = list(threads.map(lambda _: api.delete(f"/files/{uploaded['id']}").status_code, range(8)))
    assert sorted(answers) == [200] + [404] * 7


def test_an_expired_file_is_immediately_unknown(api: Api) -> None:
    expired, kept = make(api, "1", "2")
    expire(expired["id"])
    for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
        assert error(api.request(method, f"/files/{expired['id']}{path}")) == (404, None, None)
    assert ids(api.get("/files")) == [kept["id"]]
    assert error(api.get("/files", after=expired["id"])) == (404, "after", None)


def test_the_sweep_removes_only_expired_files(api: Api) -> None:
    expired, lasting, forever = make(api, "1")[0], make(api, "2", purpose="batch")[0], make(api, "3")[0]
    expire(expired["id"])
    assert eventually(lambda: storage.sweep_files() or row(expired["id"]) is None)
    assert not stored(expired["id"]).exists()
    assert ids(api.get("/files")) == [forever["id"], lasting["id"]]
    assert stored(lasting["id"]).exists()


def test_a_partially_stored_file_is_deleted_after_a_day(api: Api) -> None:
    [uploaded] = make(api, "1")
    change(uploaded["id"], state=FileState.PENDING, sweep_at=now() + timedelta(hours=23))
    assert error(api.get(f"/files/{uploaded['id']}")) == (404, None, None)
    storage.sweep_files()
    assert stored(uploaded["id"]).exists()
    change(uploaded["id"], sweep_at=now())
    storage.sweep_files()
    assert (stored(uploaded["id"]).exists(), row(uploaded["id"])) == (False, None)


def test_a_failed_removal_of_content_is_retried_later(api: Api) -> None:
    [uploaded] = make(api, "1")
    place = stored(uploaded["id"])
    place.unlink()
    (place / "in-the-way").mkdir(parents=True)
    assert ok(api.delete(f"/files/{uploaded['id']}"))["deleted"]
    left = row(uploaded["id"])
    assert left is not None
    assert left.sweep_at is not None
    assert left.sweep_at > now() + timedelta(minutes=9)
    (place / "in-the-way").rmdir()
    change(uploaded["id"], sweep_at=now())
    storage.sweep_files()
    assert (place.exists(), row(uploaded["id"])) == (False, None)


def test_lost_content_is_reported_as_an_error(api: Api) -> None:
    [uploaded] = make(api, "1")
    stored(uploaded["id"]).unlink()
    assert error(api.get(f"/files/{uploaded['id']}/content"))[0] == 500
