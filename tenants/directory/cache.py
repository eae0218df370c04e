"""Decorator that caches lookups for one to two seconds.

The lifetime is so short that no invalidation is needed: every process notices a revoked key or a changed route within
two seconds. A busy key costs each process one or two queries per second.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Generic, TypeVar

from core.db import wait_limit
from core.db.db_threads import in_db_thread

CACHE_SECONDS = 1.0
# On event loops, results are used longer, because a lookup takes 30 to 100 ms in a busy process: its thread
# waits for the interpreter lock after each query. The documented maximum is two seconds, including the lookup itself.
LONGEST_USE_SECONDS = 1.8
# The seconds after which a result is looked up again: the first value if the result was used in the meantime,
# otherwise at the first use after the second value.
_RENEWAL_SECONDS, _LATE_RENEWAL_SECONDS = 0.9, 1.2
# Bounds memory when clients send many unknown keys or model names.
MAX_ENTRIES = 10_000

Found = TypeVar("Found")


class CachedLookup(Generic[Found]):
    """Decorator that caches the results of a lookup by strings, including None, for `CACHE_SECONDS`."""

    def __init__(self, look_up: Callable[..., Found]) -> None:
        self._look_up = look_up
        # Each result with the time at which its lookup began: it may miss any later change.
        self._entries: dict[tuple[str, ...], tuple[float, Found]] = {}
        self._lock = threading.Lock()
        # Names that were used on an event loop since their last lookup.
        self._used: set[tuple[str, ...]] = set()
        self._active: dict[tuple[object, ...], asyncio.Task[Found]] = {}

    def __call__(self, *name: str) -> Found:
        entry = self._entries.get(name)
        if entry is not None and time.monotonic() - entry[0] < CACHE_SECONDS:
            return entry[1]
        return self._renew(*name)

    def _renew(self, *name: str) -> Found:
        began = time.monotonic()
        found = self._look_up(*name)
        self.remember(found, *name, at=began)
        return found

    def remember(self, found: Found, *name: str, at: float) -> None:
        """Store a result that another lookup has read as well. `at` is the monotonic time when that lookup began."""
        with self._lock:
            # Clearing everything is cheap: entries live for a second anyway.
            if len(self._entries) >= MAX_ENTRIES:
                self._entries.clear()
                self._used.clear()
            if name not in self._entries or self._entries[name][0] <= at:
                self._entries[name] = (at, found)

    def missing(self, names: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Return the names whose results are not cached."""
        after = time.monotonic() - CACHE_SECONDS
        return {name for name in names if name not in self._entries or self._entries[name][0] <= after}

    async def aget(self, *name: str) -> Found:
        """Return the result on the event loop. Only a miss starts a lookup in a thread, shared by concurrent callers.

        A result that is in use is looked up again before it expires; callers get the old result in the meantime.
        """
        entry = self._entries.get(name)
        age = LONGEST_USE_SECONDS if entry is None else time.monotonic() - entry[0]
        if entry is not None and age < LONGEST_USE_SECONDS:
            self._used.add(name)
            if age > _LATE_RENEWAL_SECONDS:
                _ = self._renewed(name)
            return entry[1]
        # Shielded: a client that disconnects must not cancel the lookup that others wait for.
        return await wait_limit.within_limit(asyncio.shield(self._renewed(name)))

    def _renewed(self, name: tuple[str, ...]) -> "asyncio.Task[Found]":
        loop = asyncio.get_running_loop()
        active = self._active.get((loop, *name))
        if active is None:
            self._used.discard(name)
            lookup = in_db_thread(lambda: self._renew(*name))
            active = self._active[loop, *name] = loop.create_task(lookup, context=wait_limit.separate())
            active.add_done_callback(partial(self._ended, loop, name))
        return active

    def _ended(self, loop: asyncio.AbstractEventLoop, name: tuple[str, ...], lookup: "asyncio.Task[Found]") -> None:
        del self._active[loop, *name]
        # `exception()` marks the exception as retrieved, because perhaps no caller waits for it any more. The next
        # lookup raises its own exception.
        if not lookup.cancelled() and lookup.exception() is None:
            loop.call_later(_RENEWAL_SECONDS, self._renew_if_used, name, context=Context())

    def _renew_if_used(self, name: tuple[str, ...]) -> None:
        # Unused results are not renewed, so there are no more lookups than uses.
        if name in self._used:
            _ = self._renewed(name)
