"""A model server on raw sockets whose answers fail in a way that the test chooses.

It has the APIs of chat completions and responses, and the endpoints that store nothing.
"""

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import orjson

from launcher.address import any_free_port
from tests.support import responses_upstream
from tests.support.chunks import chunk, completion, text
from tests.support.waiting import PATIENCE

_WAIT_SECONDS = PATIENCE
_PIECE = b"a" * 65_536
_ZEROS = gzip.compress(bytes(64 * 2**20))


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """The answer to a request without the fault. `event` is an event of a stream that may be repeated without end."""

    content_type: str
    body: bytes
    event: bytes = b""

    @property
    def is_stream(self) -> bool:
        """True for server-sent events."""
        return self.content_type == "text/event-stream"

    def head(self, *, status: str = "200 OK", content_type: str = "", more: str = "") -> bytes:
        """Return status line and headers; the body ends with the connection, or in chunks if `more` says so."""
        kind = content_type or self.content_type
        return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}\r\n".encode()

    def sized_head(self) -> bytes:
        """Return status line and headers, with the size of the body."""
        return self.head(more=f"Content-Length: {len(self.body)}\r\n")


_WORDS = "word " * 10_000
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_DOCUMENTS: dict[str, dict[str, object]] = {
    # Long enough that sending it byte by byte takes longer than the limits of the tests.
    "/audio/transcriptions": {"text": "Hello. " * 10},
    "/embeddings": {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    },
    "/images/generations": {"created": 1, "data": [{"b64_json": "QUJD"}]},
    "/moderations": {"id": "modr-1", "model": "m", "results": [{"flagged": False, "categories": {}}]},
}


def _healthy(path: str, body: bytes) -> Healthy:
    endpoint = path.removeprefix("/v1")
    if endpoint == "/audio/speech":
        return Healthy(content_type="audio/wav", body=b"RIFF" * 1000)
    if endpoint in _DOCUMENTS:
        return Healthy(content_type="application/json", body=orjson.dumps(_DOCUMENTS[endpoint]))
    whole: dict[str, object] = completion("Hello")
    events: list[dict[str, object]] = text("Hel", "lo")
    again: dict[str, object] = chunk(content=_WORDS)
    if endpoint == "/completions":
        choice = {"text": "Hello", "index": 0, "logprobs": None, "finish_reason": "stop"}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        whole = {**head, "choices": [choice], "usage": _USAGE}
        events, again = [whole], {**whole, "choices": [{**choice, "text": _WORDS, "finish_reason": None}]}
    if endpoint == "/responses":
        message = responses_upstream.message("Hello")
        whole = responses_upstream.response("completed", message)
        begun = responses_upstream.response("in_progress")
        events = [
            responses_upstream.event("created", response=begun),
            *responses_upstream.message_events("Hel", "lo"),
            responses_upstream.end(output=[message]),
        ]
        again = responses_upstream.event("in_progress", response={**begun, "instructions": _WORDS})
    if not orjson.loads(body).get("stream"):
        return Healthy(content_type="application/json", body=orjson.dumps(whole))
    lines = [b"data: %b\n\n" % orjson.dumps(one) for one in [*events, again]]
    return Healthy(content_type="text/event-stream", body=b"".join([*lines[:-1], b"data: [DONE]\n\n"]), event=lines[-1])


Fault = Callable[[asyncio.StreamWriter, Healthy], Awaitable[None]]
"""Writes an answer; the connection is closed afterwards."""


async def hang_before_the_head(_: asyncio.StreamWriter, __: Healthy) -> None:
    """Send nothing."""
    await asyncio.sleep(_WAIT_SECONDS)


