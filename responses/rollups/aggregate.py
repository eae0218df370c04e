"""Roll up closed hours into sums, one transaction per hour, in the order of time.

A response counts in the hour of its creation, a tool call in the hour of its start, an upstream call in the hour of its
end. A row that has not ended when its hour is rolled up is remembered as an `UnrolledRow`, and added to the sums of
that hour when it has ended. So each row is in exactly one place: in the sums, remembered, or newer than the mark. The
queries (`responses.rollups.queries`) add the three.

Rows that are deleted after they were summed stay in the sums. A client tool call that is answered after more than an
hour stays counted as waiting.

Safe to run twice and concurrently: a process that does not get the lock leaves the work to the one that has it.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from django.db import connection

from kernel.clock import now
from responses.models.rollups import RollupMark, UnrolledRow
from responses.rollups.sources import SOURCES, RollupSource, cells_sql
from tenants import scope

logger = logging.getLogger(__name__)
HOUR = timedelta(hours=1)
# Rows are stamped by the clock of their process and committed a little later, so an hour closes with a delay.
_CLOSING_DELAY = timedelta(minutes=5)
# Recent hours are rolled up again together with the next one, for rows that were committed even later.
_REPEATED = timedelta(hours=2)
_RECENT = timedelta(hours=6)
_BATCH_SIZE = 2000
LOCK = 0x726F6C6C7570  # "rollup"
"""Advisory lock that must be held to change sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupResult:
    """The number of hours and of late rows that were rolled up, and whether more work is left."""

    hours: int
    late: int
    more: bool


def roll_up(*, seconds: float = 20) -> RollupResult:
    """Roll up closed hours and rows that have ended since, for about `seconds` seconds."""
    until, hours, more_hours = monotonic() + seconds, 0, True
    while more_hours and monotonic() < until:
        more_hours = _next_hour(present=now())
        hours += more_hours
    late, more_rows = 0, True
    while more_rows and monotonic() < until:
        added = [_add_ended_rows(source) for source in SOURCES if source.is_open]
        late += sum(added)
        more_rows = _BATCH_SIZE in added
    return RollupResult(hours=hours, late=late, more=more_hours or more_rows)


def discard(*, since: datetime | None = None) -> None:
    """Delete all sums, or those since a time. Until they are rolled up again, queries read the rows instead."""
    start = None if since is None else since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        for source in SOURCES:
            condition = "" if start is None else " AND hour >= %s"
            values: list[Any] = [source.numbers] if start is None else [source.numbers, start]
            cursor.execute(f"DELETE FROM {source.table} WHERE level = ANY(%s){condition}", values)  # noqa: S608
        unrolled = UnrolledRow.objects.all()
        if start is None:
            unrolled.delete()
            RollupMark.objects.all().delete()
        else:
            unrolled.filter(hour__gte=start).delete()
            RollupMark.objects.filter(until__gt=start).update(until=start)


def _next_hour(*, present: datetime) -> bool:
    """Roll up the next hour that has rows. Return False if none has closed, or another process has the lock."""
    with scope.every_team():
        if not _locked():
            return False
        mark = RollupMark.objects.first()
        first = _first_row(mark.until if mark else None)
        closed = (present - _CLOSING_DELAY).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if first is None or first >= closed:
            # All hours up to now are empty. They count as rolled up, so that queries need not look at their rows.
            if mark is not None and mark.until < closed:
                RollupMark.objects.update(until=closed)
            return False
        hour = first.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        begin = hour - _REPEATED if mark is not None and hour > present - _RECENT else hour
        for source in SOURCES:
            _replace(source, begin, hour + HOUR)
        RollupMark.objects.update_or_create(id=1, defaults={"until": hour + HOUR})
        return True


def _locked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def _first_row(since: datetime | None) -> datetime | None:
    """Return the time of the first row at or after a time, over all sources."""
    moments = []
    with connection.cursor() as cursor:
        for source in SOURCES:
            after = "" if since is None else f"WHERE {source.time} >= %(since)s"
            first = f"SELECT {source.time} FROM {source.rows} {after} ORDER BY {source.time} LIMIT 1"  # noqa: S608
            cursor.execute(first, {"since": since})
            moments += [row[0] for row in cursor.fetchall() if row[0] is not None]
    return min(moments, default=None)


def _replace(source: RollupSource, since: datetime, until: datetime) -> None:
    """Replace the sums of the hours between two times."""
    values: dict[str, Any] = {"since": since, "until": until, "levels": source.numbers, "source": source.name}
    condition = source.within("%(since)s", "%(until)s")
    delete = f"DELETE FROM {source.table} WHERE level = ANY(%(levels)s) AND hour >= %(since)s AND hour < %(until)s"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(delete, values)
        if source.is_open:
            UnrolledRow.objects.filter(source=source.name, hour__gte=since, hour__lt=until).delete()
            # A call that was started again may be remembered from an earlier hour already; it is not moved.
            cursor.execute(
                f"""INSERT INTO responses_unrolledrow (team_id, source, row_id, hour)
                SELECT team_id, %(source)s, id::text, date_trunc('hour', {source.time}, 'UTC')
                FROM {source.rows} WHERE {condition} AND {source.is_open}
                ON CONFLICT (source, row_id) DO NOTHING""",  # noqa: S608
                values,
            )
            # Rows that are still open are added later, when they have ended.
            condition += " AND id::text NOT IN (SELECT row_id FROM responses_unrolledrow WHERE source = %(source)s)"
        _insert(source, condition, values)


def _add_ended_rows(source: RollupSource) -> int:
    """Add remembered rows that have ended to the sums. Return their number."""
    with scope.every_team(), connection.cursor() as cursor:
        if not _locked():
            return 0
        cursor.execute(
            f"""SELECT remembered.row_id FROM responses_unrolledrow AS remembered
            WHERE remembered.source = %s AND NOT EXISTS (
                SELECT FROM {source.rows} WHERE id = remembered.row_id::{source.id_type} AND {source.is_open}
            ) LIMIT %s""",  # noqa: S608
            [source.name, _BATCH_SIZE],
        )
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            # There is a mark, because nothing is remembered without one. A call that was started again after it is not
            # added here: it is summed with its new hour.
            values: dict[str, Any] = {"ids": ids, "until": RollupMark.objects.values_list("until", flat=True).get()}
            _insert(source, f"id = ANY(%(ids)s::{source.id_type}[]) AND {source.time} < %(until)s", values)
            UnrolledRow.objects.filter(source=source.name, row_id__in=ids).delete()
        return len(ids)


def _insert(source: RollupSource, condition: str, values: dict[str, Any]) -> None:
    columns = ", ".join(["hour", *source.names, *source.sums, *source.histograms, "level"])
    rows = f"(SELECT {', '.join(source.columns)} FROM {source.rows} WHERE {condition})"  # noqa: S608
    summed = cells_sql(source, rows, sets=source.levels)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {source.table} ({columns}) SELECT {columns} FROM ({summed}) AS cells",  # noqa: S608
            values,
        )
