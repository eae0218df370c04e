"""Streams of a WebSocket connection: requests with the same `stream_id` run in order, different streams in parallel.

A stream keeps its latest response in memory if the response is not stored. So a `store:false` response can be continued
on the connection that created it. The limits are the same as in OpenAI's WebSocket mode.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from core.errors import (
    InvalidStreamId,
    InvalidType,
    Overloaded,
    TooManyOpenRequests,
    TooManyStreams,
    UnsupportedParameter,
    retry_headers,
    shutting_down,
)
from core.http.socket_messages import BUSY, Reservation, budget
from core.http.validation import json_type
from core.json import large_work
from core.json.large_work import Weight
from responses.requests.context import UnstoredResponse
from responses.schema import CreateResponse, parse_create

# OpenAI's limits for streams and for responses that run at the same time on a connection.
MAX_NAMED_STREAMS = 32
MAX_RUNNING = 16
MAX_WAITING = 256
_RETRY_SECONDS = 2.0
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


@dataclass(slots=True, kw_only=True)
class QueuedRequest:
    """Parameters of a `response.create` event, with their `size` in bytes and their reservation of memory.

    `weight`: that of the work on them.
    """

    values: dict[str, Any]
    size: int
    weight: Weight
    reservation: Reservation | None = None

    def release(self) -> None:
        """Drop the parameters and release their reservation."""
        self.values, self.reservation = {}, None


class SocketStream:
    """One stream: its active response id (`running`), its latest unstored response (`memory`), and waiting requests."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        self.running: str | None = None
        self.memory: UnstoredResponse | None = None
        self.waiting: deque[QueuedRequest] = deque()
        self.worker: asyncio.Task[None] | None = None

    def has(self, response_id: object) -> bool:
        """Return true if the response is running in this stream, or is the latest response of the stream."""
        return response_id is not None and response_id in (self.running, self.memory and self.memory.response_id)

    def forget(self, response_id: object) -> None:
        """Remove this response from memory if it is the latest response of the stream."""
        if self.memory is not None and self.memory.response_id == response_id:
            self.memory = None


class SocketStreams:
    """Streams of one connection. `serve` is called to execute a request to its end, and must not raise."""

    def __init__(
        self, serve: Callable[[SocketStream, QueuedRequest], Awaitable[None]], *, max_waiting_bytes: int
    ) -> None:
        self._serve = serve
        self._streams: dict[str | None, SocketStream] = {}
        self._in_flight = asyncio.Semaphore(MAX_RUNNING)
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting = 0
        self._waiting_bytes = 0
        self._stopped = False

    def enqueue(self, stream_id: str | None, request: QueuedRequest, sender: str) -> None:
        """Queue a request on its stream. Raises `TooManyStreams`, or `RateLimited` if too many requests are waiting."""
        if self._stopped:
            raise shutting_down()
        stream = self._stream(stream_id)
        # Clients can send faster than models answer, and waiting requests are held in memory.
        if self._waiting >= MAX_WAITING or self._waiting_bytes + request.size > self._max_waiting_bytes:
            raise TooManyOpenRequests(
                "Too many requests are waiting on this connection. Wait until some of them have completed."
            )
        if request.reservation is None:
            # Many small requests take as much memory as a large one.
            request.reservation = budget.try_take(sender, request.size)
            if request.reservation is None:
                raise Overloaded(BUSY, headers=retry_headers(_RETRY_SECONDS))
        stream.waiting.append(request)
        self._count(request, +1)
        if stream.worker is None or stream.worker.done():
            stream.worker = asyncio.get_running_loop().create_task(self._work(stream))

    def recall(self, response_id: str | None) -> UnstoredResponse | None:
        """Return an unstored response of this connection, from any of its streams, or None."""
        memories = (stream.memory for stream in self._streams.values() if stream.memory)
        return next((memory for memory in memories if memory.response_id == response_id), None)

    def stream_of(self, response_id: str) -> str | None:
        """Return the id of the stream that has this active or latest response, or None."""
        return next((stream.stream_id for stream in self._streams.values() if stream.has(response_id)), None)

    def stop(self) -> None:
        """Start no more requests; active ones continue."""
        self._stopped = True

    async def finished(self) -> None:
        """Wait until no request is active."""
        await asyncio.gather(*(stream.worker for stream in self._streams.values() if stream.worker))

    async def close(self) -> None:
        """Cancel the active requests of all streams."""
        self.stop()
        for stream in self._streams.values():
            for request in stream.waiting:
                request.release()
        workers = [stream.worker for stream in self._streams.values() if stream.worker]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _stream(self, stream_id: str | None) -> SocketStream:
        if stream_id not in self._streams:
            # The default stream does not count, because clients that name no stream must always be able to use it.
            if stream_id is not None and len(self._streams.keys() - {None}) >= MAX_NAMED_STREAMS:
                raise TooManyStreams
            self._streams[stream_id] = SocketStream(stream_id)
        return self._streams[stream_id]

    def _count(self, request: QueuedRequest, sign: int) -> None:
        self._waiting += sign
        self._waiting_bytes += sign * request.size

    async def _work(self, stream: SocketStream) -> None:
        # The task ends when the queue is empty, and `enqueue` starts a new one, so that idle streams need no task.
        while stream.waiting:
            async with self._in_flight:
                # The connection may have ended while this request waited for its turn.
                if self._stopped:
                    return
                request = stream.waiting.popleft()
                self._count(request, -1)
                large_work.note(request.weight)
                try:
                    await self._serve(stream, request)
                finally:
                    request.release()


def parse_message(values: dict[str, Any]) -> CreateResponse:
    """Validate the parameters of a `response.create` event."""
    # `stream: true` is redundant but allowed, as OpenAI's agents SDK sends it with each request.
    if values.get("background") is not None:
        raise UnsupportedParameter("The parameter 'background' is not supported over WebSocket.", param="background")
    if values.get("stream", True) is not True and values["stream"] is not None:
        raise UnsupportedParameter(
            "The parameter 'stream' is not supported over WebSocket: every response is streamed.", param="stream"
        )
    return parse_create({**values, "stream": True})


def pop_stream_id(values: dict[str, Any]) -> str | None:
    """Remove and return the `stream_id` of an event; None is the default stream. Raises `InvalidStreamId`."""
    given = values.pop("stream_id", None)
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidType("stream_id", expected="a string", got=json_type(given))
    if not _STREAM_ID.fullmatch(given):
        raise InvalidStreamId
    return given
