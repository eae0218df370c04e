"""Long-running work in a separate thread, which stops when its task is cancelled.

The threads for database queries are few and shared by all runs, so minutes of work must not occupy one of them.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from django.db import connections

Row = TypeVar("Row")


class _StopRequested(Exception):
    """The task that waits for the work was cancelled."""


class StopSignal:
    """Request to stop, which the work checks at every row. Threads cannot be cancelled from outside."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Request to stop."""
        self._event.set()

    def unless_set(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows until a stop is requested."""
        for row in rows:
            if self._event.is_set():
                raise _StopRequested
            yield row


async def run_in_thread(work: Callable[[StopSignal], None]) -> None:
    """Run the work in a thread. If the task is cancelled, the work stops at its next row."""
    stop = StopSignal()
    try:
        await asyncio.to_thread(_run, work, stop)
    except asyncio.CancelledError:
        stop.set()
        raise


def _run(work: Callable[[StopSignal], None], stop: StopSignal) -> None:
    try:
        work(stop)
    except _StopRequested:
        return
    finally:
        # Django opens a connection per thread and closes it at the end of a request, which never comes here.
        connections.close_all()
