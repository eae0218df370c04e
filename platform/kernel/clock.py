"""The clock: read once at the edge of a service, passed on as a value below it."""

from datetime import UTC, datetime


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def unix(moment: datetime) -> int:
    """Whole Unix seconds, as every `created_at` on the wire."""
    return int(moment.timestamp())
