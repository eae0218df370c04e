"""A clock for time limits of tests, in seconds of the machine for which they were written.

Work that takes two seconds on an idle machine takes ten on a busy one, and a virtual machine may pause for seconds.
Such seconds count less, or not at all. Ten times a second, a separate process measures the time of a fixed computation,
the number of threads that wait for a processor and its own wake-up latency. In the process of the tests, their own work
would make the machine look slow. Use it for upper limits only: minimum durations are measured with `time.monotonic`.
"""

import atexit
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_STATE = struct.Struct("dd")
_INTERVAL = 0.1
# Any more time than this is the latency of the process.
_LONGEST = 1.1 * _INTERVAL
_STEPS = 12_500
# The seconds of these steps on the machine for which the time limits were written.
_REFERENCE = 0.001
_LOAD = Path("/proc/loadavg")


def machine_time() -> float:
    """Return seconds since any moment, like `time.monotonic`."""
    return _clock().read()


class _Clock:
    """The process that keeps the time, and the memory where it writes it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(_STATE.size)
            shared = file.fileno()
            self._memory = mmap.mmap(shared, _STATE.size)
            self._memory[:] = _STATE.pack(0.0, time.monotonic())
            # `-S`: it needs no packages, whose paths take longer to set up than all the rest.
            command = [sys.executable, "-S", __file__, str(shared), str(os.getpid())]
            self._process = subprocess.Popen(command, pass_fds=[shared])
        self._latest = 0.0
        atexit.register(self._process.kill)

    def read(self) -> float:
        if self._process.poll() is not None:
            raise RuntimeError("the process of the clock has ended")
        counted, written_at = _STATE.unpack(self._memory[:])
        since = min(time.monotonic() - written_at, _LONGEST)
        self._latest = max(self._latest, counted + since)
        return self._latest


_lock = threading.Lock()
_clocks: dict[int, _Clock] = {}


def _clock() -> _Clock:
    with _lock:
        # A forked process is not the parent of the one that keeps the time.
        return _clocks.get(os.getpid()) or _clocks.setdefault(os.getpid(), _Clock())


def _keep_time(memory: mmap.mmap, parent: int) -> None:
    """Write the number of counted seconds and the time of that count until the parent has ended."""
    counted, cores = 0.0, os.cpu_count() or 1
    written_at = time.monotonic()
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
        woken = time.monotonic()
        total = 0
        for step in range(_STEPS):
            total += step
        now = time.monotonic()
        slowness = (now - woken) / _REFERENCE
        # The fourth field, such as "3/512", counts the threads that run or wait for a processor, and all threads. Only
        # Linux has it.
        running = int(_LOAD.read_text().split()[3].partition("/")[0]) if _LOAD.exists() else 1
        counted += min(now - written_at, _LONGEST) / max(1.0, slowness, running / cores)
        written_at = now
        memory[:] = _STATE.pack(counted, written_at)


if __name__ == "__main__":
    _keep_time(mmap.mmap(int(sys.argv[1]), _STATE.size), int(sys.argv[2]))
