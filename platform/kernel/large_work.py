"""Work on large requests, which runs in a thread so that the event loop keeps serving the others.

Most functions between the body and the upstream take microseconds for an ordinary request, and up to half a second for
9 MB of text or 2,000 items. `note_size` marks a request as large; from then on, everything that the request passes to
`off_loop` leaves the event loop.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

Result = TypeVar("Result")
# Validation of 128 KiB takes up to 5 ms. A thread costs 0.1 ms.
LARGE_BYTES = 128 * 1024
# Python's default of 5 ms is how long the event loop waits for the interpreter lock after each of its system calls,
# while the thread works: deltas of 50 paced streams were up to 140 ms late beside 9 MB of text, and 50 ms with this.
_SWITCH_SECONDS = 0.0002
# One thread: several would share one interpreter lock, and hold the objects of several bodies at once.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-requests")
_is_large: ContextVar[bool] = ContextVar("_is_large", default=False)


def note_size(size: int) -> None:
    """Note the size of the current request or of its context, in bytes; tasks that it starts inherit the note."""
    _is_large.set(size >= LARGE_BYTES)


def is_large() -> bool:
    """Return true if the current request was noted as large."""
    return _is_large.get()


async def off_loop(call: Callable[[], Result]) -> Result:
    """Return the result of a call, which runs in a thread if the current request is large.

    The call must neither query the database nor wait for anything.
    """
    if not _is_large.get():
        return call()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, copy_context().run, _with_short_turns, call)


def _with_short_turns(call: Callable[[], Result]) -> Result:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return call()
    finally:
        sys.setswitchinterval(interval)
