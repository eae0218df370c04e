"""Requests that an upstream refuses for the moment: runs wait and repeat them, and no tool runs again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.chunks import chunk
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import mcp_server
from tests.support.upstream import Answer, Gate, Script, stream, whole
from tests.support.workers import WorkerProcess

# The error of a server that does not say when to retry, like most servers.
BUSY = whole({"error": {"message": "Slow down.", "type": "requests", "code": "rate_limit_exceeded"}}, status=429)
DOWN = whole({"error": {"message": "Down.", "type": "server_error"}}, status=503)


@pytest.mark.slow
@pytest.mark.parametrize("refused", [BUSY, DOWN], ids=["429", "503"])
def test_a_refused_request_is_repeated(ask: Callable[..., dict[str, Any]], script: Script, refused: Answer) -> None:
    script.then(refused, refused).say("Hello")
    response = ask(model=script.model, input="Hi")
    assert (response["status"], len(script.bodies)) == ("completed", 3)


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
def test_other_endpoints_repeat_requests_as_well(api: Api, script: Script, path: str) -> None:
    script.then(BUSY).say("Hello")
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    assert "Hello" in str(ok(api.post(path, body)))


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True], ids=["json", "background"])
def test_a_finished_tool_call_is_not_repeated(
    reaching: Api, script: Script, worker: WorkerProcess, background: bool
) -> None:
    script.call(box__add='{"a":2,"b":3}').then(BUSY, DOWN).say("It is 5.")
    with mcp_server() as server:
        made = reaching.create(model=script.model, input="2+3?", tools=[tool(server)], background=background)
        response = ended(reaching, made["id"])
        assert server.calls == [("add", {"a": 2, "b": 3})]
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]


def test_a_long_wait_is_left_to_the_client(api: Api, script: Script) -> None:
    script.then(whole({"error": {"message": "Slow down."}}, status=429, headers={"retry-after": "40"}))
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert (answer.status_code, answer.headers["retry-after"], len(script.bodies)) == (429, "40", 1)


def test_an_exhausted_quota_is_not_retried(api: Api, script: Script) -> None:
    script.then(whole({"error": {"message": "No money.", "code": "insufficient_quota"}}, status=429))
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert (answer.status_code, answer.headers["x-should-retry"], len(script.bodies)) == (429, "false", 1)


# Longer than a run in the foreground waits.
LATER = whole({"error": {"message": "Slow down."}}, status=429, headers={"retry-after": "40"})


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/messages"])
def test_a_stream_that_fails_before_it_begins_has_the_status_of_the_error(api: Api, script: Script, path: str) -> None:
    script.then(LATER)
    answer = api.post(path, {**asked(script, path), "stream": True})
    assert (answer.status_code, answer.headers["retry-after"], len(script.bodies)) == (429, "40", 1)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/responses", "/messages"])
def test_a_stream_begins_after_the_retries_of_its_request(api: Api, script: Script, path: str) -> None:
    script.then(DOWN, DOWN, DOWN)
    answer = api.post(path, {**asked(script, path), "stream": True})
    assert (answer.status_code, len(script.bodies)) == (529 if path == "/messages" else 503, 3)


def asked(script: Script, path: str) -> dict[str, Any]:
    """Return the body of a request."""
    values = {"input": "Hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    return {"model": script.model, **values} | ({"max_tokens": 16} if path == "/messages" else {})


def test_a_stream_that_failed_before_it_began_is_stored_as_failed(api: Api, script: Script) -> None:
    script.then(LATER)
    api.post("/responses", {"model": script.model, "input": "Hi", "stream": True})
    (stored,) = ok(api.get("/responses"))["data"]
    assert (stored["status"], stored["error"]["code"]) == ("failed", "rate_limit_exceeded")


@pytest.mark.slow
def test_a_stream_begins_while_the_upstream_accepts_nothing(api: Api, script: Script) -> None:
    script.then(replace(stream(gate := Gate(), chunk(content="Hello"), chunk(finish="stop")), delayed_head=True))
    with api.stream(model=script.model, input="Hi") as live:
        assert live.next()["type"] == "response.created"
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_a_failure_after_the_status_line_is_an_event(api: Api, script: Script) -> None:
    script.then(stream({"error": {"message": "Slow down.", "code": 429}}))
    with api.stream(model=script.model, input="Hi") as live:
        assert live.rest()[-1]["type"] == "response.failed"


@pytest.mark.slow
def test_a_stream_whose_approved_call_ran_reports_a_later_failure_as_event(reaching: Api, script: Script) -> None:
    script.call(box__add='{"a":2,"b":3}')
    with mcp_server() as server:
        offered = tool(server, require_approval="always")
        first = reaching.create(model=script.model, input="2+3?", tools=[offered])
        (request,) = (item for item in first["output"] if item["type"] == "mcp_approval_request")
        script.then(LATER)
        approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        with reaching.stream(
            model=script.model, previous_response_id=first["id"], input=[approval], tools=[offered]
        ) as live:
            events = live.rest()
        assert server.calls == [("add", {"a": 2, "b": 3})]
    assert events[-1]["type"] == "response.failed"


@pytest.mark.slow
def test_a_stream_whose_tools_were_listed_has_the_status_of_a_later_failure(reaching: Api, script: Script) -> None:
    script.then(LATER)
    with mcp_server() as server:
        answer = reaching.post(
            "/responses", {"model": script.model, "input": "Hi", "tools": [tool(server)], "stream": True}
        )
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "40")
