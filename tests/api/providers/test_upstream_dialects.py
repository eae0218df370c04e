"""Requests adapted to the upstream: the name of the limit, and arguments of earlier calls."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.chunks import calls, text
from tests.support.upstream import Script, refusal, stream

UNKNOWN_LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def as_json(api: Api, model: str) -> object:
    return api.create(model=model, input="Hi", max_output_tokens=16)["status"]


def as_stream(api: Api, model: str) -> object:
    return api.events(model=model, input="Hi", max_output_tokens=16)[-1]["response"]["status"]


def as_chat(api: Api, model: str) -> object:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    return {"stop": "completed"}[ok(api.post("/chat/completions", body))["choices"][0]["finish_reason"]]


def as_message(api: Api, model: str) -> object:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    return {"end_turn": "completed"}[ok(api.post("/messages", body))["stop_reason"]]


@pytest.mark.parametrize("ask", [as_json, as_stream, as_chat, as_message])
def test_an_unknown_output_limit_is_sent_under_its_other_name(
    api: Api, script: Script, ask: Callable[[Api, str], object]
) -> None:
    script.then(refusal(400, UNKNOWN_LIMIT)).say("Hello").say("Hello again")
    # The second request has the right name from the start.
    assert [ask(api, script.model), ask(api, script.model)] == ["completed", "completed"]
    sent = [{name: body[name] for name in body if name.startswith("max_")} for body in script.bodies]
    assert sent == [{"max_tokens": 16}, {"max_completion_tokens": 16}, {"max_completion_tokens": 16}]


def test_an_output_limit_refused_under_both_names_is_an_error(api: Api, script: Script) -> None:
    other = UNKNOWN_LIMIT.replace("max_tokens", "x").replace("max_completion_tokens", "max_tokens")
    script.then(refusal(400, UNKNOWN_LIMIT), refusal(400, other.replace("x", "max_completion_tokens")))
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "max_output_tokens": 16})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_prompt")


@pytest.mark.parametrize("written", ['{"place": "Ro', '{"a": 1} and', '["Rome"]'])
def test_arguments_that_are_not_an_object_are_stored_unchanged_and_sent_as_an_object(
    api: Api, script: Script, written: str
) -> None:
    script.then(stream(*calls(look=written))).then(stream(*text("Sorry.")))
    first = api.create(model=script.model, input="Hi", tools=[TOOL], stream=False)
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    assert call["arguments"] == written
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "That is no object."}
    api.create(model=script.model, input=[output], previous_response_id=first["id"], tools=[TOOL])
    (sent,) = [call for message in script.messages[1] for call in message.get("tool_calls", ())]
    assert json.loads(sent["function"]["arguments"]) == {"unreadable_arguments": written}


def test_arguments_of_a_chat_completion_are_sent_as_objects(api: Api, script: Script) -> None:
    script.say("Sorry.")
    function: dict[str, Any] = {"name": "look", "arguments": '{"place": "Ro'}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "That is no object."},
    ]
    ok(api.post("/chat/completions", {"model": script.model, "messages": messages}))
    sent = script.messages[0][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"unreadable_arguments": '{"place": "Ro'}
