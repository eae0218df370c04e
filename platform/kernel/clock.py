"""The clock: services read it once and pass the time on as a value."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def unix(moment: datetime) -> int:
    """Return whole Unix seconds, the format of every `created_at` of the API."""
    return int(moment.timestamp())
