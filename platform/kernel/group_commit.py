"""Group commit: changes that many runs submit at the same time are committed in one transaction.

A run awaits the commit of its change, so a change is durable before its event is sent; only the fixed costs of a
transaction (round trip, fsync, Python's overhead) are shared. Each event loop commits its own groups, one at a time:
what is submitted during a commit forms the next group. In a thread of its own, the writer would wait for the
interpreter lock of a busy event loop again and again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Generic, NamedTuple, Protocol, TypeVar

from kernel import metrics
from kernel.database import PlatformConnection
from kernel.load_limit import commit_times
from kernel.statement_pipeline import ConnectionLost

logger = logging.getLogger(__name__)
Change = TypeVar("Change")
Applied_contra = TypeVar("Applied_contra", contravariant=True)
Outcomes = Sequence[Exception | None]
# Bounds the duration of a transaction, and the work that is repeated when one fails. With 256 connections, the changes
# of all came into one transaction, and the process had nothing to do meanwhile: 576 and 609 JSON requests per second
# with at most 256 changes, 785 and 975 with 64; 477 and 558 streams against 536 and 628.
_MAX_BATCH = 64
# Eight seconds in total: long enough for a restart of PostgreSQL.
_RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0)


class Committer(Protocol[Applied_contra]):
    """Commits the groups of one event loop over its own connection."""

    async def apply(self, changes: Sequence[Applied_contra], /) -> Outcomes:
        """Commit the changes; return for each None or the exception to raise. Raises `ConnectionLost`."""
        ...

    async def recall(self, changes: Sequence[Applied_contra], /) -> Outcomes | None:
        """Return the outcomes of the changes that were applied last, or None if they were not committed.

        Called after `ConnectionLost`, which may hide a commit. Raises `ConnectionLost` as well.
        """
        ...


class _Waiting(NamedTuple, Generic[Change]):
    change: Change
    future: "asyncio.Future[None]"


class GroupCommit(Generic[Change]):
    """Writer that commits changes in groups, with one committer for each event loop."""

    def __init__(
        self, committer: Callable[[], Committer[Change]], *, pauses: Sequence[float] = _RECONNECT_SECONDS
    ) -> None:
        self._committer = committer
        self._reconnect_seconds = pauses
        self._waits_forever = False
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopWriter[Change]] = {}

    def submit(self, change: Change) -> "asyncio.Future[None]":
        """Queue a change; changes are committed in the order of their submission. Await the future for the commit."""
        loop = asyncio.get_running_loop()
        writer = self._by_loop.get(loop)
        if writer is None:
            # Tests and short-lived commands close their loops; production processes have one.
            for closed in [known for known in [*self._by_loop] if known.is_closed()]:
                self._by_loop.pop(closed, None)
            writer = self._by_loop[loop] = _LoopWriter(self._committer(), self._pauses)
        return writer.submit(change)

    def wait_forever(self) -> None:
        """Wait for an unavailable database without a limit; for workers, whose runs no client is waiting for."""
        self._waits_forever = True

    def _pauses(self) -> "chain[float]":
        """Return the seconds to wait before each new connection."""
        return chain(self._reconnect_seconds, repeat(self._reconnect_seconds[-1]) if self._waits_forever else ())


class _LoopWriter(Generic[Change]):
    def __init__(self, committer: Committer[Change], pauses: Callable[[], "chain[float]"]) -> None:
        self._committer = committer
        self._pauses = pauses
        self._queue: deque[_Waiting[Change]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append(_Waiting(change, future))
        if self._task is None or self._task.done():
            # It starts with the next iteration of the loop, so everything that is submitted in this one joins.
            self._task = loop.create_task(self._write())
        return future

    async def _write(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH))]
            began = time.monotonic()
            outcomes = await self._outcomes(batch)
            took = time.monotonic() - began
            commit_times.add(took)
            metrics.COMMIT_SIZE.observe(len(batch))
            metrics.COMMIT_DURATION.observe(took)
            for waiting, outcome in zip(batch, outcomes, strict=True):
                # Otherwise the run was cancelled while it was waiting.
                if not waiting.future.done():
                    if outcome is None:
                        waiting.future.set_result(None)
                    else:
                        waiting.future.set_exception(outcome)

    async def _outcomes(self, batch: list[_Waiting[Change]]) -> Outcomes:
        changes = [waiting.change for waiting in batch]
        try:
            return await self._apply_connected(changes)
        except Exception as error:
            # Without a connection single changes would fail as well, each after waiting for the database again.
            if len(batch) == 1 or isinstance(error, ConnectionLost):
                return [error] * len(batch)
            # A bad change must not fail the others of its batch, so each one gets its own transaction.
            logger.warning("a group commit failed, retrying its changes one by one", exc_info=True)
            return [outcome for waiting in batch for outcome in await self._outcomes([waiting])]

    async def _apply_connected(self, changes: Sequence[Change]) -> Outcomes:
        """Apply the changes, waiting for the database while it is unavailable, for example during a restart."""
        was_tried = False
        began, pauses = time.monotonic(), self._pauses()
        while True:
            try:
                if was_tried and (outcomes := await self._committer.recall(changes)) is not None:
                    return outcomes
                was_tried = True
                return await self._committer.apply(changes)
            except ConnectionLost:
                # A server that does not answer takes longer than the pauses.
                limit = PlatformConnection.longest_wait
                is_late = limit is not None and time.monotonic() - began > limit
                if is_late or (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
