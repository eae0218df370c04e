"""Memory of processes."""

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

import psutil


class MemoryMeter:
    """Measures the peak memory of a process during a block, in addition to what it used before."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self.most = 0

    def __enter__(self) -> Self:
        self._before = self._process.memory_info().rss
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, self._process.memory_info().rss - self._before)


class ProcessTreeMeter:
    """Measures the most descendants of a process during a block, and the memory that all take in addition."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self.most_processes = 0
        self.most_bytes = 0

    def __enter__(self) -> Self:
        self._before = self._size([self._process])
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            with suppress(psutil.NoSuchProcess):
                children = self._process.children(recursive=True)
                self.most_processes = max(self.most_processes, len(children))
                self.most_bytes = max(self.most_bytes, self._size([self._process, *children]) - self._before)

    @staticmethod
    def _size(processes: Iterable[psutil.Process]) -> int:
        size = 0
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                size += process.memory_info().rss
        return size
