"""Calendar periods of any time zone, for usage and budgets: hours, days, weeks and months."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_HOUR = timedelta(hours=1)
_NOON = timedelta(hours=12)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The period that `bounds` returned last, by kind and time zone: nearly all times are in the current one.
_latest: dict[tuple[str, str], tuple[datetime, datetime]] = {}


def start_of_day(day: date, zone: ZoneInfo) -> datetime:
    """Return the beginning of a day of a time zone, in UTC."""
    # If clocks go forward at midnight, this is the first moment after it; if they go back, the first of the two.
    return datetime.combine(day, time.min, tzinfo=zone).astimezone(UTC)


def start_of(moment: datetime, period: str, zone: ZoneInfo) -> datetime:
    """Return the start of the period that contains a time. Minutes and hours are in UTC."""
    if period == "minute":
        return moment.astimezone(UTC).replace(second=0, microsecond=0)
    if period == "hour":
        return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return start_of_day(_first_day(moment.astimezone(zone).date(), period), zone)


def end_of_hour(moment: datetime) -> datetime:
    """Return the end of the hour that contains a time: sums are hourly, and are read with the current hour."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + _HOUR


def next_start(start: datetime, period: str, zone: ZoneInfo) -> datetime:
    """Return the end of the period that begins at a time."""
    if period == "minute":
        return start + timedelta(minutes=1)
    if period == "hour":
        return start + _HOUR
    # A day may have 23 or 25 hours, but noon is always within it.
    day = (start + _NOON).astimezone(zone).date()
    length = {"day": 1, "week": 7, "month": 31}[period]
    return start_of_day(_first_day(day + timedelta(days=length), period), zone)


def edges(since: datetime, until: datetime, period: str, zone: ZoneInfo) -> list[datetime]:
    """Return the starts of all periods from the one that contains `since` on, and the end of the last period."""
    found = [start_of(since, period, zone)]
    while found[-1] < until:
        found.append(next_start(found[-1], period, zone))
    return found


def bounds(period: str, at: datetime, zone: str) -> tuple[datetime, datetime]:
    """Return the start and the end of the day, week or month of a time zone that contains a time."""
    latest = _latest.get((period, zone))
    if latest is not None and latest[0] <= at < latest[1]:
        return latest
    place = ZoneInfo(zone)
    start = start_of(at, period, place)
    found = _latest[period, zone] = start, next_start(start, period, place)
    return found


def microseconds(at: datetime) -> int:
    """Return a time as Unix microseconds."""
    return (at - _EPOCH) // _MICROSECOND


def _first_day(day: date, period: str) -> date:
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day
