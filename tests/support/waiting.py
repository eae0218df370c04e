"""Waiting for a state that another process causes."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from tests.support.machine_clock import machine_time

Found = TypeVar("Found")


HANGS_AFTER = 600.0
"""Seconds of the clock on the wall after which a program or a connection hangs, however slow the machine is."""
PATIENCE = 120.0
"""Seconds that a test waits for what takes seconds on an idle machine. Longer waits only end a test that hangs."""


def eventually(look: Callable[[], Found], *, seconds: float = PATIENCE) -> Found:
    """Call `look` until its result is truthy and return it. Fails with the last result."""
    began = machine_time()
    while not (found := look()):
        waited = machine_time() - began
        assert waited < seconds, f"still {found!r} after {seconds} s"
        # Most calls send requests or queries. A hundred per second would take CPU time from the awaited work.
        time.sleep(min(max(0.01, waited / 20), 0.1))
    return found


def half_a_second(request: Callable[[], object]) -> timedelta:
    """Return half a second or, if that is more, the time of a hundred calls of `request`.

    An update within half a second passes through five processes, each of which waits for a processor on a busy machine.
    The updates are measured by the database, so the limit is in seconds of the wall clock too.
    """
    began = time.monotonic()
    for _ in range(100):
        request()
    return max(timedelta(milliseconds=500), timedelta(seconds=time.monotonic() - began))
