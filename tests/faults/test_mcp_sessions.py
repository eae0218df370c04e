"""Sessions with real MCP servers: both transports, credentials, pages, and servers that fail, stall or die."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from mcp_types import CallToolResult, CreateMessageRequest, CreateMessageRequestParams, InputRequest, ListRootsRequest

from core.egress import Egress
from core.egress_policy import AllowList
from tests.support.mcp_servers import LONG_TEXT, McpServer, form, mcp_server, visit
from tools.mcp.questions import McpQuestions
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


async def called(
    sessions: McpSessions, running: McpServer, name: str, arguments: dict[str, Any] | None = None, **fields: Any
) -> CallToolResult:
    """Call a tool that asks no questions and return its result."""
    result = await sessions.call(server_spec(running), name, arguments or {}, **fields)
    assert isinstance(result, CallToolResult)
    return result


async def asked(sessions: McpSessions, running: McpServer, **fields: Any) -> McpQuestions:
    """Call the tool that asks and return its questions."""
    result = await sessions.call(server_spec(running), "order", {}, **fields)
    assert isinstance(result, McpQuestions)
    return result


def words(result: CallToolResult) -> str:
    """Return the text of a result."""
    return result.content[0].text  # type: ignore[union-attr]


async def failure(work: object) -> dict[str, object]:
    """Return the error as an item contains it."""
    with pytest.raises(ServerFailed) as raised:
        await work  # type: ignore[misc] # a coroutine of any kind
    return raised.value.shown()


async def test_a_session_lists_and_calls_tools(served: McpServer, sessions: McpSessions) -> None:
    tools = await sessions.list_tools(server_spec(served))
    assert [tool.name for tool in tools][:2] == ["add", "note"]
    assert (tools[0].read_only, tools[1].read_only) == (True, False)
    result = await called(sessions, served, "add", {"a": 2, "b": 3})
    assert result.content[0].text == "5"  # type: ignore[union-attr]
    assert (served.lists, served.names()) == (1, ["add"])


async def test_calls_of_one_session_run_concurrently(served: McpServer, sessions: McpSessions) -> None:
    both = [called(sessions, served, "meet") for _ in range(2)]
    results = await asyncio.gather(*both)
    assert [result.is_error for result in results] == [False, False]


async def test_a_tool_that_fails_is_a_result(served: McpServer, sessions: McpSessions) -> None:
    assert (await called(sessions, served, "fail")).is_error


async def test_a_protocol_error_contains_the_message_of_the_server(served: McpServer, sessions: McpSessions) -> None:
    error = await failure(sessions.call(server_spec(served), "refuse", {}))
    assert error == {"type": "mcp_protocol_error", "code": -32602, "message": "These arguments are wrong."}


async def test_a_crashed_server_fails_the_call_and_is_reconnected(served: McpServer, sessions: McpSessions) -> None:
    error = await failure(sessions.call(server_spec(served), "die", {}))
    assert error == {"type": "http_error", "code": 502, "message": "The connection to the server failed."}
    assert not (await called(sessions, served, "note")).is_error
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
        result = await called(sessions, running, "picture")
    assert [block.type for block in result.content] == ["image", "text"]
    assert result.content[1].text == LONG_TEXT  # type: ignore[union-attr]


async def test_an_answer_that_is_too_large_is_reported_on_the_older_transport(sessions: McpSessions) -> None:
    with mcp_server(legacy=True) as running:
        error = await failure(sessions.call(server_spec(running), "picture", {}))
        assert error == {"type": "http_error", "code": 502, "message": "The response is too large."}
        assert not (await called(sessions, running, "note")).is_error


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


async def test_questions_are_answered_one_after_the_other(sessions: McpSessions) -> None:
    color, host = {"type": "string", "enum": ["red", "blue"]}, "https://shop.example/pay"
    with mcp_server() as running:
        running.ask({"a": form("Which color?", color=color), "b": visit("Please pay.", host)}, {"c": form("Sure?")})
        sessions.answers_questions = True
        questions = await asked(sessions, running, effect_id="effect_1")
        assert [(key, question.message) for key, question in questions.open.items()] == [
            ("a", "Which color?"),
            ("b", "Please pay."),
        ]
        red, done = {"action": "accept", "content": {"color": "red"}}, {"action": "accept"}
        stored = McpQuestions.restored(questions.answered(red).stored())
        assert stored.open["b"].host == "shop.example"
        questions = await asked(sessions, running, effect_id="effect_1", answered=stored.answered(done))
        assert [question.message for question in questions.open.values()] == ["Sure?"]
        questions = questions.answered({"action": "decline"})
        result = await called(sessions, running, "order", effect_id="effect_1", answered=questions)
    assert json.loads(words(result)) == [{"a": red, "b": done}, {"c": {"action": "decline"}}]
    assert running.effect_ids == ["effect_1"] * 3
    assert running.states == [None, "", json.dumps([{"a": red, "b": done}])]


async def test_a_result_with_only_a_state_repeats_the_call(sessions: McpSessions) -> None:
    with mcp_server() as running:
        running.ask({}, {})
        assert words(await called(sessions, running, "order")) == "[{}, {}]"
        assert len(running.calls) == 3
        running.questions = [{}] * 20
        error = await failure(sessions.call(server_spec(running), "order", {}))
    assert error["message"] == "The server did not finish the call."


@pytest.mark.parametrize("answers", [True, False])
async def test_servers_know_whether_questions_are_answered(
    served: McpServer, sessions: McpSessions, *, answers: bool
) -> None:
    sessions.answers_questions = answers
    await called(sessions, served, "note")
    (announced,) = served.capabilities
    assert announced is not None
    # Servers of older revisions would wait for the answer during the call.
    is_announced = answers and not served.url.endswith("/sse")
    assert (announced.elicitation is not None) is is_announced


SAMPLING = CreateMessageRequest(params=CreateMessageRequestParams(messages=[], max_tokens=1))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (SAMPLING, "it requested 'sampling/createMessage', which is not supported"),
        (ListRootsRequest(), "it requested 'roots/list', which is not supported"),
        (form("Where?", place={"type": "object"}), "the type of the field 'place' is not supported"),
        (form("Which?", shade={"type": "string", "pattern": "("}), "its schema is invalid: '(' is not a regular expr"),
        (visit("Pay.", "javascript:alert(1)"), "its URL is not the address of a web page"),
        (visit("Pay.", "https://bank.example@evil.example/"), "its URL is not the address of a web page"),
        (form(""), "its message must have 1 to 20,000 characters"),
    ],
)
async def test_questions_that_no_person_can_answer_fail_the_call(
    sessions: McpSessions, request_: InputRequest, reason: str
) -> None:
    with mcp_server() as running:
        running.ask({"a": request_})
        error = await failure(sessions.call(server_spec(running), "order", {}))
    assert (error["type"], error["code"]) == ("mcp_protocol_error", -32000)
    assert reason in str(error["message"])
