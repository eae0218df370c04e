"""Work on large requests, which runs in a thread so that the event loop keeps serving other requests.

Most functions between the body and the upstream take microseconds for an ordinary request, and up to half a second for
9 MB of text or 2,000 items. `note_size` and `note_document` mark a request as large; from then on, every call that the
request passes to `off_loop` runs in the thread.
"""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from enum import IntEnum
from io import BytesIO
from typing import TypeVar

Result = TypeVar("Result")
# A request has a dozen calls, each of which takes 0.1 ms more in the thread, and all requests wait for the same thread.
LARGE_BYTES = 128 * 1024
HUGE_BYTES = 512 * 1024
# Texts and numbers in arrays. English text has fifteen commas in a KiB.
_MANY_COMMAS = 8_000
# Messages, calls and their outputs. 2,500 messages of two letters, in 90 KB, made deltas of other streams 70 ms late.
_MANY_OBJECTS = 250
# Has at most so many objects, whatever they are: most requests are not searched for them.
_FEW_BYTES = 8 * 1024
# With Python's default, the event loop waits 5 ms for the interpreter lock after each of its system calls while the
# thread works: deltas of 50 paced streams were up to 140 ms late beside 9 MB of text. Beside a thread that is always
# busy, on two loaded cores, a timer of the event loop is 12.6 ms late at the median with 5 ms, 3.2 ms with 0.5 ms and
# 1.3 ms with this.
_SWITCH_SECONDS = 0.0002
# New objects between two garbage collections, each of which keeps the interpreter lock: with the server's 50,000, one
# takes 10 to 20 ms while 2,000 messages are converted, and 2 ms with this.
_GC_OBJECTS = 5_000
# The longest calls take 15 ms: to join or to write a string of 20 MB.
_LONGEST_PAUSE = 0.015
# One thread: several would share one interpreter lock, and hold the objects of several bodies at once.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-requests")


class Weight(IntEnum):
    """Weight of a request."""

    USUAL = 0
    LONG = 1
    """Its text is long, but has little structure: work on it is short, only its storage takes time."""
    LARGE = 2


_weight: ContextVar[Weight] = ContextVar("_weight", default=Weight.USUAL)


def note(weight: Weight) -> None:
    """Note the weight of the current request, and of the tasks that it starts."""
    # Each copy of a context in which the variable was set takes 4 KB more, and a stream has several.
    if weight != _weight.get():
        _weight.set(weight)


def note_size(size: int) -> None:
    """Note the weight of a request, or of its context, by its size in bytes."""
    note(Weight.LARGE if size >= LARGE_BYTES else Weight.USUAL)


def note_document(document: bytes) -> None:
    """Note the weight of a request whose body is this JSON.

    Text without much structure, such as a prompt of 50,000 tokens, is large only from 512 KiB on. Thousands of short
    messages are large, however few bytes they have.
    """
    size = len(document)
    if size < _FEW_BYTES:
        note(Weight.USUAL)
    elif size >= HUGE_BYTES or document.count(b",") >= _MANY_COMMAS or document.count(b"{") >= _MANY_OBJECTS:
        note(Weight.LARGE)
    else:
        note(Weight.LONG if size >= LARGE_BYTES else Weight.USUAL)


def weight() -> Weight:
    """Return the weight of the current request."""
    return _weight.get()


def is_large() -> bool:
    """Return true if the current request was noted as large."""
    return _weight.get() is Weight.LARGE


async def off_loop(call: Callable[[], Result]) -> Result:
    """Return the result of a call, which runs in a thread if the current request is large.

    The call must neither query the database nor wait for anything.
    """
    return await in_thread(call) if _weight.get() is Weight.LARGE else call()


async def in_thread(call: Callable[[], Result]) -> Result:
    """Run a call in the thread, whatever the size of the request, and return its result. See `off_loop`."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, copy_context().run, _with_short_turns, call)


def _with_short_turns(call: Callable[[], Result]) -> Result:
    with short_turns():
        return call()


class _Turns(threading.local):
    """The depth of nested `short` blocks in the current thread, and the time of the thread's last pause."""

    users = 0
    began = 0.0


class _ShortTurns:
    """Settings of the interpreter that let other threads run soon, and the number of blocks that need them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._usual = 0.0
        self._usual_thresholds = (0, 0, 0)
        self._turns = _Turns()

    @property
    def are_short(self) -> bool:
        """True if the current thread is inside a block of `short`."""
        return self._turns.users > 0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Let the event loop wait only briefly for the interpreter lock while the block runs in this thread."""
        turns = self._turns
        with self._lock:
            if not self._users:
                self._usual, self._usual_thresholds = sys.getswitchinterval(), gc.get_threshold()
                sys.setswitchinterval(_SWITCH_SECONDS)
                objects, collections, oldest = self._usual_thresholds
                if objects > _GC_OBJECTS:
                    # Objects that survived are examined again after the usual number of new objects.
                    gc.set_threshold(_GC_OBJECTS, collections * objects // _GC_OBJECTS, oldest)
            self._users += 1
        turns.users += 1
        turns.began = time.perf_counter()
        try:
            yield
        finally:
            turns.users -= 1
            with self._lock:
                self._users -= 1
                if not self._users:
                    sys.setswitchinterval(self._usual)
                    gc.set_threshold(*self._usual_thresholds)

    def pause(self) -> None:
        """Let the event loop catch up, after a call that keeps the interpreter lock for more than a millisecond.

        Sleeps as long as the thread has worked since its last pause. Does nothing outside of `short_turns`, so that it
        never delays an event loop.
        """
        # Without pauses, the event loop gets one switch interval between two such calls, and cannot keep up: deltas
        # were up to 48 ms late while an image of 20 MB was checked in pieces of 2 ms.
        turns = self._turns
        if turns.users:
            time.sleep(min(time.perf_counter() - turns.began, _LONGEST_PAUSE))
            turns.began = time.perf_counter()


_short_turns = _ShortTurns()
short_turns = _short_turns.short
pause = _short_turns.pause


def has_short_turns() -> bool:
    """Return true in the block of `short_turns`: work that can be done in steps should pause between them."""
    return _short_turns.are_short


def join_pieces(pieces: Iterable[bytes | memoryview], *, size: int) -> bytes:
    """Join pieces of about `size` bytes in total; an exact size is fastest."""
    # `bytes.join` of 20 MB keeps the interpreter lock for 9 to 14 ms, mostly because it uses new pages of memory. Here
    # most new pages are used for the first time when a piece is written, which takes up to 1 ms.
    content = BytesIO(bytes(size))
    for piece in pieces:
        content.write(piece)
    content.truncate()
    return content.getvalue()
