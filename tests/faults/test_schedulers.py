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
from tests.support.deployment import RECOVERY_SECONDS
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
        output = self.output
        return output.rfind(_ACTIVE) > output.rfind(_STANDS_BY)


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
            # The lock of a killed one expires after five seconds.
            eventually(lambda: second.is_active, seconds=RECOVERY_SECONDS)
            assert broker.ttl("platform:beat") > 0


def test_only_one_is_active_after_a_pause(servers: PrivateServers) -> None:
    broker = redis.Redis.from_url(servers.redis_url)
    broker.delete("platform:beat")
    with running() as first:
        eventually(lambda: first.is_active, seconds=60)
        with running() as second:
            eventually(lambda: _STANDS_BY in second.output, seconds=60)
            first.process.send_signal(signal.SIGSTOP)
            eventually(lambda: second.is_active, seconds=RECOVERY_SECONDS)
            first.process.send_signal(signal.SIGCONT)
            # It has lost the lock, and does not get it again.
            eventually(lambda: not first.is_active, seconds=RECOVERY_SECONDS)
            assert second.is_active
            # Redis loses its data: either may get the lock, but not both.
            broker.delete("platform:beat")
            eventually(lambda: broker.exists("platform:beat"), seconds=RECOVERY_SECONDS)
            eventually(lambda: first.is_active != second.is_active, seconds=RECOVERY_SECONDS)
