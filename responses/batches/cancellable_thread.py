"""Long work of a batch in a thread of its own, not in one of the few that all runs share for their queries."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from django.db import connections

Row = TypeVar("Row")


class _Halted(Exception):
    """Nobody waits for the work any more."""


class StopSignal:
    """Tells the work that nobody waits for it any more: a process that stops does not wait for minutes."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Stop the work at its next row."""
        self._event.set()

    def unless_set(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, as long as somebody waits."""
        for row in rows:
            if self._event.is_set():
                raise _Halted
            yield row


async def in_thread(work: Callable[[StopSignal], None]) -> None:
    """Do the work, and let its database connection go. Cancelled, it stops at the next row that it looks at."""
    halt = StopSignal()
    try:
        await asyncio.to_thread(_do, work, halt)
    except asyncio.CancelledError:
        halt.set()
        raise


def _do(work: Callable[[StopSignal], None], halt: StopSignal) -> None:
    try:
        work(halt)
    except _Halted:
        return
    finally:
        connections.close_all()
