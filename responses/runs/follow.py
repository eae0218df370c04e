"""Following a run from its log: what was sent so far, byte for byte, and then what comes, on whatever node it runs.

One reader per process serves all followers of a response, so that their number does not multiply the reads. A
background run wakes it whenever the log has grown; a run in the foreground does not, so there it looks by itself.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial

from django.db import Error as DatabaseError

from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.errors import BadRequest
from kernel.notifications import loop_notifications
from responses.engine.events.types import DONE_FRAME
from responses.models import EventBatch, Response
from responses.runs import access
from responses.runs.identity import channel_of
from responses.runs.runner import PING, PING_SECONDS, wait_within
from tenants import scope
from tenants.principal import Principal

logger = logging.getLogger(__name__)
# How often the reader looks by itself: where nobody wakes it, and where somebody should.
_READ_SECONDS = 0.15
_WOKEN_SECONDS = 1.0
_AWAY_SECONDS = 1.0
_FOLLOWED_SECONDS = 10
_OBFUSCATION = re.compile(rb',"obfuscation":"[^"]*"(?=}\n\n)')
_FRAME_END = b"\n\n"


async def follow(
    *, principal: Principal, response_id: str, after: int, obfuscation: bool
) -> AsyncGenerator[bytes, None]:
    """The events of a response with numbers above `after`, to the end of its run; none where it ended before that.

    Raises the 404 of an unknown id, and 400 when the log is not kept any more.
    """
    is_background = await in_db_thread(partial(_admit, principal, response_id))
    tail = partial(_Tail.of, principal.team_id, response_id, is_background=is_background)
    return _frames(tail, after=after, obfuscation=obfuscation)


def watch(response: Response) -> AsyncGenerator[bytes, None]:
    """The same from the first event on, for somebody who looks over the client's shoulder: a run in the foreground that
    nobody else follows ends as it would without them. Whoever calls has seen to it that they may."""
    tail = partial(_Tail.of, response.team_id, response.pk, is_background=response.background)
    return _frames(tail, after=-1, obfuscation=False, is_client=False)


def has_event_log(response: Response) -> bool:
    """Whether there is a log to follow. Runs inside of a scope that sees the response."""
    return EventBatch.objects.filter(response=response, first_sequence=0).exists()


def _admit(principal: Principal, response_id: str) -> bool:
    """Whether it is a background run."""
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
        kept = has_event_log(response)
    if not kept:
        message = "The events of this response are not kept any more. Retrieve it without 'stream'."
        raise BadRequest(message, param="stream")
    return response.background


async def _frames(
    open_tail: "Callable[[], _Tail]", *, after: int, obfuscation: bool, is_client: bool = True
) -> AsyncGenerator[bytes, None]:
    tail = open_tail()
    tail.clients += is_client
    sent = after + 1
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
            elif not await wait_within(tail.wake, PING_SECONDS):
                yield PING
    finally:
        tail.clients -= is_client
        tail.leave()


class _Tail:
    """The log of one response as this process has read it so far, for all who follow it here."""

    _open: dict[str, "_Tail"] = {}

    def __init__(self, team_id: str, response_id: str, *, is_background: bool) -> None:
        self.wake = asyncio.Event()
        self.clients = 0
        self.ended = False
        self.is_broken = False
        self._team_id = team_id
        self._response_id = response_id
        self._is_background = is_background
        self._rung = asyncio.Event()
        self._frames: list[bytes] = []
        self._joined: tuple[int, int, bytes] = (0, 0, b"")
        self._followers = 0
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    def of(cls, team_id: str, response_id: str, *, is_background: bool) -> "_Tail":
        """The tail of a response, opened by its first follower."""
        tail = cls._open.get(response_id)
        if tail is None:
            tail = cls._open[response_id] = cls(team_id, response_id, is_background=is_background)
        tail._followers += 1
        return tail

    def leave(self) -> None:
        """A follower has left; the last one closes the tail."""
        self._followers -= 1
        if self._followers == 0:
            self._task.cancel()

    @property
    def length(self) -> int:
        """How many events were read."""
        return len(self._frames)

    def since(self, first: int) -> bytes:
        """The bytes of the events from this number on; followers who stand at the same event share them."""
        if self._joined[:2] != (first, self.length):
            self._joined = (first, self.length, b"".join(self._frames[first:]))
        return self._joined[2]

    async def _read(self) -> None:
        try:
            with self._listening():
                while not self.ended:
                    self._rung.clear()
                    await self._read_once()
        except Exception:
            logger.exception("a log could not be read", extra={"response": self._response_id})
            self.is_broken = True
        finally:
            # Nobody may wait for more, and whoever comes now begins anew.
            self.ended = True
            self.wake.set()
            if self._open.get(self._response_id) is self:
                del self._open[self._response_id]

    def _listening(self) -> AbstractContextManager[None]:
        return (
            loop_notifications().listening(channel_of(self._response_id), self._rung)
            if self._is_background
            else nullcontext()
        )

    async def _read_once(self) -> None:
        # Of a run in the background nobody needs to know who listens.
        is_listened = self.clients > 0 and not self._is_background
        read = partial(_read_log, self._team_id, self._response_id, self.length, is_listened=is_listened)
        try:
            ended, frames = await in_db_thread(read)
        except DatabaseError:
            # A database that is away for a moment is no end of the run.
            logger.warning("a log cannot be read right now", extra={"response": self._response_id})
            await asyncio.sleep(_AWAY_SECONDS)
            return
        self._frames += frames
        self.ended = ended
        if ended or frames:
            self.wake.set()
        if not ended:
            is_woken = self._is_background and loop_notifications().is_connected
            await wait_within(self._rung, _WOKEN_SECONDS if is_woken else _READ_SECONDS)


def _read_log(team_id: str, response_id: str, first: int, *, is_listened: bool) -> tuple[bool, list[bytes]]:
    """Whether the run has ended, and the events from number `first` on, with which a batch begins.

    The state is read before the log: the last events are committed together with the end.
    """
    with scope.team(team_id):
        response = Response.objects.only("ended_at", "followed_until").filter(pk=response_id).first()
        if response is None:
            return True, []
        if response.ended_at is None and is_listened:
            _note_follower(response)
        batches = EventBatch.objects.filter(response_id=response_id, first_sequence__gte=first)
        log = list(batches.order_by("first_sequence").values_list("first_sequence", "frames"))
    frames: list[bytes] = []
    for number, text in log:
        # Where events are missing in the log, those that follow keep their numbers all the same.
        frames += [b""] * (number - first - len(frames))
        frames += [frame + _FRAME_END for frame in text.encode().split(_FRAME_END)[:-1]]
    return response.ended_at is not None, frames


def _note_follower(response: Response) -> None:
    """Tell the node that runs it, now and then, that somebody listens."""
    at = now()
    if response.followed_until is None or response.followed_until - at < timedelta(seconds=_FOLLOWED_SECONDS / 2):
        until = at + timedelta(seconds=_FOLLOWED_SECONDS)
        Response.objects.filter(pk=response.pk, ended_at=None).update(followed_until=until)
