"""One limit for all the time that a request waits for the database: for threads, connections, statements and commits.

With a limit for each of these waits, a client could wait several times as long for its 503.
"""

import asyncio
import time
from collections.abc import Awaitable
from contextvars import Context, ContextVar, copy_context
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar

from django.db import OperationalError

Result = TypeVar("Result")
# Shorter waits do not count: a run of an hour may have thousands of them, between two bytes that its client gets.
_SHORT_SECONDS = 0.1


class WaitLimit:
    """The limit of a request. Its waits may overlap and are measured in several threads."""

    def __init__(self, seconds: float) -> None:
        self.has_ended = False
        self._seconds = seconds
        self._used = 0.0
        self._waits = 0
        self._since = 0.0
        self._lock = Lock()

    @property
    def seconds_left(self) -> float:
        """The time that the request may still wait."""
        with self._lock:
            waiting = time.monotonic() - self._since if self._waits else 0.0
            return max(self._seconds - self._used - waiting, 0.0)

    def renew(self) -> None:
        """Restart the limit, because the client was sent something or the request has made progress."""
        with self._lock:
            self._used, self._since = 0.0, time.monotonic()

    def use(self, seconds: float) -> None:
        """Count a wait that has ended already."""
        with self._lock:
            self._used += seconds

    def begin(self) -> None:
        """Count the time from now on; `finish` must follow."""
        with self._lock:
            if not self._waits:
                self._since = time.monotonic()
            self._waits += 1

    def finish(self) -> None:
        """End a wait that has begun."""
        with self._lock:
            self._waits -= 1
            took = time.monotonic() - self._since
            if not self._waits and took >= _SHORT_SECONDS:
                self._used += took


class Wait:
    """A wait for the database, which counts until `end`, or until the end of a `with` block."""

    def __init__(self) -> None:
        self._limit = current()
        if self._limit is not None:
            self._limit.begin()

    def end(self) -> None:
        """Stop counting. May be called again, without effect."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


_current: ContextVar[WaitLimit | None] = ContextVar("wait_limit", default=None)
_seconds: float | None = None


def limit_waits(seconds: float | None) -> None:
    """Limit the time that each request of this process waits for the database. Used in web processes."""
    global _seconds  # noqa: PLW0603 - set once, when a web process starts
    _seconds = seconds


def start() -> WaitLimit | None:
    """Give the current task its own limit, if the process limits waits."""
    limit = None if _seconds is None else WaitLimit(_seconds)
    _current.set(limit)
    return limit


def current() -> WaitLimit | None:
    """Return the limit of the request that the current code works for."""
    limit = _current.get()
    return None if limit is None or limit.has_ended else limit


def seconds_left() -> float | None:
    """Return the time that the current code may wait, or None without a limit."""
    limit = current()
    return _seconds if limit is None else limit.seconds_left


def most_seconds() -> float | None:
    """Return the time that a request of this process may wait in all, or None without a limit."""
    return _seconds


def separate() -> Context:
    """Return a context for a task that serves several requests: it has a limit of its own."""
    context = copy_context()
    context.run(start)
    return context


def unrelated() -> Context:
    """Return a context for a task that outlives the request that starts it: each of its waits has the full limit."""
    context = copy_context()
    context.run(_current.set, None)
    return context


async def within_limit(work: Awaitable[Result]) -> Result:
    """Await `work`, which waits for the database. Raises `OperationalError` after the time that is left."""
    left = seconds_left()
    with Wait():
        try:
            async with asyncio.timeout(left) as timer:
                return await work
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise OperationalError("the database did not answer in the time of the request") from error
