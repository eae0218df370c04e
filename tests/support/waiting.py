"""Waiting for a state that another process causes."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

Found = TypeVar("Found")


PATIENCE = 120.0
"""Seconds that a test waits for what takes seconds on an idle machine. Longer waits only end a test that hangs."""


def eventually(look: Callable[[], Found], *, seconds: float = PATIENCE) -> Found:
    """Call `look` until its result is truthy and return it. Fails with the last result."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
        time.sleep(0.01)
    return found


def half_a_second(request: Callable[[], object]) -> timedelta:
    """Return half a second or, if that is more, the time of ten calls of `request`: busy machines take long for all."""
    began = time.monotonic()
    for _ in range(10):
        request()
    return max(timedelta(milliseconds=500), timedelta(seconds=time.monotonic() - began))
