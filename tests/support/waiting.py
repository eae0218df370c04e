"""Waits for states that another process brings about."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], *, seconds: float = 5.0) -> Found:
    """What `look` finds, once it is true; fails with the last thing that it found."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
        time.sleep(0.01)
    return found
