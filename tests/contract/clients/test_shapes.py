"""Every item, event and object of the API as two strict clients read it: openai-node's types, the AI SDK's schemas."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel
from pytest_django import DjangoDbBlocker

from conversations.items import StoredItem
from responses.models import TERMINAL
from seeding.seed import SeedOptions, seed
from tests.support.api import Api, Caller, ok
from tests.support.client_types import Shape, rejections
from tests.support.items import SAMPLES
from tests.support.upstream import Script
from tests.support.web import WebProcess
from tests.unit.test_items import read

pytestmark = pytest.mark.slow
Json = dict[str, Any]
# Items of requests only.
GIVEN = {
    "additional_tools",
    "apply_patch_call_output",
    "computer_call_output",
    "configuration_update",
    "custom_tool_call_output",
    "function_call_output",
    "local_shell_call_output",
    "mcp_approval_response",
}


def bare(value: Any) -> Any:
    """Return an item or part with only its required keys, at every depth."""
    if isinstance(value, list | tuple):
        return [bare(entry) for entry in value]
    if not isinstance(value, BaseModel):
        return value
    kept = {}
    for name, field in type(value).model_fields.items():
        # One of these is required in images and files.
        if field.is_required() or name in {"type", "role", "image_url", "file_id", "file_url", "file_data"}:
            kept[field.alias or name] = bare(getattr(value, name))
    return kept


def items() -> list[StoredItem]:
    """Return each type of item with all of its keys and with only the required ones."""
    complete = [read(sample) for sample in SAMPLES.values()]
    # A configuration update needs one of its two optional keys.
    shortest = [read(bare(item)) for item in complete if item.type != "configuration_update"]
    return [*complete, *shortest]


def streamed(item: Json, *, index: int) -> list[Json]:
    """Return the events that announce an item of the output."""
    at = {"output_index": index, "item": item}
    return [
        {"type": f"response.output_item.{when}", "sequence_number": 2 * index + number, **at}
        for number, when in enumerate(("added", "done"))
    ]


@pytest.mark.nightly
def test_clients_accept_every_item(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    bodies = [item.with_id() for item in items()]
    output = [body for body in bodies if body["type"] not in GIVEN and body.get("role", "assistant") == "assistant"]
    found = rejections(
        [
            *(Shape("ConversationItem", body) for body in bodies),
            *(Shape("Response", {**response, "output": [body]}) for body in output),
            *(Shape("ResponseStream", streamed(body, index=index)) for index, body in enumerate(output)),
        ]
    )
    assert not found, found


@pytest.fixture(scope="module")
def seeded(web: WebProcess, http: httpx2.Client, django_db_blocker: DjangoDbBlocker) -> Api:
    """API client of a team with responses of every kind."""
    with django_db_blocker.unblock():
        tenant = seed(SeedOptions(responses=60, teams=1, label="shapes", seed=1)).tenants[0]
    return Api(http, url=web.url, caller=Caller(team=tenant.team, key=tenant.keys[0], secret=tenant.secret))


def listed(api: Api, path: str, kind: str) -> Iterator[Shape]:
    """Return the objects of a list."""
    for body in ok(api.get(path, limit=100))["data"]:
        yield Shape(kind, body)


def test_clients_accept_every_object_and_stream(seeded: Api) -> None:
    shapes = [
        *listed(seeded, "/files", "FileObject"),
        *listed(seeded, "/batches", "Batch"),
        *listed(seeded, "/containers", "ContainerListResponse"),
        *listed(seeded, "/models", "Model"),
    ]
    for response in listed(seeded, "/responses", "Response"):
        path = f"/responses/{response.body['id']}"
        shapes += [response, *listed(seeded, f"{path}/input_items", "ResponseItem")]
        if response.body["status"] in TERMINAL:
            with seeded.follow(response.body["id"]) as live:
                shapes.append(Shape("ResponseStream", live.rest()))
    for store in listed(seeded, "/vector_stores", "VectorStore"):
        shapes += [store, *listed(seeded, f"/vector_stores/{store.body['id']}/files", "VectorStoreFile")]
    for talk in listed(seeded, "/conversations", "Conversation"):
        shapes += [talk, *listed(seeded, f"/conversations/{talk.body['id']}/items", "ConversationItem")]
    assert {"Batch", "Conversation", "FileObject", "ResponseStream", "VectorStore"} <= {shape.type for shape in shapes}
    found = rejections(shapes)
    assert not found, found
