"""The lanes of a WebSocket connection: what is asked on one lane runs in order, the lanes run side by side.

A lane also remembers its most recent response where no database does, so that `store:false` responses can be followed
on the connection that made them. Limits: section 1.1.2 of the API surface specification.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kernel.errors import BadRequest, InvalidType, Overloaded, RateLimited
from kernel.validation import json_type
from responses.requests.context import UnstoredResponse

MOST_NAMED_LANES = 32
MOST_IN_FLIGHT = 16
MOST_WAITING = 256
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class InvalidStreamId(BadRequest):
    """Invalid 'stream_id': expected 1 to 256 ASCII letters, digits, underscores, periods or hyphens."""

    default_code = "invalid_stream_id"

    def __init__(self) -> None:
        super().__init__(param="stream_id")


class TooManyLanes(BadRequest):
    """The connection has used as many different values of 'stream_id' as it may; use one of them, or another one."""

    default_code = "websocket_stream_limit_reached"

    def __init__(self) -> None:
        super().__init__(param="stream_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A `response.create` as it came, without its envelope; `size` in bytes."""

    values: dict[str, Any]
    size: int


class Lane:
    """One lane. `running` is the response that it plays now; `memory` its last one, where nothing else holds that."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        self.running: str | None = None
        self.memory: UnstoredResponse | None = None
        self.waiting: deque[Asked] = deque()
        self.worker: asyncio.Task[None] | None = None

    def knows(self, response_id: object) -> bool:
        """Whether the response runs here, or is remembered."""
        return response_id is not None and response_id in (self.running, self.memory and self.memory.response_id)

    def forget(self, response_id: object) -> None:
        """Drop the memory of this response, if it is the one that the lane has."""
        if self.memory is not None and self.memory.response_id == response_id:
            self.memory = None


class Lanes:
    """The lanes of one connection. `serve` plays one request to its end; it raises nothing."""

    def __init__(self, serve: Callable[[Lane, dict[str, Any]], Awaitable[None]], *, most_waiting_bytes: int) -> None:
        self._serve = serve
        self._lanes: dict[str | None, Lane] = {}
        self._in_flight = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting = 0
        self._waiting_bytes = 0
        self._stopped = False

    def ask(self, stream_id: str | None, asked: Asked) -> None:
        """Queue a request behind those of its lane."""
        if self._stopped:
            raise Overloaded("The server is stopping. Connect again.")
        lane = self._lane(stream_id)
        if self._waiting >= MOST_WAITING or self._waiting_bytes + asked.size > self._most_waiting_bytes:
            message = "Too many requests are waiting on this connection. Wait until some of them are answered."
            raise RateLimited(message, code="slow_down")
        lane.waiting.append(asked)
        self._count(asked, +1)
        if lane.worker is None or lane.worker.done():
            lane.worker = asyncio.get_running_loop().create_task(self._work(lane))

    def recall(self, response_id: str | None) -> UnstoredResponse | None:
        """A finished response that only this connection knows, whichever lane made it."""
        memories = (lane.memory for lane in self._lanes.values() if lane.memory)
        return next((memory for memory in memories if memory.response_id == response_id), None)

    def stream_of(self, response_id: str) -> str | None:
        """The name of the lane that plays or remembers a response."""
        return next((lane.stream_id for lane in self._lanes.values() if lane.knows(response_id)), None)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    async def close(self) -> None:
        """End all lanes where they stand."""
        self.stop()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _lane(self, stream_id: str | None) -> Lane:
        if stream_id not in self._lanes:
            if stream_id is not None and len(self._lanes.keys() - {None}) >= MOST_NAMED_LANES:
                raise TooManyLanes
            self._lanes[stream_id] = Lane(stream_id)
        return self._lanes[stream_id]

    def _count(self, asked: Asked, sign: int) -> None:
        self._waiting += sign
        self._waiting_bytes += sign * asked.size

    async def _work(self, lane: Lane) -> None:
        """Serve the lane until nothing waits; whoever asks next starts a new worker."""
        while lane.waiting:
            async with self._in_flight:
                if self._stopped:
                    return
                asked = lane.waiting.popleft()
                self._count(asked, -1)
                await self._serve(lane, asked.values)


def take_stream_id(values: dict[str, Any]) -> str | None:
    """Take the lane's name out of an event; None is the default lane."""
    given = values.pop("stream_id", None)
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidType("stream_id", expected="a string", got=json_type(given))
    if not _STREAM_ID.fullmatch(given):
        raise InvalidStreamId
    return given
