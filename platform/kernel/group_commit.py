"""Group commit: what many runs want to write at the same moment becomes one transaction.

A run awaits the commit of its change, so durability comes before the event as ever; only the fixed costs of a
transaction (round trips, the fsync, Python's own) are shared. One thread writes, with one connection of its own.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db import connection
from django.db.utils import InterfaceError, OperationalError

logger = logging.getLogger(__name__)
Change = TypeVar("Change")
Outcomes = Sequence[Exception | None]
Apply = Callable[[Sequence[Change]], Outcomes]
_MAX_BATCH = 256
_RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0)


@dataclass(slots=True)
class _Waiting(Generic[Change]):
    change: Change
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class GroupCommit(Generic[Change]):
    """Writes changes in batches. `apply` gets a batch, commits it, and says for each change None or what it raises.

    A connection may break between a commit and its answer. Then `recall` gets the same batch, on a new connection, and
    says what `apply` would have said, or None: nothing of it was committed. Without it the batch is just repeated.
    """

    def __init__(
        self,
        apply: Apply[Change],
        *,
        name: str,
        recall: Callable[[Sequence[Change]], Outcomes | None] | None = None,
        pauses: Sequence[float] = _RECONNECT_SECONDS,
    ) -> None:
        self._apply = apply
        self._recall = recall or (lambda _: None)
        self._name = name
        self._reconnect_seconds = pauses
        self._waits_forever = False
        self._queue: queue.SimpleQueue[_Waiting[Change]] = queue.SimpleQueue()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, change: Change) -> "asyncio.Future[None]":
        """Queue a change; changes are committed in the order of their submission. Await the future for the commit."""
        if self._thread is None:
            self._begin()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Waiting(change, loop, future))
        return future

    def wait_forever(self) -> None:
        """From now on wait for the database for as long as it is away; for a process whose runs nobody waits for."""
        self._waits_forever = True

    def _begin(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name=self._name, daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MAX_BATCH:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            _answer(batch, self._outcomes(batch))

    def _outcomes(self, batch: list[_Waiting[Change]]) -> Outcomes:
        changes = [waiting.change for waiting in batch]
        try:
            return self._apply_connected(changes)
        except Exception as error:
            # Without a connection nobody would fare better alone, and each would wait as long again.
            if len(batch) == 1 or connection.connection is None or connection.connection.closed:
                return [error] * len(batch)
            # One bad change must not fail its neighbours: alone, each of them succeeds or fails for itself.
            logger.warning("a group commit failed and is repeated one by one", exc_info=True)
            return [outcome for waiting in batch for outcome in self._outcomes([waiting])]

    def _apply_connected(self, changes: Sequence[Change]) -> Outcomes:
        """Apply; where the database is away for a moment (a restart), wait for it."""
        was_tried = False
        pauses = self._pauses()
        while True:
            try:
                connection.ensure_connection()
                if was_tried and (outcomes := self._recall(changes)) is not None:
                    return outcomes
                was_tried = True
                return self._apply(changes)
            except (OperationalError, InterfaceError):
                is_open = connection.connection is not None and not connection.connection.closed
                if is_open or (pause := next(pauses, None)) is None:
                    raise
                connection.close()
                threading.Event().wait(pause)

    def _pauses(self) -> Iterator[float]:
        yield from self._reconnect_seconds
        while self._waits_forever:
            yield self._reconnect_seconds[-1]


def _answer(batch: Sequence[_Waiting[Change]], outcomes: Sequence[Exception | None]) -> None:
    """Wake the waiting runs, with one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for waiting, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, answers in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: list[tuple["asyncio.Future[None]", Exception | None]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
