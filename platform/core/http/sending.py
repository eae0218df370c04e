"""Sends answers to clients that may disconnect: whole bodies, and streams of serialized events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from core.http.asgi import WATCH, Receive, Scope, Send
from core.http.rendering import JSON
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut
from core.telemetry import metrics

Headers = Iterable[tuple[bytes, bytes]]
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # nginx would otherwise collect events before it passes them on.
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", JSON.encode())
_PIECE_BYTES = 256 * 1024
_OPEN = metrics.OPEN_STREAMS.labels("sse")


class JsonAnswer(NamedTuple):
    """A JSON answer with status 200, and its headers in addition to the usual ones."""

    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}


class Client:
    """The client of a request. When it disconnects, the task that serves it is cancelled."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.is_gone = False
        self._task = asyncio.current_task()
        self._watch: Callable[[Callable[[], None] | None], None] | None = scope.get(WATCH)
        self._waiting: asyncio.Task[None] | None = None
        if self._watch is not None:
            self._watch(self.disconnect)
        else:
            self._waiting = asyncio.create_task(self._wait_until_gone(receive))

    async def _wait_until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    def disconnect(self) -> None:
        """Stop serving the client."""
        if self._task is not None:
            self.is_gone = True
            self._task.cancel()

    def release(self) -> None:
        """Stop watching for a disconnect, because servers report the end of a response as one."""
        self._task = None
        if self._watch is not None:
            self._watch(None)
            self._watch = None
        if self._waiting is not None:
            self._waiting.cancel()
            # A cancelled task keeps its exception, whose traceback refers to this object. This cycle kept the 54
            # objects of a request until a garbage collection, which took 7 % of the CPU of JSON requests.
            self._waiting = None


async def send_body(body: bytes, send: Send, *, status: int, headers: Headers) -> None:
    """Send an answer that is not a stream."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(answer: JsonAnswer, send: Send) -> None:
    """Send a JSON answer."""
    body = await off_loop(partial(orjson.dumps, answer.body))
    headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    await send_body(body, send, status=HTTPStatus.OK, headers=[*headers, _JSON])


async def send_events(
    events: AsyncIterator[bytes],
    send: Send,
    *,
    headers: Headers,
    last_event: Callable[[Exception], bytes],
    close: Callable[[], None],
) -> None:
    """Send server-sent events. `close` is called before the client receives the end.

    `last_event` returns the event that reports an error and ends the stream: the status has been sent already.
    `ConnectionCut` is raised to the caller, and the stream is left without an end.
    """
    await send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM, *headers]})
    _OPEN.inc()
    try:
        async for data in events:
            # Sent in pieces, because a server copies the bytes that its socket does not accept at once.
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data if len(data) <= _PIECE_BYTES else data[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionCut:
        raise
    except Exception as error:
        await send({"type": "http.response.body", "body": last_event(error), "more_body": True})
    finally:
        _OPEN.dec()
    close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
