"""The unmodified OpenAI SDK over WebSocket: connections, synchronous and asynchronous, sessions with lanes, types."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses.responses_server_event import ResponseWsError
from websockets.exceptions import InvalidStatus

from tests.support.api import Caller
from tests.support.chunks import calls, chunk, text
from tests.support.upstream import Answer, Cut, Gate, Script, refusal, stream
from tests.support.validation import check_event
from tests.support.waiting import HANGS_AFTER
from tests.support.web import WebProcess

LIMITS = ResponsesWebSocketLimits(
    max_lanes=4, max_events_per_lane=1000, max_events=4000, max_bytes_per_lane=2**20, max_bytes=2**22
)
ANSWERS: dict[str, Answer] = {
    "text": stream(*text("Hel", "lo")),
    "reasoning and calls": stream(chunk(reasoning="Hm."), *calls(look="{}", listen="{}")),
    "a refusal": stream(chunk(refusal="No."), chunk(finish="stop")),
    "cut by its length": stream(*text("Hel", finish="length")),
    "a failure": stream(chunk(content="Hel"), Cut()),
    "a refused request": refusal(400),
}


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    """Each of both web servers."""
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.fixture
def sdk(server: WebProcess, caller: Caller) -> Iterator[OpenAI]:
    """The SDK."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=caller.secret, max_retries=0) as client:
        yield client


@pytest.fixture
def connection(sdk: OpenAI) -> Iterator[ResponsesConnection]:
    """A connection of the SDK."""
    with sdk.responses.connect() as connection:
        yield connection


@pytest.fixture
async def async_connection(server: WebProcess, caller: Caller) -> AsyncIterator[AsyncResponsesConnection]:
    """A connection of the asynchronous SDK."""
    async with (
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key=caller.secret, max_retries=0) as client,
        client.responses.connect() as connection,
    ):
        yield connection


def create(script: Script, **more: Any) -> Any:
    """Return a `response.create` event."""
    return {"type": "response.create", "model": script.model, "input": "Hi", **more}


def test_a_connection_streams_responses(sdk: OpenAI, connection: ResponsesConnection, script: Script) -> None:
    connection.response.create(model=script.say("Hel", "lo").model, input="Hi")
    seen = ResponsesWebSocketAccumulator()
    for event in connection:
        seen.add_event(event)
        if event.type == "response.completed":
            break
    response = seen.get_final_response()
    assert (seen.snapshot().output_text, response.output_text) == ("Hello", "Hello")
    assert sdk.responses.retrieve(response.id).to_dict() == response.to_dict()


async def test_an_asynchronous_connection_streams_responses(
    async_connection: AsyncResponsesConnection, script: Script
) -> None:
    await async_connection.response.create(model=script.say("Hel", "lo").model, input="Hi", stream_id="a")
    deltas = []
    async for event in async_connection:
        assert event.stream_id == "a"
        if event.type == "response.output_text.delta":
            deltas.append(event.delta)
        if event.type == "response.completed":
            break
    assert deltas == ["Hel", "lo"]


@pytest.mark.parametrize("what", ANSWERS)
def test_every_event_matches_its_type(connection: ResponsesConnection, script: Script, what: str) -> None:
    script.then(ANSWERS[what])
    connection.send(create(script, stream_id="a"))
    kind = ""
    while kind not in {"response.completed", "response.incomplete", "response.failed"}:
        event = orjson.loads(connection.recv_bytes())
        check_event(event, socket=True)
        kind = event["type"]


def test_errors_and_failed_steers_match_their_types(connection: ResponsesConnection, script: Script) -> None:
    connection.response.create(model=script.model, stream_id="a")
    assert isinstance(check_event(orjson.loads(connection.recv_bytes()), socket=True), ResponseWsError)
    connection.response.steer(input="Stop.", previous_response_id="resp_1")
    assert (
        check_event(orjson.loads(connection.recv_bytes()), socket=True).model_dump()["type"] == "response.steer.failed"
    )


def test_the_connection_stays_open_after_an_error(connection: ResponsesConnection, script: Script) -> None:
    connection.response.create(model=script.model, previous_response_id="resp_unknown", input="Hi")
    error = connection.recv()
    assert isinstance(error, ResponseWsError)
    assert (error.status, error.error.code) == (400, "previous_response_not_found")
    connection.response.create(model=script.say("Hello").model, input="Hi")
    assert "response.completed" in (event.type for event in connection)


@pytest.mark.slow
def test_a_session_runs_an_agent_without_stored_responses(connection: ResponsesConnection, script: Script) -> None:
    script.call(look="{}").say("A cat.")
    with ResponsesWebSocketSession(connection, limits=LIMITS) as session:
        session.default.send(create(script, store=False, generate=False))
        warm = session.default.get_final_response(timeout=HANGS_AFTER)
        assert warm.output == []
        session.default.send(create(script, store=False, input="What is it?", previous_response_id=warm.id))
        first = session.default.get_final_response(timeout=HANGS_AFTER)
        assert first.output[0].type == "function_call"
        output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "a cat"}
        session.default.send(create(script, store=False, input=[output], previous_response_id=first.id))
        assert session.default.get_final_response(timeout=HANGS_AFTER).output_text == "A cat."


async def test_lanes_of_a_session_run_concurrently(
    async_connection: AsyncResponsesConnection, script: Script, other_script: Script
) -> None:
    gate = Gate()
    script.then(stream(gate, *text("slow")))
    async with AsyncResponsesWebSocketSession(async_connection, limits=LIMITS) as session:
        slow, fast = session.lane("slow"), session.lane("fast")
        await slow.send(create(script))
        await fast.send(create(other_script.say("fast")))
        assert (await fast.get_final_response()).output_text == "fast"
        gate.open()
        assert (await slow.get_final_response()).output_text == "slow"


def test_a_session_raises_the_error_of_a_lane(connection: ResponsesConnection, script: Script) -> None:
    with ResponsesWebSocketSession(connection, limits=LIMITS) as session:
        lane = session.lane("a")
        lane.send(create(script, temperature=9))
        with pytest.raises(ResponsesWebSocketError) as refused:
            lane.get_final_response(timeout=HANGS_AFTER)
    assert isinstance(refused.value.event, ResponseWsError)
    assert refused.value.event.error.param == "temperature"


def test_a_wrong_key_cannot_connect(server: WebProcess) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong")
    with pytest.raises(InvalidStatus) as refused, client.responses.connect():
        pass
    assert refused.value.response.status_code == (401 if refused.value.response.body else 403)
