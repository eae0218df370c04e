"""Execution of requests with an idempotency key, and the answers that this process writes or reads.

A request is executed by a task of its own, so that it does not depend on the connection of the client that sent it
first: an SDK repeats requests whose connection was lost. All clients, including the first, get the recorded answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from django.conf import settings

from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.http.asgi import Message, Send
from core.load.draining import ConnectionCut, draining
from core.per_loop import PerLoop
from idempotency import store
from idempotency.recording import Recording
from idempotency.store import Claim, KeyedRequest

logger = logging.getLogger(__name__)
# Streams are stored for followers on other processes in these intervals, in seconds.
_FLUSH_SECONDS = 0.1
_POLL_SECONDS, _SLOW_POLL_SECONDS = 0.1, 0.5
_FIRST_POLLS = 50
_FORGOTTEN = frozenset({401, 403, 408, 409, 424, 429})
_EVENT_STREAM = "text/event-stream"
# The events after which a stream only has its end, which follows at once. A client that has received one of them may
# repeat the request, so the answer is committed first.
_FAILURES = (b"event: response.failed\n", b"event: error\n", b'data: {"error":')
_TERMINAL = (
    *_FAILURES,
    b"event: response.completed\n",
    b"event: response.incomplete\n",
    b"event: message_stop\n",
    b"data: [DONE]\n",
)

Execute = Callable[[Send], Awaitable[None]]
"""Serves a request: sends its answer as ASGI messages."""
HadEffects = Callable[[Claim], Awaitable[bool]]
"""Returns whether a request dispatched a hosted call."""


class Executions:
    """The recordings of an event loop, by the id of the row: of its own executions, and of those of other processes."""

    def __init__(self) -> None:
        self._recordings: dict[str, Recording] = {}
        self._claims: dict[str, Claim] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewal: asyncio.Task[None] | None = None

    def follow(self, request: KeyedRequest, row_id: str) -> Recording:
        """Return the answer of a row that this process executes or another one has executed."""
        if (recording := self._recordings.get(row_id)) is None:
            recording = self._recordings[row_id] = Recording()
            self._start(self._read(request.team_id, row_id, recording))
        return recording

    def execute(self, claimed: Claim, execute: Execute, had_effects: HadEffects) -> Recording:
        """Execute a claimed request and return its answer."""
        recording = self._recordings[claimed.id] = Recording()
        self._claims[claimed.id] = claimed
        if self._renewal is None or self._renewal.done():
            renewal = self._renew()
            self._renewal = asyncio.get_running_loop().create_task(renewal, context=wait_limit.unrelated())
        writer = _Writer(claimed, recording, partial(had_effects, claimed))
        self._start(self._execute(claimed, recording, writer, execute))
        return recording

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, claimed: Claim, recording: Recording, writer: "_Writer", execute: Execute) -> None:
        # A shutdown waits for this task as for any other request.
        draining.began()
        try:
            await execute(writer.send)
        except ConnectionCut:
            # Another process continues the run. A repetition gets its events.
            pass
        except Exception:
            logger.exception("a request with an idempotency key was not answered")
        finally:
            draining.ended()
            self._claims.pop(claimed.id, None)
            if self._recordings.get(claimed.id) is recording:
                del self._recordings[claimed.id]
            if not recording.is_complete:
                recording.lose()
                await asyncio.shield(_give_up(claimed))

    async def _read(self, team_id: str, row_id: str, recording: Recording) -> None:
        """Read the answer that another process writes, for all followers of this process."""
        last, polls = -1, 0
        try:
            while not recording.has_ended:
                found = await in_db_thread(partial(store.read, team_id, row_id, after=last))
                last, polls = found.last_number, polls + 1
                if found.status is not None and recording.status is None:
                    recording.begin(found.status, found.headers)
                for data in found.chunks:
                    recording.add(data)
                if found.is_complete:
                    recording.complete()
                elif found.is_lost:
                    recording.lose()
                else:
                    await asyncio.sleep(_POLL_SECONDS if polls < _FIRST_POLLS else _SLOW_POLL_SECONDS)
        finally:
            recording.lose()
            if self._recordings.get(row_id) is recording:
                del self._recordings[row_id]

    async def _renew(self) -> None:
        while self._claims:
            await asyncio.sleep(settings.LEASE_SECONDS / 3)
            try:
                await in_db_thread(partial(store.renew, [*self._claims.values()]))
            except Exception:
                logger.exception("leases of requests with idempotency keys could not be renewed")


@PerLoop
def executions() -> Executions:
    """Return the executions of the running event loop."""
    return Executions()


class _Writer:
    """Writes the messages of an answer to its recording and its row.

    The end is committed before it is shown, so that a repetition after it gets the same answer.
    """

    def __init__(self, claimed: Claim, recording: Recording, had_effects: Callable[[], Awaitable[bool]]) -> None:
        self._claimed, self._recording, self._had_effects = claimed, recording, had_effects
        self._status = 0
        self._headers: store.Headers = []
        self._is_stream = False
        # The bytes that are not stored yet, and those at the end of a stream that are not shown either.
        self._parts: list[bytes] = []
        self._end: list[bytes] = []
        self._number = 0
        self._flushing: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Receive an ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())
            ]
            types = [value for name, value in self._headers if name == "content-type"]
            self._is_stream = any(value.startswith(_EVENT_STREAM) for value in types)
            if self._is_stream:
                self._recording.begin(self._status, self._headers)
            return
        data, has_more = message.get("body", b""), message.get("more_body", False)
        if data and (not self._is_stream or self._end or any(mark in data for mark in _TERMINAL)):
            self._end.append(data)
        elif data:
            self._parts.append(data)
            self._recording.add(data)
        if not has_more:
            await self._finish()
        elif self._parts and self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        await asyncio.sleep(_FLUSH_SECONDS)
        try:
            if self._number == 0:
                begin = partial(store.begin, self._claimed, status=self._status, headers=self._headers)
                await in_db_thread(begin)
            parts, self._parts, number = self._parts, [], self._number
            self._number += 1
            await in_db_thread(partial(store.append, self._claimed, number, b"".join(parts)))
        except Exception:
            logger.exception("a part of an answer could not be stored")
        finally:
            self._flushing = None
            if self._parts and not self._recording.is_complete:
                self._flushing = asyncio.create_task(self._flush())

    async def _finish(self) -> None:
        if self._recording.is_complete:
            return
        while self._flushing is not None:
            await self._flushing
        end = b"".join(self._end)
        stored = b"".join(self._parts) + end
        finish = partial(
            store.finish,
            self._claimed,
            status=self._status,
            headers=self._headers,
            chunks=[(self._number, stored)] if stored else [],
            is_remembered=await self._is_remembered(end),
        )
        await in_db_thread(finish)
        if not self._is_stream:
            self._recording.begin(self._status, self._headers)
        if end:
            self._recording.add(end)
        self._recording.complete()

    async def _is_remembered(self, end: bytes) -> bool:
        """Return whether repetitions get this answer. A stream whose last event is an error counts as a 5xx."""
        has_failed = self._status >= 500 or (self._is_stream and any(mark in end for mark in _FAILURES))
        return await self._had_effects() if has_failed else self._status not in _FORGOTTEN


async def _give_up(claimed: Claim) -> None:
    try:
        await in_db_thread(partial(store.give_up, claimed))
    except Exception:
        logger.exception("the lease of a request with an idempotency key was not released")
