"""Every endpoint with an id in its path: ids of another team get the answer of unknown ids."""

import json
from typing import Any

import httpx2
import pytest

from containers.models import Container, ContainerFile
from core.http.endpoints import Endpoint
from responses.models.vector_stores import VectorStore, VectorStoreBatch, VectorStoreFile
from server.api_urls import ENDPOINTS
from tenants import scope
from tests.support.api import Api, MakeApi, ok
from tests.support.conversations import begin, ids
from tests.support.skills import skill_files, zipped
from tests.support.upstream import Script

pytestmark = pytest.mark.slow

# Models belong to the operator. The admin API, whose keys belong to no team, has ids of projects.
WITH_IDS = [
    endpoint for endpoint in ENDPOINTS if endpoint.ids and not endpoint.path.startswith(("organization/", "models/"))
]
FIELDS: dict[str, dict[str, Any]] = {
    "/chat/completions/{completion_id}": {"metadata": {}},
    "/conversations/{conversation_id}": {"metadata": {}},
    "/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "Hi"}]},
    "/responses/{response_id}/approvals/{approval_request_id}": {"approve": True},
    "/uploads/{upload_id}/complete": {"part_ids": ["part_1"]},
    "/vector_stores/{vector_store_id}/search": {"query": "apples"},
    "/vector_stores/{vector_store_id}/files": {"file_id": "file-1"},
    "/vector_stores/{vector_store_id}/files/{file_id}": {"attributes": {}},
    "/vector_stores/{vector_store_id}/file_batches": {"file_ids": ["file-1"]},
    "/webhook_endpoints/{endpoint_id}/test": {"event_type": "response.completed"},
    "/containers/{container_id}/files": {"file_id": "file-1"},
    "/skills/{skill_id}": {"default_version": "1"},
}
"""What an endpoint checks before it looks for the object."""


@pytest.fixture
def owned(api: Api, script: Script) -> dict[str, str]:
    """Ids of objects of the caller's team, by their name in a path."""
    script.say("Hi.").say("Hi.")
    conversation = begin(api, "secret")
    response = api.create(model=script.model, input="Hi")["id"]
    messages = [{"role": "user", "content": "secret"}]
    chat = ok(api.post("/chat/completions", {"model": script.model, "messages": messages, "store": True}))["id"]
    file = upload_file(api, b"secret", "user_data")
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "Hi"}}
    lines = upload_file(api, json.dumps(line).encode(), "batch")
    batch = {"endpoint": "/v1/responses", "completion_window": "24h", "input_file_id": lines}
    opened = {"bytes": 1, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    webhook = {"name": "secret", "url": "https://example.com/", "event_types": ["response.completed"]}
    packed = {"files": ("sums.zip", zipped(skill_files()), "application/zip")}
    with scope.team(api.caller.team.pk):
        store = VectorStore.objects.create(team=api.caller.team, name="secret")
        added = VectorStoreBatch.objects.create(team=api.caller.team, store=store)
        VectorStoreFile.objects.create(team=api.caller.team, store=store, batch=added, file_id=file)
        container = Container.objects.create(team=api.caller.team, name="secret")
        inner = ContainerFile.objects.create(
            team=api.caller.team, container=container, path="/mnt/data/a.txt", size=1, changed=1, source="user"
        )
    return {
        "response_id": response,
        "approval_request_id": "mcpr_1",
        "conversation_id": conversation,
        "item_id": ids(api, conversation)[0],
        "completion_id": chat,
        "file_id": file,
        "inner": inner.pk,
        "upload_id": ok(api.post("/uploads", opened))["id"],
        "vector_store_id": store.pk,
        "batch_id": ok(api.post("/batches", batch))["id"],
        "added": added.pk,
        "endpoint_id": ok(api.post("/webhook_endpoints", webhook))["id"],
        "container_id": container.pk,
        "skill_id": ok(api.request("POST", "/skills", files=packed))["id"],
        "version": "1",
    }


def upload_file(api: Api, content: bytes, purpose: str) -> str:
    return str(ok(api.request("POST", "/files", files={"file": ("a.jsonl", content)}, data={"purpose": purpose}))["id"])


def ask(api: Api, one: Endpoint, ids: dict[str, str]) -> httpx2.Response:
    path = one.template.format(**ids)
    if one.method != "POST":
        return api.request(one.method, path)
    if one.template == "/uploads/{upload_id}/parts":
        return api.request("POST", path, files={"data": ("part", b"x")})
    return api.post(path, FIELDS.get(one.template, {}))


def test_an_id_of_another_team_gets_the_answer_of_an_unknown_id(
    api: Api, make_api: MakeApi, owned: dict[str, str]
) -> None:
    stranger, told_apart, seen = make_api(), {}, 0
    for one in WITH_IDS:
        theirs = {name: owned[name] for name in one.ids}
        if one.template.startswith("/containers"):
            theirs |= {"file_id": owned["inner"]}
        elif "file_batches/" in one.template:
            theirs |= {"batch_id": owned["added"]}
        # Ids that begin alike and end differently.
        nobodys = {name: text if name == "version" else f"{text[:-8]}zzzzzzzz" for name, text in theirs.items()}
        answer, unknown = ask(stranger, one, theirs), ask(stranger, one, nobodys)
        text = answer.text
        for name in one.ids:
            text = text.replace(theirs[name], nobodys[name])
        if (answer.status_code, unknown.status_code, text) != (404, 404, unknown.text):
            told_apart[f"{one.method} {one.template}"] = (answer.text, unknown.text)
        if one.method == "GET" and len(one.ids) == 1 and "container" not in one.template:
            # All objects exist for their own team.
            assert ask(api, one, theirs).status_code == 200, one.template
            seen += 1
    assert told_apart == {}
    assert seen > 15
