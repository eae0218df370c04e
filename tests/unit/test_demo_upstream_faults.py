"""Faults that a model's name requests, and the demo upstream's counters of client behaviour."""

import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import aiohttp
import orjson
import pytest

from demo_upstream.testing import Demo, talking

LONG = "say one two three four five six"


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


async def settled(demo: Demo) -> dict[str, int]:
    """Return the counters once no request is in flight; the test's timeout is the limit."""
    while (stats := await demo.stats())["in_flight"]:
        pass
    return stats


def words(lines: list[str]) -> list[str]:
    """Return the words in the data lines of a stream."""
    contents = [orjson.loads(line)["choices"][0]["delta"].get("content") for line in lines]
    return [content for content in contents if content]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "invalid_value"),
        (401, "invalid_request_error", "invalid_api_key"),
        (404, "invalid_request_error", "model_not_found"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", "server_error"),
        (503, "server_error", "server_error"),
    ],
)
async def test_a_model_fails_with_the_status_in_its_name(
    demo: Demo, stream: bool, status: int, kind: str, code: str
) -> None:
    answer = await demo.refusal("hi", model=f"demo-error-{status}", stream=stream)
    error = answer.json["error"]
    assert (answer.status, error["type"], error["code"], error["param"]) == (status, kind, code, None)
    assert answer.headers.get("Retry-After") == ("1" if status == 429 else None)


async def test_a_stream_fails_in_the_middle(demo: Demo) -> None:
    _, *lines_before, failure = [line async for line in demo.lines(LONG, model="demo-error-in-stream-d0")]
    assert words(lines_before) == ["one", " two", " three"]
    assert orjson.loads(failure)["error"]["type"] == "server_error"


async def test_an_error_body_is_sent_with_status_200(demo: Demo) -> None:
    assert (await demo.complete(LONG, model="demo-error-in-stream"))["error"]["code"] == "demo_failure"


async def test_a_stream_is_cut(demo: Demo) -> None:
    async with aclosing(demo.lines(LONG, model="demo-cut-d0")) as lines:
        assert words([await anext(lines) for _ in range(4)]) == ["one", " two", " three"]
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(lines)
    assert await settled(demo) == {"requests": 1, "in_flight": 0, "completed": 1, "refused": 0, "disconnected": 0}


async def test_a_body_is_cut(demo: Demo) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await demo.ask(LONG, model="demo-cut-d0")


async def test_garbage_is_sent_between_the_words(demo: Demo) -> None:
    lines = [line async for line in demo.lines(LONG, model="demo-garbage-d0")]
    assert lines[4] == "this line is not JSON"
    assert lines[-1] == "[DONE]"
    assert words(lines[:4] + lines[5:-1]) == ["one", " two", " three", " four", " five", " six"]


async def test_garbage_is_sent_as_a_body(demo: Demo) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        await demo.ask(LONG, model="demo-garbage-d0")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_byte_is_delayed(demo: Demo, stream: bool) -> None:
    begun = time.monotonic()
    body = {"model": "demo-slow", "messages": [{"role": "user", "content": "say hi"}], "stream": stream}
    async with demo.session.post(f"{demo.url}/chat/completions", json=body) as response:
        assert response.status == 200
        assert 0.9 < time.monotonic() - begun < 5


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_hangs_until_the_client_disconnects(demo: Demo, stream: bool) -> None:
    body = {"model": "demo-hang", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    with pytest.raises(TimeoutError):
        await demo.session.post(f"{demo.url}/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=0.2))
    assert (await settled(demo))["disconnected"] == 1


async def test_a_stream_hangs_after_some_words(demo: Demo) -> None:
    async with aclosing(demo.lines(LONG, model="demo-hang-after-2-d0")) as lines:
        lines_before = [await anext(lines) for _ in range(3)]
        assert (await demo.stats())["in_flight"] == 1
    assert words(lines_before) == ["one", " two"]
    assert (await settled(demo))["disconnected"] == 1


async def test_a_stream_hangs_after_all_words_of_a_short_answer(demo: Demo) -> None:
    async with aclosing(demo.lines("say hi", model="demo-hang-after-3-d0")) as lines:
        assert words([await anext(lines) for _ in range(2)]) == ["hi"]
        assert (await demo.stats())["in_flight"] == 1


@pytest.mark.parametrize("model", ["demo", "demo-d50", "demo-d5000"])
async def test_closing_a_stream_stops_it_immediately(demo: Demo, model: str) -> None:
    async with aclosing(demo.lines("say " + "word " * 500, model=model)) as lines:
        await anext(lines)
    begun = time.monotonic()
    assert (await settled(demo))["disconnected"] == 1
    assert time.monotonic() - begun < 1


async def test_a_disconnect_during_the_request_body_is_counted(demo: Demo) -> None:
    host, port = demo.url.removeprefix("http://").removesuffix("/v1").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        while not (await demo.stats())["in_flight"]:
            pass
    assert (await settled(demo))["disconnected"] == 1


async def test_a_disconnect_before_reading_is_counted(demo: Demo) -> None:
    host, port = demo.url.removeprefix("http://").removesuffix("/v1").split(":")
    body = orjson.dumps(
        {"model": "demo-d0", "stream": True, "messages": [{"role": "user", "content": "say " + "x " * 999}]}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
    while not (stats := await demo.stats())["requests"]:
        pass
    assert stats["disconnected"] == 1


async def test_outcomes_of_requests_are_counted(demo: Demo) -> None:
    await demo.ask("hi")
    await demo.chunks("hi")
    await demo.post("/embeddings", {"model": "demo-embedding", "input": "hi"})
    await demo.refusal("hi", model="unknown")
    assert await demo.stats() == {"requests": 4, "in_flight": 0, "completed": 3, "refused": 1, "disconnected": 0}


async def test_embeddings_fail_on_request(demo: Demo) -> None:
    answer = await demo.post("/embeddings", {"model": "demo-error-503", "input": "hi"})
    assert answer.status == 503
