"""What servers and approvals do in a stream is what they do in one JSON body."""

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
def asked(reaching: Api, script: Script, served: McpServer) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call that waits for approval, and what a request has to say to answer it."""
    script.call(box__note="{}")
    first = reaching.create(model=script.model, input="Go.", tools=[asking(served)])
    then = {"model": script.model, "tools": [asking(served)], "previous_response_id": first["id"]}
    return of(first, "mcp_approval_request")[0], then


def test_an_approved_call_is_the_first_of_the_stream(
    reaching: Api, script: Script, served: McpServer, asked: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = asked
    script.say("Noted.")
    events = reaching.events(input=[word(request, approve=True)], **then)
    names = [kind.removeprefix("response.") for kind in types(events)]
    assert names[: len(GO_ON) + len(CALLED) + 1] == [*GO_ON, *CALLED, "output_item.done"]
    assert events[2]["item"]["approval_request_id"] == request["id"]
    assert served.names() == ["note"]


def test_a_denied_call_leaves_no_trace_in_the_stream(
    reaching: Api, script: Script, served: McpServer, asked: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = asked
    script.say("Very well.")
    events = reaching.events(input=[word(request, approve=False, reason="Not now.")], **then)
    assert [kind for kind in types(events) if "mcp" in kind] == []
    assert "Not now." in script.messages[1][-1]["content"]
    assert served.calls == []


def test_a_second_answer_is_refused_before_there_is_a_stream(
    reaching: Api, script: Script, asked: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    request, then = asked
    script.say("Noted.")
    answer = {**then, "input": [word(request, approve=True)]}
    reaching.create(**answer)
    assert error(reaching.post("/responses", {**answer, "stream": True})) == (400, "input", "invalid_value")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_server_that_is_gone_since_it_was_listed_fails_its_call(
    respond: Respond, script: Script, *, legacy: bool
) -> None:
    script.say("Hi.").call(box__add='{"a":1}').say("It is gone.")
    with mcp_server(legacy=legacy) as running:
        first = respond(model=script.model, input="Hi", tools=[tool(running)])
    then = respond(model=script.model, input="1+0?", tools=[tool(running)], previous_response_id=first["id"])
    call, message = then["output"]
    assert (call["status"], call["output"], call["error"]["type"]) == ("failed", None, "http_error")
    assert (then["status"], message["content"][0]["text"]) == ("completed", "It is gone.")
