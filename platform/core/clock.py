"""The clock: services read it once and pass the time on as a value.

All processes follow the clock of the database. Otherwise a process on a machine with the wrong time would delete data
too early, expire valid links and files, or store times that mislead other processes.
"""

import time
from collections import deque
from datetime import UTC, datetime, timedelta

# Larger differences are not explained by the time that the database took to answer.
_STEP_SECONDS = 2.0


def unix(moment: datetime) -> int:
    """Return whole Unix seconds, the format of every `created_at` of the API."""
    return int(moment.timestamp())


def uptime() -> float:
    """Return the seconds since this machine was started, including the time when it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedClock:
    """A process's estimate of the database's clock.

    Between two calls of `set` it advances with `uptime`, which cannot be changed. So a jump of this machine's clock
    does not end leases.
    """

    def __init__(self) -> None:
        # This machine's time is used until the database's time is known. Processes refuse to start if they differ much.
        self._offset = time.time() - uptime()
        self.is_known = False
        """True once the database's time is known."""
        # When the clock was set, and by how many seconds.
        self._steps: deque[tuple[float, float]] = deque(maxlen=10)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        # Without `uptime`: a request reads the clock some twenty times.
        return datetime.fromtimestamp(self._offset + time.clock_gettime(time.CLOCK_BOOTTIME), UTC)

    def set(self, moment: datetime, *, at: float, error: float = 0.0) -> None:
        """Set the clock to the database's time at `at`, a value of `uptime`; `error` is its uncertainty in seconds."""
        offset = moment.timestamp() - at
        step = offset - self._offset
        if self.is_known and abs(step) <= error:
            # The clock must not go back and forth with the time that each answer takes.
            return
        if self.is_known and abs(step) > _STEP_SECONDS:
            self._steps.append((uptime(), step))
        self._offset, self.is_known = offset, True

    def set_forward(self, *, within: float) -> timedelta:
        """Return by how much the database's clock was set forward in the last `within` seconds."""
        after = uptime() - within
        return timedelta(seconds=max(0.0, sum(step for at, step in self._steps if at >= after)))


shared = SharedClock()
"""The clock of this process."""


def now() -> datetime:
    """Return the current time of the database's clock, in UTC. Without a database, return this machine's time."""
    return shared.now() if shared.is_known else datetime.now(UTC)


def shared_now() -> datetime:
    """Return the time for leases and limits: `now`, but without jumps even before the database's clock is known."""
    return shared.now()
