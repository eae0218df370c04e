"""Counts that are added up in memory and written every few seconds, so that a flood costs one write for each key.

A process that ends may lose the counts of its last two seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from django.db import Error as DatabaseError
from django.db import connections

logger = logging.getLogger(__name__)
WRITE_EVERY_SECONDS = 2.0
# Bounds memory while the database is away, and the rows that a flood of different keys can write.
MAX_ENTRIES = 10_000
Key = TypeVar("Key")


class DeferredCounts(Generic[Key]):
    """Counts by key. `write` stores those that have been added since the last call, and may raise `DatabaseError`."""

    def __init__(self, write: Callable[[Mapping[Key, int]], None], *, name: str) -> None:
        self._write = write
        self._name = name
        self._waiting: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._added = threading.Event()
        self._writer: threading.Thread | None = None

    def add(self, key: Key) -> bool:
        """Count one more of this key; it is written soon. Return false if there are too many different keys."""
        with self._lock:
            is_kept = len(self._waiting) < MAX_ENTRIES or key in self._waiting
            if is_kept:
                self._waiting[key] = self._waiting.get(key, 0) + 1
            self._added.set()
            if self._writer is None or not self._writer.is_alive():
                # A thread, because processes without an event loop count too. One for all writes, because the
                # connection of each thread is a cycle of objects that only the garbage collector frees.
                self._writer = threading.Thread(target=self._write_often, name=self._name, daemon=True)
                self._writer.start()
        return is_kept

    def write(self) -> None:
        """Write the counts that are waiting."""
        with self._lock:
            counts, self._waiting = self._waiting, {}
        if not counts:
            return
        try:
            self._write(counts)
        except DatabaseError:
            logger.warning("%d %s could not be written", len(counts), self._name)
            with self._lock:
                for key, count in counts.items():
                    self._waiting[key] = self._waiting.get(key, 0) + count

    def _write_often(self) -> None:
        while True:
            self._added.wait()
            time.sleep(WRITE_EVERY_SECONDS)
            self._added.clear()
            try:
                self.write()
            finally:
                connections.close_all()
