"""Rebuilding the request of a stored response."""

from typing import Any

import pytest

from core.errors import BadRequest
from responses.models import Response
from responses.requests import rebuild
from responses.schema.options import BackgroundOptions
from tenants import scope
from tests.admin.rows import add_response
from tests.support.api import Api, Caller, ok
from tests.support.upstream import Script

PARAMETERS: dict[str, Any] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]}],
    "instructions": "Be brief.",
    "temperature": 0.5,
    "max_output_tokens": 50,
    "metadata": {"tier": "gold"},
    "tools": [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "truncation": "auto",
}


def rebuild_request(caller: Caller, response_id: str) -> dict[str, Any]:
    with scope.team(caller.team.pk):
        return rebuild.rebuild_request(Response.objects.get(pk=response_id))


def test_the_request_of_an_unstored_response_cannot_be_rebuilt(caller: Caller) -> None:
    with pytest.raises(BadRequest, match="not stored"):
        rebuild_request(caller, add_response(caller, stored=False).pk)


def test_a_rebuilt_request_has_exactly_the_parameters_that_were_sent(api: Api, script: Script, caller: Caller) -> None:
    script.say("{}")
    made = api.create(model=script.model, **PARAMETERS)
    body = rebuild_request(caller, made["id"])
    assert {name: body[name] for name in PARAMETERS if name not in {"input", "tools", "text"}} == {
        name: PARAMETERS[name] for name in PARAMETERS if name not in {"input", "tools", "text"}
    }
    assert body["input"][0]["content"] == PARAMETERS["input"][0]["content"]
    assert body["tools"][0]["name"] == "look"
    assert body["text"]["verbosity"] == "low"
    assert body.keys() <= {*PARAMETERS, "model"}


def test_a_rebuilt_request_gives_a_response_with_the_same_parameters(api: Api, script: Script, caller: Caller) -> None:
    script.say("{}")
    first = api.create(model=script.model, **PARAMETERS)
    script.say("{}")
    second = api.create(**rebuild_request(caller, first["id"]))
    changing = {"id", "created_at", "completed_at", "output", "usage"}
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }
    assert rebuild_request(caller, first["id"])["input"] == rebuild_request(caller, second["id"])["input"]


def test_a_rebuilt_request_keeps_its_previous_response(api: Api, script: Script, caller: Caller) -> None:
    script.say("One")
    first = api.create(model=script.model, input="Hi")
    script.say("Two")
    second = api.create(model=script.model, input="And?", previous_response_id=first["id"])
    body = rebuild_request(caller, second["id"])
    assert (body["previous_response_id"], len(body["input"])) == (first["id"], 1)


def test_a_rebuilt_request_starts_with_the_items_of_the_conversation(api: Api, script: Script, caller: Caller) -> None:
    conversation = api.post("/conversations", {"items": [{"role": "user", "content": "Before"}]}).json()["id"]
    script.say("One")
    made = api.create(model=script.model, input="Now", conversation=conversation)
    body = rebuild_request(caller, made["id"])
    assert "conversation" not in body
    assert [item["content"][0]["text"] for item in body["input"]] == ["Before", "Now"]


@pytest.mark.parametrize(
    "options", [{"wait_for_approval": True, "approval_wait_seconds": 60}, {"approval_wait_seconds": 60}]
)
def test_a_retried_response_waits_for_decisions_like_the_first(
    api: Api, script: Script, no_worker: None, options: dict[str, Any]
) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    body = {"model": script.model, "input": "Hi", "tools": tools, "background": True, "background_options": options}
    made = ok(api.post("/responses", body))
    with scope.team(api.caller.team.pk):
        row = Response.objects.get(pk=made["id"])
        assert rebuild.waiting_options(row) == {"background_options": options}
        again = rebuild.parse_for_worker({**rebuild.rebuild_request(row), **rebuild.waiting_options(row)})
    assert (again.background, again.background_options) == (True, BackgroundOptions(**options))
