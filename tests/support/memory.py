"""Memory of processes."""

import threading
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
