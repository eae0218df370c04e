"""Fields that OpenAI's own clients send and its reference omits."""

from typing import Any

import pytest

from responses.models import Response
from responses.requests import rebuild
from tenants import scope
from tests.support.api import Api, error
from tests.support.upstream import Script
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

METADATA = {"session_id": "01a204f4", "x-codex-turn-metadata": '{"repository":"' + "x" * 3000 + '"}', "turn_id": ""}
PASSTHROUGH = {"internal_chat_message_metadata_passthrough": {"turn_id": "1", "content_item_kinds": ["a"]}}


def test_client_metadata_is_stored_and_not_returned(api: Api, script: Script) -> None:
    response = api.create(model=script.say("Hello").model, input="Hi", client_metadata=METADATA)
    assert "client_metadata" not in response
    assert "client_metadata" not in api.get(f"/responses/{response['id']}").json()
    assert "client_metadata" not in script.bodies[0]
    with scope.team(api.caller.team.pk):
        row = Response.objects.get(pk=response["id"])
        assert row.options["client_metadata"] == METADATA
        assert rebuild.rebuild_request(row)["client_metadata"] == METADATA


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("text", "client_metadata"),
        ({"a": 1}, "client_metadata.a"),
        ({str(n): "" for n in range(65)}, "client_metadata"),
    ],
)
def test_client_metadata_is_an_object_of_strings(api: Api, value: Any, param: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "client_metadata": value}))[:2] == (400, param)


def test_client_metadata_is_accepted_over_websocket(web: WebProcess, api: Api, script: Script) -> None:
    with open_socket(web.url, secret=api.caller.secret) as socket:
        response = socket.respond(model=script.say("Hello").model, input="Hi", client_metadata=METADATA)
    assert "client_metadata" not in response


@pytest.mark.slow
def test_the_event_for_processed_messages_is_ignored(web: WebProcess, api: Api, script: Script) -> None:
    with open_socket(web.url, secret=api.caller.secret) as socket:
        socket.send({"type": "response.processed", "response_id": "resp_1"})
        assert socket.respond(model=script.say("Hello").model, input="Hi")["status"] == "completed"
        socket.send({"type": "response.processed", "response_id": "resp_1"})
        socket.stay_silent(0.2)


def test_item_metadata_for_openais_services_is_dropped(api: Api, script: Script) -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": "Look.", **PASSTHROUGH},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", **PASSTHROUGH},
        {"type": "function_call_output", "call_id": "c", "output": "a cat", **PASSTHROUGH},
        {"type": "reasoning", "id": "rs_1", "summary": [], **PASSTHROUGH},
        {"type": "message", "role": "assistant", "content": "A cat.", **PASSTHROUGH},
    ]
    response = api.create(model=script.say("Hello").model, input=items)
    listed = api.get(f"/responses/{response['id']}/input_items").json()["data"]
    assert len(listed) == len(items)
    assert all(PASSTHROUGH.keys().isdisjoint(item) for item in listed)
    assert "passthrough" not in str(script.bodies)


def test_the_summary_delivery_parameter_is_accepted(api: Api, script: Script) -> None:
    options = {"reasoning_summary_delivery": "sequential_cutoff", "include_obfuscation": False}
    events = api.events(model=script.say("Hello").model, input="Hi", stream_options=options)
    assert events[-1]["type"] == "response.completed"


def test_other_unknown_fields_are_still_rejected(api: Api) -> None:
    body = {"model": "m", "input": "Hi", "client_metadatas": {}}
    assert error(api.post("/responses", body)) == (400, "client_metadatas", "unknown_parameter")
