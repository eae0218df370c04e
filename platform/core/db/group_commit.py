"""Group commit: changes that many runs submit at the same time are committed in one transaction.

A run awaits the commit of its change, so a change is durable before its event is sent; only the fixed costs of a
transaction (round trip, fsync, Python's overhead) are shared. Each event loop commits its own groups, one at a time:
changes that are submitted during a commit form the next group. In a thread of its own, the writer would wait for the
interpreter lock of a busy event loop again and again.

A group whose commit succeeds at once needs no task: it is sent by the code that submits its first change, or that ends
the group before it, and the callback that reads the answer of the database wakes the runs.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from core.db import wait_limit
from core.db.statement_pipeline import ConnectionLost, TransactionCancelled
from core.lazy_timer import LazyTimer
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


class Commit(asyncio.Future[None]):
    """The commit of a change. It cannot be cancelled, because it may take effect.

    A task that is cancelled while it awaits the commit gets its `CancelledError` when the commit has ended.
    """

    @override
    def cancel(self, msg: object = None) -> bool:
        """Do nothing."""
        return False


def uncancelled(work: "asyncio.Future[Any]") -> Commit:
    """Return the end of a commit that is done by other code. The code is not cancelled with the task that awaits it."""
    commit = Commit(loop=asyncio.get_running_loop())

    def end(done: "asyncio.Future[Any]") -> None:
        if done.cancelled():
            asyncio.Future.cancel(commit)
        elif (error := done.exception()) is not None:
            commit.set_exception(error)
        else:
            commit.set_result(None)

    work.add_done_callback(end)
    return commit


class Committer(Protocol[Applied_contra]):
    """Commits the groups of one event loop over its own connection."""

    def start(
        self,
        changes: Sequence[Applied_contra],
        done: "Callable[[Outcomes | Exception], None]",
        /,
        *,
        seconds: float | None,
    ) -> bool:
        """Begin to commit the changes within `seconds`, without waiting: `done` is called with the result of `apply`.

        Return False, without an effect, if there is no connection yet. Raises what `apply` raises.
        """
        ...

    async def apply(self, changes: Sequence[Applied_contra], /) -> Outcomes:
        """Commit the changes; return for each None or the exception to raise. Raises `ConnectionLost`."""
        ...

    async def recall(self, changes: Sequence[Applied_contra], /) -> Outcomes | None:
        """Return the outcomes of the changes that were applied last, or None if they were not committed.

        Called after `ConnectionLost`, when the transaction may have been committed. May raise `ConnectionLost` again.
        """
        ...


class _Waiting(NamedTuple, Generic[Change]):
    """A change whose request waits until `deadline`, in seconds of the event loop."""

    change: Change
    commit: Commit
    wait: wait_limit.Wait | None
    deadline: float


class GroupCommit(Generic[Change]):
    """Writer that commits changes in groups, with one committer for each event loop."""

    def __init__(
        self, committer: Callable[[], Committer[Change]], *, pauses: Sequence[float] = _RECONNECT_SECONDS
    ) -> None:
        self._committer = committer
        self._reconnect_seconds = pauses
        self._waits_forever = False
        self._writers = PerLoop(lambda: _LoopWriter(self._committer(), self._pauses, lambda: self._waits_forever))

    def submit(self, change: Change) -> Commit:
        """Queue a change and return its commit. Changes are committed in the order of their submission."""
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
        # The group that is being committed, and the time at which its commit began.
        self._group: Sequence[_Waiting[Change]] = ()
        self._began = 0.0
        # True until the queue is empty: the next group is being committed, or begins with the next pass of the loop.
        self._is_busy = False
        # True if the last group had one change and none was waiting for it.
        self._was_alone = True
        self._task: asyncio.Task[None] | None = None
        self._deadline = LazyTimer(self._give_up)

    def submit(self, change: Change) -> Commit:
        loop = asyncio.get_running_loop()
        commit, wait, deadline = Commit(loop=loop), None, math.inf
        if (limit := wait_limit.current()) is not None:
            wait = wait_limit.Wait()
            seconds = limit.seconds_left + _RECALL_SECONDS
            deadline = loop.time() + seconds
            if self._deadline.due is None or deadline < self._deadline.due:
                self._deadline.start(seconds)
        self._queue.append(_Waiting(change, commit, wait, deadline))
        if not self._is_busy:
            self._is_busy = True
            if self._was_alone:
                self._begin()
            else:
                # With the next pass of the loop, so that the group has all changes of this one.
                loop.call_soon(self._begin)
        return commit

    def _begin(self) -> None:
        """Begin to commit the next group."""
        queue = self._queue
        if not queue:
            # Nothing is waiting, or the requests of all changes have given up.
            self._is_busy = False
            return
        self._group = group = [queue.popleft() for _ in range(min(len(queue), _MAX_BATCH))]
        self._began = time.monotonic()
        lost: ConnectionLost | None = None
        try:
            if self._committer.start([w.change for w in group], self._end, seconds=wait_limit.most_seconds()):
                return
        except ConnectionLost as error:
            lost = error
        except Exception as error:
            self._end(error)
            return
        self._commit_in_task(lost)

    def _end(self, result: Outcomes | Exception) -> None:
        """End the group, or try again in a task if its commit has failed."""
        if isinstance(result, Exception):
            self._commit_in_task(result)
        else:
            self._deliver(result)

    def _commit_in_task(self, error: Exception | None) -> None:
        unrelated = wait_limit.unrelated()
        self._task = asyncio.get_running_loop().create_task(self._commit(error), context=unrelated)

    async def _commit(self, error: Exception | None) -> None:
        outcomes: Outcomes = [ConnectionLost("the commit was interrupted")] * len(self._group)
        try:
            outcomes = await self._outcomes(self._group, error)
        finally:
            # Also if the event loop ends meanwhile: nothing may wait forever.
            self._deliver(outcomes)

    def _deliver(self, outcomes: Outcomes) -> None:
        """Wake the runs that wait for the group, and begin the next one."""
        group, took = self._group, time.monotonic() - self._began
        commit_times.add(took)
        metrics.COMMIT_SIZE.observe(len(group))
        metrics.COMMIT_DURATION.observe(took)
        for waiting, outcome in zip(group, outcomes, strict=True):
            _end(waiting, outcome)
        self._group, self._was_alone = (), len(group) == 1 and not self._queue
        self._begin()

    def _give_up(self) -> None:
        """End the changes whose requests may not wait any longer. One that is being written may take effect."""
        now = asyncio.get_running_loop().time()
        late = [waiting for waiting in (*self._group, *self._queue) if waiting.deadline <= now]
        for waiting in late:
            if waiting in self._queue:
                self._queue.remove(waiting)
            _end(waiting, ConnectionLost("the commit took longer than its request may wait"))
        others = [w.deadline for w in (*self._group, *self._queue) if not w.commit.done() and w.deadline < math.inf]
        if others:
            self._deadline.start(min(others) - now)

    async def _outcomes(self, group: Sequence[_Waiting[Change]], error: Exception | None = None) -> Outcomes:
        """Commit a group; with an `error`, the first attempt to do so has failed."""
        changes = [waiting.change for waiting in group]
        try:
            return await self._apply_connected(changes, error)
        except TransactionCancelled as failed:
            if len(group) == 1:
                return [failed]
            # The group may be too large for a limit of the server; then every attempt would be cancelled.
            logger.warning("the database has cancelled a group of %d commits, which is divided", len(group))
            middle = len(group) // 2
            return [*await self._outcomes(group[:middle]), *await self._outcomes(group[middle:])]
        except Exception as failed:
            # Without a connection, single changes would fail too, each after another wait for the database.
            if len(group) == 1 or isinstance(failed, ConnectionLost):
                return [failed] * len(group)
            # A bad change must not fail the others of its group, so each one gets its own transaction.
            logger.warning("a group commit failed, retrying its changes one by one", exc_info=True)
            return [outcome for waiting in group for outcome in await self._outcomes([waiting])]

    async def _apply_connected(self, changes: Sequence[Change], error: Exception | None) -> Outcomes:
        """Apply the changes, waiting for the database while it is unavailable, for example during a restart.

        With an `error`, the first attempt has failed. If it has lost the connection, it may have been committed.
        """
        if error is not None and not isinstance(error, ConnectionLost):
            raise error
        limit, was_tried = wait_limit.start(), error is not None
        if limit is not None and was_tried:
            limit.use(time.monotonic() - self._began)
        began, pauses, cancelled = time.monotonic(), self._pauses(), 0
        while True:
            if error is None:
                try:
                    with wait_limit.Wait():
                        if was_tried and (outcomes := await self._committer.recall(changes)) is not None:
                            return outcomes
                        was_tried = True
                        return await self._committer.apply(changes)
                except ConnectionLost as failed:
                    error = failed
            if isinstance(error, TransactionCancelled):
                cancelled += 1
                if len(changes) > 1:
                    raise error
                if self._waits_forever() and cancelled >= _MIN_CANCELLED and _since(began) > _CANCELLED_SECONDS:
                    raise ChangeTooLarge(str(error)) from error
            pause = next(pauses, None)
            # If the server does not answer, the time is over before the last pause.
            if pause is None or wait_limit.seconds_left() == 0:
                return await self._last_outcomes(changes, error)
            error = None
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


def _end(waiting: _Waiting[Change], outcome: Exception | None) -> None:
    if waiting.commit.done():
        return
    if waiting.wait is not None:
        waiting.wait.end()
    if outcome is None:
        waiting.commit.set_result(None)
    else:
        waiting.commit.set_exception(outcome)
