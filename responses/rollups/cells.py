"""The cells of time for which sums are kept.

Sums are kept for hours and for past days of UTC. In a time zone like Asia/Kolkata (+05:30), days begin in the middle
of an hour, at 18:30 UTC. So an hour in which the day of any time zone begins is divided into parts. This makes 37 sums
per day instead of 24, while quarters of hours would make 96.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

MIDNIGHTS: tuple[int, ...] = tuple(
    60 * hour + minute
    for hour, minute in (
        (2, 30), (3, 30), (9, 30), (10, 15), (11, 15), (13, 30), (14, 30),
        (15, 15), (17, 30), (18, 15), (18, 30), (19, 30), (20, 30),
    )
)  # fmt: skip
"""The minutes of the UTC day, other than whole hours, at which the day of a time zone begins.

These minutes determine the stored data: after a change, the sums must be rebuilt (`manage.py rollup --since all`).
"""

_STARTS = tuple(sorted({*range(0, 24 * 60, 60), *MIDNIGHTS}))


def cell_sql(moment: str) -> str:
    """Return the SQL expression for the start of the hour, or of the part of an hour, that contains a time."""
    starts = f"'{{{','.join(map(str, _STARTS))}}}'::int[]"
    minute = f"mod(floor(extract(epoch FROM {moment}) / 60), 1440)::int"
    return f"date_trunc('day', {moment}, 'UTC') + ({starts})[width_bucket({minute}, {starts})] * interval '1 minute'"


def day_sql(moment: str) -> str:
    """Return the SQL expression for the start of the day of UTC that contains a time."""
    return f"date_trunc('day', {moment}, 'UTC')"


def whole_days(edges: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
    """Return the spans of whole days of UTC that are not divided by any of these times, which are in order."""
    spans: list[tuple[datetime, datetime]] = []
    for since, until in pairwise(edges):
        first, last = _midnight(since), _midnight(until)
        if first < since:
            first += timedelta(days=1)
        if spans and spans[-1][1] == first < last:
            spans[-1] = (spans[-1][0], last)
        elif first < last:
            spans.append((first, last))
    return spans


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def is_stored_edge(moment: datetime) -> bool:
    """Return true if the stored sums can be divided at this time."""
    moment = moment.astimezone(UTC)
    minute = 60 * moment.hour + moment.minute
    return _STARTS[bisect_right(_STARTS, minute) - 1] == minute and not moment.second and not moment.microsecond
