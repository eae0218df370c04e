"""Locks for the network interfaces of this machine, shared by all processes and runs of tests.

Chromium aborts all its requests, those on loopback too, when an address of any interface appears or disappears, so that
a page lacks one of its scripts. No test may add or remove an address while another test uses a browser.
"""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unchanged() -> Iterator[None]:
    """Prevent other tests from changing the addresses of interfaces inside the block."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextmanager
def changing() -> Iterator[None]:
    """Wait until no test needs unchanged interfaces, and keep such tests waiting inside the block."""
    with _locked(fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(how: int) -> Iterator[None]:
    directory = Path(tempfile.gettempdir())
    with (directory / "interfaces.queue").open("w") as queue, (directory / "interfaces.lock").open("w") as lock:
        # A test that waits to change them prevents others from starting before it.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(lock, how)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield
