"""Requests that an upstream refuses for the moment: runs wait and repeat them, and no tool runs again."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import mcp_server
from tests.support.upstream import Answer, Script, whole
from tests.support.workers import WorkerProcess

# The error of a server that gives no advice, as most do.
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


def test_a_wait_that_is_too_long_is_left_to_the_client(api: Api, script: Script) -> None:
    script.then(whole({"error": {"message": "Slow down."}}, status=429, headers={"retry-after": "40"}))
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert (answer.status_code, answer.headers["retry-after"], len(script.bodies)) == (429, "40", 1)


def test_a_quota_that_is_used_up_is_an_error_at_once(api: Api, script: Script) -> None:
    script.then(whole({"error": {"message": "No money.", "code": "insufficient_quota"}}, status=429))
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert (answer.status_code, answer.headers["x-should-retry"], len(script.bodies)) == (429, "false", 1)
