"""Follow a run through its event log: stream its stored events and then new events, whichever process executes the run.

A process has one reader for all followers of a response, so that many followers cause no more work than one. The reader
reads the log once. Then it receives each batch, after its commit, from the process that executes the run. The log is
authoritative: it is read again after a message that does not continue the known events, after a lost connection, and
after a second without messages.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import orjson
from django.db import Error as DatabaseError

from conversations.items import project
from core.clock import shared_now
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.errors import BadRequest
from core.work.notifications import Notifier, loop_notifications, wait_within
from engine.events.compression import decompress
from engine.events.types import DONE_FRAME, Body
from responses.models import EventBatch, Response
from responses.runs import access, selectors
from responses.runs.client_stream import PING, PING_SECONDS
from responses.runs.event_log import LogMessage, split_frames
from responses.runs.identity import channel_of, channel_of_process
from tenants import scope
from tenants.principal import Principal

logger = logging.getLogger(__name__)
# Poll intervals without messages and with messages. Polling is needed even with messages, because one may be lost.
_POLL_SECONDS = 0.15
_NOTIFIED_POLL_SECONDS = 1.0
# Number of poll intervals that are skipped while messages arrive. It is smaller for foreground runs, because the time
# until which they count as followed must be extended.
_MOST_WAITS, _MOST_WAITS_IN_BACKGROUND = 3, 30
# Pause after a failed read of the database.
_RETRY_SECONDS = 1.0
# Time for which a foreground run counts as followed after the last poll of a follower.
_FOLLOWED = timedelta(seconds=10)
# The events that contain finished items.
_WITH_ITEMS = [
    f"event: response.{name}\n".encode() for name in ("output_item.done", "completed", "incomplete", "failed")
]
_OBFUSCATION = re.compile(rb',"obfuscation":"[^"]*"(?=}\n\n)')


async def follow(
    *, principal: Principal, response_id: str, after: int, obfuscation: bool, include: AbstractSet[str] = frozenset()
) -> AsyncGenerator[bytes, None]:
    """Return the stream of a response's events with numbers above `after`, up to the end of its run.

    `include` adds optional parts of stored items to the parts that the original request included.

    Raises `NotFound` for an unknown id, and `BadRequest` (400) if the event log was deleted.
    """
    response = await in_db_thread(partial(_get_followable, principal, response_id))
    frames = _frames(_tail_of(response), after=after, obfuscation=obfuscation)
    if include <= response.included:
        return frames
    return _with_included(frames, response, include | response.included)


async def _with_included(
    frames: AsyncGenerator[bytes, None], response: Response, include: AbstractSet[str]
) -> AsyncGenerator[bytes, None]:
    """Yield the frames with all included parts of items. The log has only parts that the original request included."""

    def load() -> dict[str, Body]:
        with scope.team(response.team_id):
            return {item["id"]: project(item, include) for item in selectors.outputs([response]).get(response.pk, [])}

    async with aclosing(frames):
        async for data in frames:
            if not any(mark in data for mark in _WITH_ITEMS):
                yield data
                continue
            items = await in_db_thread(load)
            yield b"".join(_with_items(frame, items) for frame in split_frames(data))


def _with_items(frame: bytes, items: dict[str, Body]) -> bytes:
    if not any(mark in frame for mark in _WITH_ITEMS):
        return frame
    head, separator, data = frame.partition(b"data: ")
    event = orjson.loads(data)
    if "item" in event:
        event["item"] = items.get(event["item"]["id"], event["item"])
    else:
        response = event["response"]
        response["output"] = [items.get(item["id"], item) for item in response["output"]]
    return head + separator + orjson.dumps(event) + b"\n\n"


def follow_new(*, principal: Principal, response_id: str, opening: bytes) -> AsyncGenerator[bytes, None]:
    """Return the stream of a background response that this process has just stored. `opening` are its first events."""
    tail = partial(_Tail.of, principal.team_id, response_id, is_background=True, opening=opening)
    return _frames(tail, after=-1, obfuscation=True)


def watch(response: Response) -> AsyncGenerator[bytes, None]:
    """Return the stream from the first event on, for an observer in the console. The caller must check permissions.

    Unlike a client, an observer does not keep a foreground run alive.
    """
    return _frames(_tail_of(response), after=-1, obfuscation=False, is_client=False)


def has_event_log(response: Response) -> bool:
    """Return true if there is a log to follow. Call it inside a scope that sees the response."""
    # A run has a log from the start, but its first events may not be stored yet.
    return response.ended_at is None or EventBatch.objects.filter(response=response, first_sequence=0).exists()


def _get_followable(principal: Principal, response_id: str) -> Response:
    """Return a response that can be followed. Raises an API error if it cannot be followed."""
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
        kept = has_event_log(response)
    if not kept:
        raise BadRequest(
            "The events of this response are no longer available. Retrieve it without 'stream'.", param="stream"
        )
    return response


def _tail_of(response: Response) -> "Callable[[], _Tail]":
    """Return a function that opens the tail of a response. The function does not keep the row, which may be large."""
    is_complete = response.ended_at is not None
    return partial(_Tail.of, response.team_id, response.pk, is_background=response.background, is_complete=is_complete)


async def _frames(
    open_tail: "Callable[[], _Tail]", *, after: int, obfuscation: bool, is_client: bool = True
) -> AsyncGenerator[bytes, None]:
    tail = open_tail()
    tail.clients += is_client
    sent, pings = after + 1, tail.pings
    try:
        while True:
            tail.wake.clear()
            if data := tail.since(sent):
                sent = tail.length
                yield data if obfuscation else _OBFUSCATION.sub(b"", data)
            elif tail.ended:
                if not tail.is_broken:
                    yield DONE_FRAME
                return
            elif tail.pings > pings:
                pings = tail.pings
                yield PING
            else:
                await tail.wake.wait()
    finally:
        tail.clients -= is_client
        tail.leave()


class _Tail:
    """The part of a response's event log that was read so far, shared by all followers in this process."""

    _open: dict[str, "_Tail"] = {}

    def __init__(
        self, team_id: str, response_id: str, *, is_background: bool, opening: bytes, is_complete: bool
    ) -> None:
        self.wake = asyncio.Event()
        self.clients = 0
        self.pings = 0
        self.ended = False
        self.is_broken = False
        self._team_id = team_id
        self._response_id = response_id
        self._is_background = is_background
        self._is_complete = is_complete
        self._notified = asyncio.Event()
        self._is_served = self._has_heard = False
        self._executor: str | None = None
        self._frames = split_frames(opening)
        self._joined: tuple[int, int, bytes] = (0, 0, b"")
        self._followers = 0
        # One timer for all followers, because a timeout for each event costs as much as sending it.
        self._loop = asyncio.get_running_loop()
        self._grown_at = self._loop.time()
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._ping)
        self._task = self._loop.create_task(self._read(), context=wait_limit.unrelated())

    @classmethod
    def of(
        cls, team_id: str, response_id: str, *, is_background: bool, opening: bytes = b"", is_complete: bool = False
    ) -> "_Tail":
        """Return the tail of a response and count one more follower. The first follower opens the tail.

        `opening` are the first events of the log, if they are known and need not be read. A log that `is_complete` is
        read only once.
        """
        tail = cls._open.get(response_id)
        if tail is None:
            tail = cls(team_id, response_id, is_background=is_background, opening=opening, is_complete=is_complete)
            cls._open[response_id] = tail
        tail._followers += 1
        return tail

    def leave(self) -> None:
        """Remove a follower. The last one closes the tail."""
        self._followers -= 1
        if self._followers == 0:
            self._task.cancel()

    def _ping(self) -> None:
        """Let the followers send a ping if the log has not grown for the ping interval."""
        at = self._loop.time()
        if at >= self._grown_at + PING_SECONDS:
            self.pings, self._grown_at = self.pings + 1, at
            self.wake.set()
        self._ping_timer = self._loop.call_at(self._grown_at + PING_SECONDS, self._ping)

    @property
    def length(self) -> int:
        """The number of events read so far."""
        return len(self._frames)

    def since(self, first: int) -> bytes:
        """Return the bytes of the events from number `first` on."""
        # Followers usually wait for the same event, so the joined bytes are shared instead of built for each of them.
        if self._joined[:2] != (first, self.length):
            self._joined = (first, self.length, b"".join(self._frames[first:]))
        return self._joined[2]

    async def _read(self) -> None:
        notifications = loop_notifications()
        try:
            listening: AbstractContextManager[None] = nullcontext()
            if not self._is_complete:
                listening = notifications.listening(channel_of(self._response_id), self._notified, self._receive)
            with listening:
                if not self._is_complete and (self._frames or notifications.is_connected):
                    # The log is read after the subscription exists, so that no events are missed.
                    is_known = self._frames and notifications.is_connected
                    await self._wait(_NOTIFIED_POLL_SECONDS if is_known else _POLL_SECONDS)
                while not self.ended:
                    self._notified.clear()
                    # Background runs continue without followers, so only foreground runs need to know if they have any.
                    is_followed = self.clients > 0 and not self._is_background
                    first = self.length
                    read = partial(_read_log, self._team_id, self._response_id, first, is_followed=is_followed)
                    try:
                        log = await in_db_thread(read)
                    except DatabaseError:
                        # A database that is down for a moment does not end the run.
                        logger.warning(
                            "reading an event log failed; trying again", extra={"response": self._response_id}
                        )
                        await asyncio.sleep(_RETRY_SECONDS)
                        continue
                    has_missed = self._append(first, log.frames, ended=log.ended)
                    is_same = log.executor == self._executor
                    self._executor = log.executor
                    self._is_served = self._is_served and is_same and notifications.is_connected and not has_missed
                    if log.executor and not self.ended and not self._is_served:
                        # The process that executes the run does not send events to this follower yet: ask it to do so.
                        Notifier(channel_of_process(log.executor)).notify(self._response_id.encode())
                    is_notified = notifications.is_connected and (self._is_background or self._is_served)
                    if not self.ended:
                        await self._wait(_NOTIFIED_POLL_SECONDS if is_notified else _POLL_SECONDS)
        except Exception:
            logger.exception("an event log could not be read", extra={"response": self._response_id})
            self.is_broken = True
        finally:
            # Current followers must not wait any longer, and a later one must open a new tail.
            self._ping_timer.cancel()
            self.ended = True
            self.wake.set()
            if self._open.get(self._response_id) is self:
                del self._open[self._response_id]

    async def _wait(self, seconds: float) -> None:
        """Wait for a notification, or until no message has arrived for this time."""
        for _ in range(_MOST_WAITS_IN_BACKGROUND if self._is_background else _MOST_WAITS):
            self._has_heard = False
            if await wait_within(self._notified, seconds) or not self._has_heard:
                return

    def _receive(self, data: bytes) -> None:
        """Add a batch that was received from the process that executes the run."""
        message = LogMessage.decode(data)
        self._is_served = self._has_heard = True
        if message.first_sequence > self.length:
            # Events are missing, so the log must be read.
            self._notified.set()
        else:
            self._append(message.first_sequence, message.frames(), ended=message.ends_run)

    def _append(self, first: int, frames: list[bytes], *, ended: bool) -> bool:
        """Add those events of a batch that are not known yet. Return true if there were any.

        `first` is the number of the first event of the batch.
        """
        # The log and the messages may contain the same events.
        new = frames[self.length - first :]
        self._frames += new
        self.ended = self.ended or ended
        if new or ended:
            self._grown_at = self._loop.time()
            self.wake.set()
        if ended:
            self._notified.set()
        return bool(new)


