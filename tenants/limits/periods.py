"""Periods of budgets: days, weeks and months in a team's time zone."""

from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from tenants.models import Period

PERIODS = tuple(period.value for period in Period)


@lru_cache(maxsize=1024)
def _bounds(period: str, day: datetime, zone: str) -> tuple[datetime, datetime]:
    date, place = day.date(), ZoneInfo(zone)
    if period == Period.DAY:
        first, last = date, date + timedelta(days=1)
    elif period == Period.WEEK:
        first = date - timedelta(days=date.weekday())
        last = first + timedelta(days=7)
    else:
        first = date.replace(day=1)
        last = (first + timedelta(days=32)).replace(day=1)
    # Through UTC: midnight may not exist on the day on which summer time begins.
    utc = ZoneInfo("UTC")
    return tuple(datetime.combine(each, time(), place).astimezone(utc) for each in (first, last))  # type: ignore[return-value]


def bounds(period: str, at: datetime, zone: str) -> tuple[datetime, datetime]:
    """Return the start of the period that contains a time, and that of the next one."""
    local = at.astimezone(ZoneInfo(zone))
    return _bounds(period, datetime.combine(local.date(), time()), zone)


def microseconds(at: datetime) -> int:
    """Return a time as Unix microseconds."""
    whole = int(at.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + at.microsecond
