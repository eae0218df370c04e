"""Several `manage.py beat`: one is active, and another takes over when it dies."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from launcher.testing import PrivateServers
from tests.servers import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
_ACTIVE = "this scheduler is active"
_STANDS_BY = "another scheduler is active; this one stands by"


class Scheduler:
    """A running `manage.py beat`."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "manage.py", "beat"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ), stdout=self._output, stderr=subprocess.STDOUT
        )

    @property
    def output(self) -> str:
        """Return its output so far."""
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    @property
    def is_active(self) -> bool:
        """True if it sends tasks."""
        return _ACTIVE in self.output


@contextmanager
def running() -> Iterator[Scheduler]:
    """Run a scheduler until the end of the block."""
    scheduler = Scheduler()
    try:
        yield scheduler
    finally:
        scheduler.process.kill()
        scheduler.process.wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_another_scheduler_takes_over(how: signal.Signals, servers: PrivateServers) -> None:
    broker = redis.Redis.from_url(servers.redis_url)
    broker.delete("platform:beat")
    with running() as first:
        eventually(lambda: first.is_active, seconds=60)
        with running() as second:
            # It starts while the first one keeps renewing its lock.
            eventually(lambda: _STANDS_BY in second.output, seconds=60)
            assert not second.is_active
            first.process.send_signal(how)
            first.process.wait(30)
            eventually(lambda: second.is_active, seconds=60)
            assert broker.ttl("platform:beat") > 0
