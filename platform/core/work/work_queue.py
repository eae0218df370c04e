"""The loop by which a worker process claims work from the database and runs it concurrently.

Subclasses define which rows are due, their order, and the work for a claimed row. Notifications only reduce the delay:
the loop also polls, so a lost notification delays work but never loses it.
"""

import asyncio
import concurrent.futures
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from django.db import Error as DatabaseError

from core.db.db_threads import in_db_thread
from core.work import worker_loop
from core.work.leases import Claim
from core.work.notifications import wait_within

logger = logging.getLogger(__name__)
Claimed = TypeVar("Claimed", bound=Claim)


class WorkLoop(ABC, Generic[Claimed]):
    """Claims work until it is stopped, each claim in a task of its own. Belongs to one event loop."""

    kind: ClassVar[str]
    poll_seconds: float | None = 1.0
    # Pause before the next claim, so that one query replaces all work that ends at nearly the same time.
    pace_seconds: float = 0.0
    renew_seconds: float | None = None
    wants_room: bool = True
    """True if more may be claimed as soon as some work ends."""

    def __init__(self) -> None:
        self.work: dict[Claimed, asyncio.Task[None]] = {}
        self.is_stopping = False
        self._due = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    async def claim(self) -> bool:
        """Claim due work and `begin` it. Return whether more may be due now."""

    @abstractmethod
    async def execute(self, claim: Claimed) -> None:
        """Do claimed work. After an exception, its lease expires, and then the work is claimed again."""

    def renew(self, claims: Collection[Claimed]) -> datetime:
        """Renew the leases in the database and return their expiry; called every `renew_seconds`."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Finish or give back the work in progress after the loop was stopped."""

    # -- for other threads ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the loop look for work now."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._due.set)

    def stop(self) -> None:
        """Stop claiming work. `run` returns after the work in progress was drained."""
        self.is_stopping = True
        self.wake()

    def active(self) -> list[dict[str, Any]]:
        """Return the work in progress, oldest first."""
        return [
            {
                **claim.labels,
                "team": claim.team_id,
                "attempt": claim.attempt,
                "since": claim.since.isoformat(timespec="seconds"),
                "lease_until": claim.until.isoformat(timespec="seconds"),
            }
            for claim in self.work.copy()
        ]

    # -- on the event loop ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and run work until `stop` is called, then drain it."""
        self._loop = asyncio.get_running_loop()
        renewing = self._loop.create_task(self._renew_leases())
        while not self.is_stopping:
            # Cleared before the queue is read: a notification that arrives during the query is not lost.
            self._due.clear()
            try:
                has_more = await self.claim()
            except DatabaseError:
                logger.warning("%s cannot be claimed; trying again", self.kind, exc_info=True)
                has_more = False
            except Exception:
                # An unexpected error must not end the loop: this process has no other one for this work.
                logger.exception("claiming %s failed", self.kind)
                has_more = False
            if not has_more and not self.is_stopping:
                await wait_within(self._due, self.poll_seconds)
                await asyncio.sleep(self.pace_seconds)
        # Lets a new task start: a task that is cancelled before its first step could not release its claim.
        await asyncio.sleep(0)
        try:
            await self.drain()
        except Exception:
            logger.exception("%s could not be drained", self.kind)
        renewing.cancel()

    def begin(self, claim: Claimed) -> None:
        """Start a task for a claim."""
        task = asyncio.get_running_loop().create_task(self._execute(claim))
        self.work[claim] = task
        task.add_done_callback(partial(self._ended, claim))

    async def settle(self, seconds: float | None) -> None:
        """Wait until all work has ended, for at most `seconds`."""
        if self.work:
            await asyncio.wait(self.work.values(), timeout=seconds)

    async def _execute(self, claim: Claimed) -> None:
        try:
            await self.execute(claim)
        except Exception:
            logger.exception("claimed %s failed", self.kind, extra=dict(claim.labels))

    def _ended(self, claim: Claimed, _: "asyncio.Task[None]") -> None:
        del self.work[claim]
        if self.wants_room:
            self._due.set()

    async def _renew_leases(self) -> None:
        while self.renew_seconds is not None:
            await asyncio.sleep(self.renew_seconds)
            claims = [*self.work]
            if not claims:
                continue
            try:
                until = await in_db_thread(partial(self.renew, claims))
            except DatabaseError:
                logger.warning("leases of %s cannot be renewed; trying again", self.kind, exc_info=True)
                continue
            except Exception:
                # Without renewals every lease expires, and other processes repeat the work in progress.
                logger.exception("renewing leases of %s failed", self.kind)
                continue
            for claim in claims:
                claim.until = until


# -- the loops of this process -----------------------------------------------------------------------------------------

_loops: "dict[str, tuple[WorkLoop[Any], Future[None]]]" = {}


def start(loop: WorkLoop[Any]) -> None:
    """Run a loop on the event loop of this worker process."""
    _loops[loop.kind] = loop, worker_loop.submit(loop.run())


def wake(kind: str) -> None:
    """Notify the loop of this process, if it has one, that there may be work."""
    if kind in _loops:
        _loops[kind][0].wake()


def stop() -> None:
    """Stop all loops of this process."""
    for loop, _ in _loops.values():
        loop.stop()


def wait(*kinds: str, seconds: float | None = None) -> None:
    """Wait until these loops have drained their work, for at most `seconds`."""
    concurrent.futures.wait([_loops[kind][1] for kind in kinds if kind in _loops], timeout=seconds)


def active() -> dict[str, list[dict[str, Any]]]:
    """Return the work in progress in this process by kind. Reads nothing but memory, so it never blocks."""
    return {kind: loop.active() for kind, (loop, _) in _loops.items()}
