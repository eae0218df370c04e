"""Group commit: changes that many runs submit at the same time are committed in one transaction.

A run awaits the commit of its change, so a change is durable before its event is sent; only the fixed costs of a
transaction (round trip, fsync, Python's overhead) are shared. Each event loop commits its own groups, one at a time:
changes that are submitted during a commit form the next group. In a thread of its own, the writer would wait for the
interpreter lock of a busy event loop again and again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Generic, NamedTuple, Protocol, TypeVar

from core.db import wait_limit
from core.db.statement_pipeline import ConnectionLost, TransactionCancelled
from core.load.load_limit import commit_times
from core.per_loop import PerLoop
from core.telemetry import metrics

logger = logging.getLogger(__name__)
Change = TypeVar("Change")
Applied_contra = TypeVar("Applied_contra", contravariant=True)
Outcomes = Sequence[Exception | None]
# Bounds the duration of a transaction, and the work to repeat if it fails. If the changes of all 256 connections of a
# benchmark were in one transaction, the process was idle during the commit: 576 and 609 JSON requests per second with a
# limit of 256 changes, 785 and 975 with 64; 477 and 558 streams with 256, 536 and 628 with 64.
_MAX_BATCH = 64
# Eight seconds in total: long enough for a restart of PostgreSQL.
_RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0)
# Additional time, after the limit, to find out whether an unconfirmed commit has taken effect: a request that was
# reported as failed must not turn out to be completed.
_RECALL_SECONDS = 2.0
# A single change counts as too large if the server has cancelled it for this time and this often. Other changes wait
# behind it.
_CANCELLED_SECONDS = 15.0
_MIN_CANCELLED = 3


class ChangeTooLarge(Exception):
    """The server cancels every attempt to commit the change, even alone."""


class Committer(Protocol[Applied_contra]):
    """Commits the groups of one event loop over its own connection."""

    async def apply(self, changes: Sequence[Applied_contra], /) -> Outcomes:
        """Commit the changes; return for each None or the exception to raise. Raises `ConnectionLost`."""
        ...

    async def recall(self, changes: Sequence[Applied_contra], /) -> Outcomes | None:
        """Return the outcomes of the changes that were applied last, or None if they were not committed.

        Called after `ConnectionLost`, when the transaction may have been committed. May raise `ConnectionLost` again.
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
        self._writers = PerLoop(lambda: _LoopWriter(self._committer(), self._pauses, lambda: self._waits_forever))

    def submit(self, change: Change) -> "asyncio.Future[None]":
        """Queue a change; changes are committed in the order of their submission. Await the future for the commit."""
        return self._writers().submit(change)

    def wait_forever(self) -> None:
        """Wait for an unavailable database without a limit; for workers, whose runs no client is waiting for."""
        self._waits_forever = True

    def _pauses(self) -> "chain[float]":
        """Return the seconds to wait before each new connection."""
        return chain(self._reconnect_seconds, repeat(self._reconnect_seconds[-1]) if self._waits_forever else ())


class _LoopWriter(Generic[Change]):
    def __init__(
        self,
        committer: Committer[Change],
        pauses: Callable[[], "chain[float]"],
        waits_forever: Callable[[], bool],
    ) -> None:
        self._committer = committer
        self._waits_forever = waits_forever
        self._pauses = pauses
        self._queue: deque[_Waiting[Change]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = _Waiting(change, future)
        self._queue.append(waiting)
        if self._task is None or self._task.done():
            # The task starts with the next iteration of the loop, so it takes all changes of this iteration.
            self._task = loop.create_task(self._write(), context=wait_limit.unrelated())
        if (limit := wait_limit.current()) is not None:
            wait = wait_limit.Wait()
            timer = loop.call_later(limit.seconds_left + _RECALL_SECONDS, self._give_up, waiting)
            future.add_done_callback(partial(_end_wait, wait, timer))
        return future

    def _give_up(self, waiting: _Waiting[Change]) -> None:
        # A change that still waits for its group is dropped. A change that is being written may take effect.
        if waiting in self._queue:
            self._queue.remove(waiting)
        if not waiting.future.done():
            waiting.future.set_exception(ConnectionLost("the commit took longer than its request may wait"))

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
                # A future that is done already belongs to a run that was cancelled while it was waiting.
                if not waiting.future.done():
                    if outcome is None:
                        waiting.future.set_result(None)
                    else:
                        waiting.future.set_exception(outcome)

    async def _outcomes(self, batch: list[_Waiting[Change]]) -> Outcomes:
        changes = [waiting.change for waiting in batch]
        try:
            return await self._apply_connected(changes)
        except TransactionCancelled as error:
            if len(batch) == 1:
                return [error]
            # The group may be too large for a limit of the server; then every attempt would be cancelled.
            logger.warning("the database has cancelled a group of %d commits, which is divided", len(batch))
            middle = len(batch) // 2
            return [*await self._outcomes(batch[:middle]), *await self._outcomes(batch[middle:])]
        except Exception as error:
            # Without a connection, single changes would fail too, each after another wait for the database.
            if len(batch) == 1 or isinstance(error, ConnectionLost):
                return [error] * len(batch)
            # A bad change must not fail the others of its batch, so each one gets its own transaction.
            logger.warning("a group commit failed, retrying its changes one by one", exc_info=True)
            return [outcome for waiting in batch for outcome in await self._outcomes([waiting])]

    async def _apply_connected(self, changes: Sequence[Change]) -> Outcomes:
        """Apply the changes, waiting for the database while it is unavailable, for example during a restart."""
        wait_limit.start()
        was_tried = False
        began, pauses, cancelled = time.monotonic(), self._pauses(), 0
        while True:
            try:
                with wait_limit.Wait():
                    if was_tried and (outcomes := await self._committer.recall(changes)) is not None:
                        return outcomes
                    was_tried = True
                    return await self._committer.apply(changes)
            except ConnectionLost as error:
                if isinstance(error, TransactionCancelled):
                    cancelled += 1
                    if len(changes) > 1:
                        raise
                    if self._waits_forever() and cancelled >= _MIN_CANCELLED and _since(began) > _CANCELLED_SECONDS:
                        raise ChangeTooLarge(str(error)) from error
                pause = next(pauses, None)
                # If the server does not answer, the time is over before the last pause.
                if pause is None or wait_limit.seconds_left() == 0:
                    return await self._last_outcomes(changes, error)
                with wait_limit.Wait():
                    await asyncio.sleep(pause)

    async def _last_outcomes(self, changes: Sequence[Change], error: ConnectionLost) -> Outcomes:
        """Return the outcomes if the changes were committed in spite of `error`. Raises `error` if they were not."""
        try:
            async with asyncio.timeout(_RECALL_SECONDS):
                if (limit := wait_limit.current()) is not None:
                    limit.renew()
                outcomes = await self._committer.recall(changes)
        except (ConnectionLost, TimeoutError):
            outcomes = None
        if outcomes is None:
            raise error
        return outcomes


def _since(began: float) -> float:
    return time.monotonic() - began


def _end_wait(wait: wait_limit.Wait, timer: asyncio.TimerHandle, _: "asyncio.Future[None]") -> None:
    timer.cancel()
    wait.end()