class _Log(NamedTuple):
    """New events of a log, and the state of its run. `executor` is the process that executes the run."""

    ended: bool
    frames: list[bytes]
    executor: str | None


def _read_log(team_id: str, response_id: str, first: int, *, is_followed: bool) -> _Log:
    """Read the events from number `first` on, which must be the first event of a batch."""
    with scope.team(team_id):
        # Read the state before the log. The last events are committed together with the end of the run, so if the run
        # has ended, the log that is read afterwards is complete. In the other order, the last events could be missed.
        response = Response.objects.only("ended_at", "followed_until", "lease_owner").filter(pk=response_id).first()
        if response is None:
            return _Log(ended=True, frames=[], executor=None)
        # The process that executes the run reads `followed_until` when the grace period of its client is over. It is
        # updated only when half of its time is over, so that not every read causes an update.
        at, until = shared_now(), response.followed_until
        if response.ended_at is None and is_followed and (until is None or until - at < _FOLLOWED / 2):
            Response.objects.filter(pk=response.pk, ended_at=None).update(followed_until=at + _FOLLOWED)
        batches = EventBatch.objects.filter(response_id=response_id, first_sequence__gte=first)
        log = list(batches.order_by("first_sequence").values_list("first_sequence", "compressed"))
    frames: list[bytes] = []
    for number, compressed in log:
        # Empty frames replace events that are missing in the log, so that later ones keep their numbers.
        frames += [b""] * (number - first - len(frames))
        frames += split_frames(decompress(compressed))
    return _Log(ended=response.ended_at is not None, frames=frames, executor=response.lease_owner)
