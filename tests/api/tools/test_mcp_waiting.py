"""A server that does not answer delays only the run that needs it."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.api import Api
from tests.support.mcp_requests import calling, of, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Script
from tests.support.waiting import eventually


@pytest.fixture
def silent() -> Iterator[McpServer]:
    """A server that accepts connections but never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield McpServer(url=f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")


def test_a_stream_starts_before_servers_are_asked(reaching: Api, script: Script, silent: McpServer) -> None:
    with reaching.stream(model=script.model, input="Hi", tools=[tool(silent)], store=False) as live:
        begun = [live.next()["type"].removeprefix("response.") for _ in range(4)]
    assert begun == ["created", "in_progress", "output_item.added", "mcp_list_tools.in_progress"]
    assert script.bodies == []


def test_servers_are_asked_concurrently(reaching: Api, script: Script, silent: McpServer, served: McpServer) -> None:
    tools = [tool(silent, "mute"), tool(served)]
    with reaching.stream(model=script.model, input="Hi", tools=tools, store=False) as live:
        _ = [live.next() for _ in range(4)]
        eventually(lambda: served.lists == 1)


@pytest.mark.slow
def test_a_run_makes_at_most_eight_calls_at_a_time(reaching: Api, script: Script, served: McpServer) -> None:
    script.then(calling(*[("box__wait", "{}")] * 9)).say("Done.")
    with reaching.stream(model=script.model, input="Go.", tools=[tool(served)]) as live:
        served.wait_for_calls(8)
        assert len(served.calls) == 8
        served.opened.set()
        response = live.rest()[-1]["response"]
    assert [call["status"] for call in of(response, "mcp_call")] == ["completed"] * 9
