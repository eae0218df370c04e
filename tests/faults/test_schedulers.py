"""Several `manage.py beat`: one is active, and another takes over when it dies."""

import signal

import pytest
import redis

from launcher.testing import PrivateServers
from tests.support.deployment import RECOVERY_SECONDS
from tests.support.sampling import rest_at_night
from tests.support.schedulers import running_scheduler
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", rest_at_night([signal.SIGKILL, signal.SIGTERM], first=1))
def test_another_scheduler_takes_over(how: signal.Signals, servers: PrivateServers) -> None:
    broker = redis.Redis.from_url(servers.redis_url)
    broker.delete("platform:beat")
    with running_scheduler() as first:
        eventually(lambda: first.is_active, seconds=60)
        with running_scheduler() as second:
            # It starts while the first one keeps renewing its lock.
            eventually(lambda: second.stands_by, seconds=60)
            assert not second.is_active
            first.process.send_signal(how)
            first.process.wait(30)
            # The lock of a killed scheduler expires after five seconds.
            eventually(lambda: second.is_active, seconds=RECOVERY_SECONDS)
            assert broker.ttl("platform:beat") > 0


@pytest.mark.nightly
def test_only_one_scheduler_is_active_after_a_pause(servers: PrivateServers) -> None:
    broker = redis.Redis.from_url(servers.redis_url)
    broker.delete("platform:beat")
    with running_scheduler() as first:
        eventually(lambda: first.is_active, seconds=60)
        with running_scheduler() as second:
            eventually(lambda: second.stands_by, seconds=60)
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
