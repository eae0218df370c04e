"""Sessions with real MCP servers: both transports, credentials, pages, and servers that fail, stall or die."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from core.egress import Egress
from core.egress_policy import AllowList
from tests.support.mcp_servers import LONG_TEXT, McpServer, mcp_server
from tools.mcp.servers import RemoteServer
from tools.mcp.sessions import McpSessions, ServerFailed, Timeouts

OPEN = Egress(allow=AllowList.parse(["127.0.0.1"]))


@pytest.fixture(params=["streamable", "legacy"])
def served(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server, with each of the two transports."""
    with mcp_server(legacy=request.param == "legacy") as running:
        yield running


@pytest.fixture
async def sessions() -> AsyncIterator[McpSessions]:
    """The sessions of a run, closed at the end."""
    sessions = McpSessions(OPEN)
    yield sessions
    await sessions.close()


def server_spec(running: McpServer, **headers: str) -> RemoteServer:
    """Return the server as a request specifies it."""
    return RemoteServer(label="test", url=running.url, headers=headers)


async def failure(work: object) -> dict[str, object]:
    """Return the error as an item contains it."""
    with pytest.raises(ServerFailed) as raised:
        await work  # type: ignore[misc] # a coroutine of any kind
    return raised.value.shown()


async def test_a_session_lists_and_calls_tools(served: McpServer, sessions: McpSessions) -> None:
    tools = await sessions.list_tools(server_spec(served))
    assert [tool.name for tool in tools][:2] == ["add", "note"]
    assert (tools[0].read_only, tools[1].read_only) == (True, False)
    result = await sessions.call(server_spec(served), "add", {"a": 2, "b": 3})
    assert result.content[0].text == "5"  # type: ignore[union-attr]
    assert (served.lists, served.names()) == (1, ["add"])


async def test_calls_of_one_session_run_concurrently(served: McpServer, sessions: McpSessions) -> None:
    both = [sessions.call(server_spec(served), "meet", {}) for _ in range(2)]
    results = await asyncio.gather(*both)
    assert [result.is_error for result in results] == [False, False]


async def test_a_tool_that_fails_is_a_result(served: McpServer, sessions: McpSessions) -> None:
    assert (await sessions.call(server_spec(served), "fail", {})).is_error


async def test_a_protocol_error_contains_the_message_of_the_server(served: McpServer, sessions: McpSessions) -> None:
    error = await failure(sessions.call(server_spec(served), "refuse", {}))
    assert error == {"type": "mcp_protocol_error", "code": -32602, "message": "These arguments are wrong."}


async def test_a_crashed_server_fails_the_call_and_is_reconnected(served: McpServer, sessions: McpSessions) -> None:
    error = await failure(sessions.call(server_spec(served), "die", {}))
    assert error == {"type": "http_error", "code": 502, "message": "The connection to the server failed."}
    assert not (await sessions.call(server_spec(served), "note", {})).is_error
    assert served.names() == ["die", "note"]


async def test_a_slow_server_times_out(served: McpServer) -> None:
    sessions = McpSessions(OPEN, Timeouts(call=0.5))
    await sessions.list_tools(server_spec(served))
    error = await failure(sessions.call(server_spec(served), "wait", {}))
    assert error == {"type": "http_error", "code": 504, "message": "The server did not respond within 0.5 seconds."}
    await sessions.close()


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_session_sends_the_token(sessions: McpSessions, *, legacy: bool) -> None:
    with mcp_server(legacy=legacy, token="open-sesame") as running:
        error = await failure(sessions.list_tools(server_spec(running)))
        assert error == {"type": "http_error", "code": 401, "message": "Http status code: 401 (Unauthorized)"}
        tools = await sessions.list_tools(server_spec(running, Authorization="Bearer open-sesame"))
    assert len(tools) == 9


async def test_a_session_reads_every_page(sessions: McpSessions) -> None:
    with mcp_server(paged=True) as running:
        tools = await sessions.list_tools(server_spec(running))
    assert (len(tools), tools[-1].name) == (209, "tool_199")


async def test_a_session_accepts_five_megabytes_and_an_image(sessions: McpSessions) -> None:
    with mcp_server() as running:
        result = await sessions.call(server_spec(running), "picture", {})
    assert [block.type for block in result.content] == ["image", "text"]
    assert result.content[1].text == LONG_TEXT  # type: ignore[union-attr]


async def test_an_answer_that_is_too_large_is_reported_on_the_older_transport(sessions: McpSessions) -> None:
    with mcp_server(legacy=True) as running:
        error = await failure(sessions.call(server_spec(running), "picture", {}))
        assert error == {"type": "http_error", "code": 502, "message": "The response is too large."}
        assert not (await sessions.call(server_spec(running), "note", {})).is_error


async def test_nothing_is_sent_to_addresses_that_egress_blocks() -> None:
    with mcp_server() as running:
        sessions = McpSessions(Egress())
        error = await failure(sessions.list_tools(server_spec(running)))
        await sessions.close()
    assert (error["code"], running.headers) == (403, [])


async def test_an_unreachable_server_is_reported(sessions: McpSessions) -> None:
    with mcp_server() as running:
        gone = server_spec(running)
    error = await failure(sessions.list_tools(gone))
    assert error == {"type": "http_error", "code": 502, "message": "The connection to the server failed."}
