"""Streamed responses with MCP calls and approvals match the JSON ones."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.mcp_requests import asking, of, tool, word
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.streams import types
from tests.support.upstream import Script

Respond = Callable[..., dict[str, Any]]
GO_ON = ["created", "in_progress", "output_item.added"]
CALLED = ["mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed"]


@pytest.fixture
def pending_approval(reaching: Api, script: Script, served: McpServer) -> tuple[dict[str, Any], dict[str, Any]]:
    """An approval request, and the parameters of a request that answers it."""
    script.call(box__note="{}")
    first = reaching.create(model=script.model, input="Go.", tools=[asking(served)])
    then = {"model": script.model, "tools": [asking(served)], "previous_response_id": first["id"]}
    return of(first, "mcp_approval_request")[0], then


def test_an_approved_call_comes_first_in_the_stream(
    reaching: Api, script: Script, served: McpServer, pending_approval: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = pending_approval
    script.say("Noted.")
    events = reaching.events(input=[word(request, approve=True)], **then)
    names = [kind.removeprefix("response.") for kind in types(events)]
    assert names[: len(GO_ON) + len(CALLED) + 1] == [*GO_ON, *CALLED, "output_item.done"]
    assert events[2]["item"]["approval_request_id"] == request["id"]
    assert served.names() == ["note"]


def test_a_denied_call_has_no_events(
    reaching: Api, script: Script, served: McpServer, pending_approval: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = pending_approval
    script.say("Very well.")
    events = reaching.events(input=[word(request, approve=False, reason="Not now.")], **then)
    assert [kind for kind in types(events) if "mcp" in kind] == []
    assert "Not now." in script.messages[1][-1]["content"]
    assert served.calls == []


def test_a_second_answer_is_refused_before_the_stream_starts(
    reaching: Api, script: Script, pending_approval: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = pending_approval
    script.say("Noted.")
    answer = {**then, "input": [word(request, approve=True)]}
    reaching.create(**answer)
    assert error(reaching.post("/responses", {**answer, "stream": True})) == (400, "input", "invalid_value")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_call_to_a_server_that_is_gone_fails(respond: Respond, script: Script, *, legacy: bool) -> None:
    script.say("Hi.").call(box__add='{"a":1}').say("It is gone.")
    with mcp_server(legacy=legacy) as running:
        first = respond(model=script.model, input="Hi", tools=[tool(running)])
    then = respond(model=script.model, input="1+0?", tools=[tool(running)], previous_response_id=first["id"])
    call, message = then["output"]
    assert (call["status"], call["output"], call["error"]["type"]) == ("failed", None, "http_error")
    assert (then["status"], message["content"][0]["text"]) == ("completed", "It is gone.")
