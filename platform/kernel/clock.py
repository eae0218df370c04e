"""The clocks: services read one of them once and pass the time on as a value."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def unix(moment: datetime) -> int:
    """Return whole Unix seconds, the format of every `created_at` of the API."""
    return int(moment.timestamp())


class _SharedClock:
    # The clock of this machine counts until that of the database is known; a start with a large difference is refused.
    offset = time.time() - time.monotonic()


def shared_now() -> datetime:
    """Return the database's time (UTC), for times that are compared by other processes or by the database.

    Between two calls of `set_shared` a clock counts that nobody sets: a jump of this machine's clock ends no lease.
    """
    return datetime.fromtimestamp(_SharedClock.offset + time.monotonic(), UTC)


def set_shared(moment: datetime, *, at: float) -> None:
    """Set the database's time that was read at a time of `time.monotonic`."""
    _SharedClock.offset = moment.timestamp() - at
