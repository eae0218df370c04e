"""Group commit: changes that many runs submit at the same time are committed in one transaction.

A run awaits the commit of its change, so a change is durable before its event is sent; only the fixed costs of a
transaction (round trips, fsync, Python's overhead) are shared. One thread writes, with its own connection.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Generic, TypeVar

from django.db import connection
from django.db.utils import InterfaceError, OperationalError

logger = logging.getLogger(__name__)
Change = TypeVar("Change")
Outcomes = Sequence[Exception | None]
Apply = Callable[[Sequence[Change]], Outcomes]
# Bounds the duration of a transaction, and the work that is repeated when one fails.
_MAX_BATCH = 256
# Eight seconds in total: long enough for a restart of PostgreSQL.
_RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0)


@dataclass(slots=True)
class _Waiting(Generic[Change]):
    change: Change
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class GroupCommit(Generic[Change]):
    """Writer that commits changes in batches.

    `apply` commits a batch and returns for each change None or the exception to raise. A connection may break between
    a commit and its confirmation. `recall` then gets the same batch on a new connection and returns the outcomes of the
    commit, or None if it did not happen. Without `recall` the batch is repeated.
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
        with self._start:
            # Two event loops may submit their first changes at the same time.
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name=self._name, daemon=True)
                self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Waiting(change, loop, future))
        return future

    def wait_forever(self) -> None:
        """Wait for an unavailable database without a limit; for workers, whose runs no client is waiting for."""
        self._waits_forever = True

    def _write(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MAX_BATCH:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            _resolve(batch, self._outcomes(batch))

    def _outcomes(self, batch: list[_Waiting[Change]]) -> Outcomes:
        changes = [waiting.change for waiting in batch]
        try:
            return self._apply_connected(changes)
        except Exception as error:
            # Without a connection single changes would fail as well, each after waiting for the database again.
            if len(batch) == 1 or connection.connection is None or connection.connection.closed:
                return [error] * len(batch)
            # A bad change must not fail the others of its batch, so each one gets its own transaction.
            logger.warning("a group commit failed, retrying its changes one by one", exc_info=True)
            return [outcome for waiting in batch for outcome in self._outcomes([waiting])]

    def _apply_connected(self, changes: Sequence[Change]) -> Outcomes:
        """Apply the changes, waiting for the database while it is unavailable, for example during a restart."""
        was_tried = False
        pauses = chain(self._reconnect_seconds, repeat(self._reconnect_seconds[-1]) if self._waits_forever else ())
        while True:
            try:
                connection.ensure_connection()
                if was_tried and (outcomes := self._recall(changes)) is not None:
                    return outcomes
                was_tried = True
                return self._apply(changes)
            except (OperationalError, InterfaceError):
                # With an open connection the error is about the changes (a deadlock, a timeout), not the connection.
                is_open = connection.connection is not None and not connection.connection.closed
                if is_open or (pause := next(pauses, None)) is None:
                    raise
                connection.close()
                threading.Event().wait(pause)


def _resolve(batch: Sequence[_Waiting[Change]], outcomes: Sequence[Exception | None]) -> None:
    # `call_soon_threadsafe` wakes an event loop through a socket, so each loop is called once for all of its futures.
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for waiting, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, results in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_set_results, results)


def _set_results(results: list[tuple["asyncio.Future[None]", Exception | None]]) -> None:
    for future, outcome in results:
        # The run was cancelled while it was waiting.
        if future.done():
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