async def hang_in_the_body(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send half of the body and then nothing."""
    writer.write(answer.sized_head() + answer.body[: len(answer.body) // 2])
    await asyncio.sleep(_WAIT_SECONDS)


async def cut_before_the_head(_: asyncio.StreamWriter, __: Healthy) -> None:
    """Close the connection without an answer."""


async def cut_in_the_body(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Close the connection after half of the body."""
    writer.write(answer.sized_head() + answer.body[: len(answer.body) // 2])
    await writer.drain()


async def page(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send a web page with status 200."""
    writer.write(answer.head(content_type="text/html; charset=utf-8") + b"<html>Welcome to nginx!</html>")


async def error_page(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send the error page of a proxy."""
    writer.write(answer.head(status="502 Bad Gateway", content_type="text/html") + b"<html>Bad Gateway</html>")


async def endless_error_page(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send an error status with a body that never ends."""
    writer.write(answer.head(status="400 Bad Request", content_type="text/html"))
    await _endless(writer, _PIECE)


async def invalid_json(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send a body of the right type that is not JSON."""
    writer.write(answer.head() + (b"data: {garbage\n\n" if answer.is_stream else b'{"id": garbage'))


async def invalid_utf8(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send JSON in another encoding than UTF-8."""
    document = '{"choices": [{"message": {"content": "Hi"}}]}'.encode("utf-16")
    writer.write(answer.head() + (b"data: %b\n\n" % document if answer.is_stream else document))


async def nested_json(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send JSON that is nested 100,000 deep."""
    document = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    writer.write(answer.head() + (b"data: %b\n\n" % document if answer.is_stream else document))


async def not_http(writer: asyncio.StreamWriter, _: Healthy) -> None:
    """Send bytes that are not HTTP."""
    writer.write(bytes(range(256)) * 40)
    await writer.drain()


async def endless_head(writer: asyncio.StreamWriter, _: Healthy) -> None:
    """Send headers without end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await _endless(writer, b"X-Header: " + b"a" * 4000 + b"\r\n")


async def endless_line(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send a body without an end and without a line break."""
    writer.write(answer.head() + (b"data: " if answer.is_stream else b'{"id": "'))
    await _endless(writer, _PIECE)


async def endless_events(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send valid events, or lines, without end."""
    writer.write(answer.head())
    await _endless(writer, answer.event or b"\n" * 65_536)


async def endless_chunk(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send a single chunk that claims to have 2**60 bytes."""
    writer.write(answer.head(more="Transfer-Encoding: chunked\r\n") + b"1000000000000000\r\n")
    await _endless(writer, _PIECE)


async def invalid_chunk(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send a chunk whose size is not a number."""
    writer.write(answer.head(more="Transfer-Encoding: chunked\r\n") + b"hello\r\n")
    await writer.drain()


async def compressed_zeros(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send 64 MiB of zeros that are compressed to 64 KiB."""
    writer.write(answer.head(more=f"Content-Encoding: gzip\r\nContent-Length: {len(_ZEROS)}\r\n") + _ZEROS)
    await writer.drain()


async def slow_head(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send the whole answer byte by byte, too slowly for the head to be complete in time."""
    await _drip(writer, answer.head() + answer.body)


async def slow_body(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send the body byte by byte, without a pause that would be long enough for a timeout."""
    writer.write(answer.sized_head())
    await _drip(writer, answer.body)


async def wrong_type(writer: asyncio.StreamWriter, answer: Healthy) -> None:
    """Send the right body with another media type."""
    writer.write(answer.head(content_type="application/octet-stream") + answer.body)
    await writer.drain()


async def _endless(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()


async def _drip(writer: asyncio.StreamWriter, content: bytes) -> None:
    for position in range(len(content)):
        writer.write(content[position : position + 1])
        await writer.drain()
        await asyncio.sleep(0.2)


class FaultyUpstream:
    """The server. It answers correctly outside of the blocks of `failing` and `refusing`."""

    def __init__(self) -> None:
        self.port = any_free_port()
        self._fault: Fault | None = None
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Answer with the fault in the block. Connections that hang are closed at its end."""
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None
            self._call(self._drop())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections in the block."""
        self._call(self._close())
        try:
            yield
        finally:
            self._call(self._listen())

    @contextmanager
    def running(self) -> Iterator["FaultyUpstream"]:
        """Serve in a thread until the end of the block."""
        thread = threading.Thread(target=self._loop.run_forever, name="faulty-upstream", daemon=True)
        thread.start()
        self._call(self._listen())
        try:
            yield self
        finally:
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(_WAIT_SECONDS)
            self._loop.close()

    def _call(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_WAIT_SECONDS)

    async def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._serve, sock=listener, backlog=128)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._drop()

    async def _drop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                async with _closing(writer):
                    await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = _healthy(request.split()[1], body)
        if self._fault is None:
            writer.write(answer.sized_head() + answer.body)
        else:
            await self._fault(writer, answer)


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
        await writer.drain()
    finally:
        writer.close()
