"""Hosted calls are sent back to their upstream with its own ids, which clients never see."""

from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.mcp_requests import asking, tool, word
from tests.support.mcp_servers import McpServer
from tests.support.responses_upstream import answer, call_events, message_events
from tests.support.upstream import Script

Message = dict[str, Any]
ADD = '{"a":2,"b":3}'


def call_ids(messages: list[Message]) -> list[tuple[str, str]]:
    """Return the id of each call, with that of its output."""
    called = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    return list(zip(called, answered, strict=True))


def test_the_next_turn_uses_the_call_id_of_the_upstream(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add=ADD).say("It is 5.")
    reaching.create(model=script.model, input="2+3?", tools=[tool(served)])
    assert call_ids(script.messages[1]) == [("call_box__add", "call_box__add")]


def test_later_responses_use_the_call_ids_of_the_upstream(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add=ADD).call(box__add=ADD).say("It is 5.").say("Five.")
    first = reaching.create(model=script.model, input="2+3?", tools=[tool(served)])
    reaching.create(model=script.model, input="Again?", previous_response_id=first["id"])
    # An upstream may use an id again in each turn.
    assert call_ids(script.messages[3]) == [("call_box__add", "call_box__add")] * 2


def test_the_api_does_not_return_the_call_id_of_the_upstream(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add=ADD).say("It is 5.")
    conversation = ok(reaching.post("/conversations", {}))["id"]
    with reaching.stream(model=script.model, input="2+3?", tools=[tool(served)], conversation=conversation) as live:
        response = live.rest()[-1]["response"]
        assert "call_box__add" not in "".join(live.raw)
    assert "call_box__add" not in str(reaching.retrieve(response["id"]))
    assert "call_box__add" not in reaching.get(f"/conversations/{conversation}/items").text
    script.say("Hello")
    later = reaching.create(model=script.model, input="Hi", previous_response_id=response["id"])
    assert "call_box__add" not in str(reaching.input_items(later["id"]))


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "refused"])
def test_an_approved_call_uses_the_call_id_of_the_upstream(
    reaching: Api, script: Script, served: McpServer, approve: bool
) -> None:
    script.call(box__add=ADD).say("Well.").say("Hello")
    first = reaching.create(model=script.model, input="2+3?", tools=[asking(served)])
    request = first["output"][-1]
    assert request.keys() == {"id", "type", "server_label", "name", "arguments"}
    then = {"model": script.model, "tools": [asking(served)]}
    second = reaching.create(**then, input=[word(request, approve=approve)], previous_response_id=first["id"])
    reaching.create(**then, input="Hi", previous_response_id=second["id"])
    for messages in script.messages[1:]:
        assert call_ids(messages) == [("call_box__add", "call_box__add")]


def test_a_responses_upstream_gets_its_own_call_id(
    reaching: Api, responses_api_script: Script, served: McpServer
) -> None:
    called = call_events("box__add", ADD)
    responses_api_script.then(answer(called), answer(message_events("It is 5.")))
    reaching.create(model=responses_api_script.model, input="2+3?", tools=[tool(served)])
    call, output = responses_api_script.bodies[1]["input"][-2:]
    assert call["call_id"] == output["call_id"]
    assert call["call_id"] in str(called)
