"""Waiting for a state that another process causes."""

import time
from collections.abc import Callable
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
