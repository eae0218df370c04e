"""`/v1/containers/{id}/files`: creating, listing, reading and deleting."""

from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.support.api import Api, ok
from tests.support.sandboxes import Sandbox, asked, fault


@pytest.fixture
def container(api: Api, sandbox: Sandbox) -> str:
    """A container of the caller's team."""
    return str(ok(api.post("/containers", {"name": "work"}))["id"])


def put(api: Api, container: str, name: str = "a.txt", content: bytes = b"hello") -> httpx2.Response:
    return api.request("POST", f"/containers/{container}/files", files={"file": (name, content)})


def paths(api: Api, container: str) -> list[str]:
    return [row["path"] for row in ok(api.get(f"/containers/{container}/files?order=asc"))["data"]]


def test_the_sdk_can_create_read_and_delete_files(client: OpenAI, container: str) -> None:
    created = client.containers.files.create(container, file=("numbers.csv", b"a,b\n1,2\n"))
    assert (created.path, created.bytes, created.source) == ("/mnt/data/numbers.csv", 8, "user")
    assert client.containers.files.content.retrieve(created.id, container_id=container).read() == b"a,b\n1,2\n"
    assert client.containers.files.retrieve(created.id, container_id=container).id == created.id
    client.containers.files.delete(created.id, container_id=container)
    assert client.containers.files.list(container).data == []


@pytest.mark.slow
def test_an_uploaded_file_is_copied(api: Api, client: OpenAI, container: str) -> None:
    file = client.files.create(file=("words.txt", b"some words"), purpose="user_data")
    ok(api.post(f"/containers/{container}/files", {"file_id": file.id}))
    by_form = client.containers.files.create(container, file_id=file.id)
    assert by_form.bytes == 10
    created = ok(api.post("/containers", {"name": "other", "file_ids": [file.id]}))
    assert paths(api, container) == paths(api, created["id"]) == ["/mnt/data/words.txt"]


def test_a_file_of_the_same_name_is_replaced(api: Api, container: str) -> None:
    first, second = ok(put(api, container)), ok(put(api, container, content=b"more words"))
    assert (first["id"], second["bytes"]) == (second["id"], 10)


@pytest.mark.slow
def test_a_file_name_cannot_escape_the_directory(api: Api, container: str) -> None:
    ok(put(api, container, name="../../etc/evil.txt"))
    # Forms keep only the last part of a path, but the name of an upload in parts is sent in JSON.
    announced = {"bytes": 1, "mime_type": "text/plain", "purpose": "user_data"}
    upload = ok(api.post("/uploads", {**announced, "filename": "../../../etc/worse.txt"}))["id"]
    part = ok(api.request("POST", f"/uploads/{upload}/parts", files={"data": ("part", b"x")}))["id"]
    file = ok(api.post(f"/uploads/{upload}/complete", {"part_ids": [part]}))["file"]
    ok(api.post(f"/containers/{container}/files", {"file_id": file["id"]}))
    assert sorted(paths(api, container)) == ["/mnt/data/evil.txt", "/mnt/data/worse.txt"]


def test_a_file_created_by_a_program_can_be_downloaded(api: Api, container: str, sandbox: Sandbox) -> None:
    asked(sandbox.client.run(container, "open('page.html', 'w').write('<script>')", seconds=60))
    ok(put(api, container))
    [page] = [row for row in ok(api.get(f"/containers/{container}/files"))["data"] if "page" in row["path"]]
    answer = api.get(f"/containers/{container}/files/{page['id']}/content")
    assert answer.content == b"<script>"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("sent", "code"),
    [({"data": {"x": "y"}, "files": {"other": ("a", b"b")}}, "missing_required_parameter"), ({}, None)],
)
def test_a_form_without_a_file_is_rejected(sent: dict[str, Any], code: str | None, api: Api, container: str) -> None:
    answer = api.request("POST", f"/containers/{container}/files", **sent)
    assert fault(answer, 400)["code"] == (code or "missing_required_parameter")


def test_unknown_ids_and_other_teams_ids_are_not_found(api: Api, outsider: Api, container: str) -> None:
    file = ok(put(api, container))
    for path in (f"/containers/{container}/files/cfile_1", f"/containers/{container}/files/cfile_1/content"):
        assert "cfile_1" in fault(api.get(path), 404)["message"]
    for path in (f"/containers/{container}/files", f"/containers/{container}/files/{file['id']}"):
        assert container in fault(outsider.get(path), 404)["message"]
    assert container in fault(put(outsider, container), 404)["message"]
    assert container in fault(outsider.delete(f"/containers/{container}/files/{file['id']}"), 404)["message"]


def test_a_dead_container_is_expired(api: Api, container: str, sandbox: Sandbox) -> None:
    asked(sandbox.client.delete(container))
    assert fault(put(api, container), 400)["code"] == "container_expired"
    assert ok(api.get(f"/containers/{container}"))["status"] == "expired"
