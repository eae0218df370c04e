"""Computations for the tests of their pool."""

import ctypes
import os
import resource
import signal
import time

from core.compute.pool import Computation


def computation(name: str, *, cpu_seconds: int = 1, seconds: float = 2.0, result: int = 1024) -> Computation:
    """Return a computation of this module with small limits."""
    return Computation(
        function=f"{__name__}:{name}", cpu_seconds=cpu_seconds, seconds=seconds, memory=256 * 1024 * 1024, result=result
    )


def echo(text: str) -> bytes:
    """Return the text."""
    return text.encode()


def sleep(seconds: float) -> bytes:
    """Wait without using CPU."""
    time.sleep(seconds)
    return b"slept"


def spin() -> bytes:
    """Use the CPU without end."""
    while True:
        pass


def grow() -> bytes:
    """Allocate memory without end."""
    taken = []
    while True:
        taken.append(bytearray(1024 * 1024))


def crash() -> bytes:
    """Read an invalid address."""
    return ctypes.string_at(0)


def write_much(size: int) -> bytes:
    """Return many bytes."""
    return bytes(size)


def fail() -> bytes:
    """Raise an exception."""
    raise ZeroDivisionError


def kill_once(path: str) -> bytes:
    """Kill this process as the kernel does when memory runs out, unless the file at the path was removed before."""
    if os.path.exists(path):  # noqa: PTH110
        os.unlink(path)  # noqa: PTH108
        os.kill(os.getpid(), signal.SIGKILL)
    return b"second"


def kill() -> bytes:
    """Kill this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def limits() -> bytes:
    """Return limits of the process, its niceness and its environment."""
    kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)
    return repr([*(resource.getrlimit(kind)[1] for kind in kinds), os.nice(0), dict(os.environ)]).encode()


def process_id(path: str) -> bytes:
    """Write the id of the process to a pipe, and wait."""
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return sleep(60)
