"""The clocks: services read one of them once and pass the time on as a value."""

import time
from collections import deque
from datetime import UTC, datetime, timedelta

# A difference that is not explained by the time that the answer of the database took.
_STEP_SECONDS = 2.0


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def unix(moment: datetime) -> int:
    """Return whole Unix seconds, the format of every `created_at` of the API."""
    return int(moment.timestamp())


def uptime() -> float:
    """Return the seconds since this machine was started, including those when it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedClock:
    """The clock of the database, as a process knows it.

    Between two calls of `set` a clock counts that nobody sets: a jump of this machine's clock ends no lease.
    """

    def __init__(self) -> None:
        # This machine's counts until the database's is known; a start with a large difference is refused.
        self._offset = time.time() - uptime()
        self._is_known = False
        # When somebody has set the clock, and by how many seconds.
        self._steps: deque[tuple[float, float]] = deque(maxlen=10)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self._offset + uptime(), UTC)

    def set(self, moment: datetime, *, at: float) -> None:
        """Set the time that the database had at a time of `uptime`."""
        offset = moment.timestamp() - at
        step = offset - self._offset
        if self._is_known and abs(step) > _STEP_SECONDS:
            self._steps.append((uptime(), step))
        self._offset, self._is_known = offset, True

    def set_forward(self, *, within: float) -> timedelta:
        """Return by how much somebody has set the database's clock forward in the last seconds."""
        after = uptime() - within
        return timedelta(seconds=max(0.0, sum(step for at, step in self._steps if at >= after)))


shared = SharedClock()
"""The clock for times that are compared by other processes or by the database."""


def shared_now() -> datetime:
    """Return the time of `shared`."""
    return shared.now()
