"""Periods in which usage is reported: hours, days, weeks and months, of any time zone.

Sums are kept by hours of UTC. In a zone like Asia/Kolkata (+05:30) days begin within an hour, at 18:30 UTC. So hours
in which the day of any zone begins are kept in parts: 37 sums per day instead of 24, where quarters of hours would take
96.
"""

from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_HOUR = timedelta(hours=1)
_NOON = timedelta(hours=12)

MIDNIGHTS: tuple[int, ...] = tuple(
    60 * hour + minute
    for hour, minute in (
        (2, 30), (3, 30), (9, 30), (10, 15), (11, 15), (13, 30), (14, 30),
        (15, 15), (17, 30), (18, 15), (18, 30), (19, 30), (20, 30),
    )
)  # fmt: skip
"""The minutes of the UTC day, other than whole hours, at which the day of a time zone begins.

Part of the stored data: after a change, the sums must be rebuilt (`manage.py rollup --since all`).
"""

_STARTS = tuple(sorted({*range(0, 24 * 60, 60), *MIDNIGHTS}))


def cell_sql(moment: str) -> str:
    """Return the SQL of the start of the hour, or of its part, that contains a time."""
    starts = f"'{{{','.join(map(str, _STARTS))}}}'::int[]"
    minute = f"mod(floor(extract(epoch FROM {moment}) / 60), 1440)::int"
    return f"date_trunc('day', {moment}, 'UTC') + ({starts})[width_bucket({minute}, {starts})] * interval '1 minute'"


def start_of_day(day: date, zone: ZoneInfo) -> datetime:
    """Return when a day of a time zone begins, in UTC."""
    # If clocks go forward at midnight, this is the first moment after it; if they go back, the first of the two.
    return datetime.combine(day, time.min, tzinfo=zone).astimezone(UTC)


def start_of(moment: datetime, period: str, zone: ZoneInfo) -> datetime:
    """Return the start of the period that contains a time. Minutes and hours are those of UTC."""
    if period == "minute":
        return moment.astimezone(UTC).replace(second=0, microsecond=0)
    if period == "hour":
        return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return start_of_day(_first_day(moment.astimezone(zone).date(), period), zone)


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
    """Return the starts of the periods from the one that contains `since` on, and the end of the last one."""
    found = [start_of(since, period, zone)]
    while found[-1] < until:
        found.append(next_start(found[-1], period, zone))
    return found


def is_stored_edge(moment: datetime) -> bool:
    """Return whether the sums can be divided at this time."""
    moment = moment.astimezone(UTC)
    minute = 60 * moment.hour + moment.minute
    return _STARTS[bisect_right(_STARTS, minute) - 1] == minute and not moment.second and not moment.microsecond


def _first_day(day: date, period: str) -> date:
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day
