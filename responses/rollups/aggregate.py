"""Rolling closed hours up, one transaction for each hour, in the order of time.

A response counts in the hour in which it was created, a tool call in which it began, a call of the ledger in which it
ended. A row that has not ended when its hour is rolled up is remembered (`UnrolledRow`), and added to the sums of its
hour once it has. So each row is in the sums, remembered, or newer than the mark, and in one of these only: reading
(`responses.rollups.queries`) adds the three. What is deleted after it was summed stays in the sums; a call that its
client answers after more than an hour stays there as one that waits.

Safe to run twice and side by side: who does not get the lock leaves the work to who has it.
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
# Rows carry the clock of the process that made them, and are committed a little later.
_SETTLING = timedelta(minutes=5)
# Hours that are rolled up once more with the next one, for rows that were committed very late.
_AGAIN = timedelta(hours=2)
_RECENT = timedelta(hours=6)
_AT_ONCE = 2000
LOCK = 0x726F6C6C7570  # "rollup"
"""The advisory lock of whoever changes sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupResult:
    """What was done: hours, rows that ended late, and whether there is more to do."""

    hours: int
    late: int
    more: bool


def roll_up(*, seconds: float = 20) -> RollupResult:
    """Roll up the hours that have closed, for about so many seconds, and what has ended late."""
    until, hours, stepped = monotonic() + seconds, 0, True
    while stepped and monotonic() < until:
        stepped = _next_hour(present=now())
        hours += stepped
    late, settled = 0, _AT_ONCE
    while settled == _AT_ONCE and monotonic() < until:
        settled = sum(_settle(source) for source in SOURCES if source.is_open)
        late += settled
    return RollupResult(hours=hours, late=late, more=stepped or settled >= _AT_ONCE)


def discard(*, since: datetime | None = None) -> None:
    """Throw the sums away, from a moment on or all of them: until they are rolled up again, rows are read instead."""
    start = None if since is None else since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        for source in SOURCES:
            condition = "" if start is None else " AND hour >= %s"
            values: list[Any] = [source.numbers] if start is None else [source.numbers, start]
            cursor.execute(f"DELETE FROM {source.table} WHERE level = ANY(%s){condition}", values)  # noqa: S608
        remembered = UnrolledRow.objects.all()
        if start is None:
            remembered.delete()
            RollupMark.objects.all().delete()
        else:
            remembered.filter(hour__gte=start).delete()
            RollupMark.objects.filter(until__gt=start).update(until=start)


def _next_hour(*, present: datetime) -> bool:
    """Roll up the next hour that has rows; False when none has closed, or somebody else is at it."""
    with scope.every_team():
        if not _locked():
            return False
        mark = RollupMark.objects.first()
        first = _first_row(mark.until if mark else None)
        closed = (present - _SETTLING).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if first is None or first >= closed:
            # Nothing but empty hours up to now: they are done, too.
            if mark is not None and mark.until < closed:
                RollupMark.objects.update(until=closed)
            return False
        hour = first.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        begin = hour - _AGAIN if mark is not None and hour > present - _RECENT else hour
        for source in SOURCES:
            _replace(source, begin, hour + HOUR)
        RollupMark.objects.update_or_create(id=1, defaults={"until": hour + HOUR})
        return True


def _locked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def _first_row(since: datetime | None) -> datetime | None:
    """When the first row at or after a moment was made."""
    moments = []
    with connection.cursor() as cursor:
        for source in SOURCES:
            after = "" if since is None else f"WHERE {source.time} >= %(since)s"
            first = f"SELECT {source.time} FROM {source.rows} {after} ORDER BY {source.time} LIMIT 1"  # noqa: S608
            if not source.has_time_index:
                own = f"team_id = team.id {after.replace('WHERE', 'AND')}"
                first = f"""SELECT min(first.{source.time}) FROM tenants_team AS team CROSS JOIN LATERAL (
                    SELECT {source.time} FROM {source.rows} WHERE {own} ORDER BY {source.time} LIMIT 1
                ) AS first"""  # noqa: S608
            cursor.execute(first, {"since": since})
            moments += [row[0] for row in cursor.fetchall() if row[0] is not None]
    return min(moments, default=None)


def _replace(source: RollupSource, since: datetime, until: datetime) -> None:
    """Sum the rows between two hours anew."""
    values: dict[str, Any] = {"since": since, "until": until, "levels": source.numbers, "source": source.name}
    span = source.within("%(since)s", "%(until)s")
    gone = f"DELETE FROM {source.table} WHERE level = ANY(%(levels)s) AND hour >= %(since)s AND hour < %(until)s"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(gone, values)
        if source.is_open:
            UnrolledRow.objects.filter(source=source.name, hour__gte=since, hour__lt=until).delete()
            # One that is remembered from an earlier hour (a call that began again) stays so.
            cursor.execute(
                f"""INSERT INTO responses_unrolledrow (team_id, source, row_id, hour)
                SELECT team_id, %(source)s, id::text, date_trunc('hour', {source.time}, 'UTC')
                FROM {source.rows} WHERE {span} AND {source.is_open}
                ON CONFLICT (source, row_id) DO NOTHING""",  # noqa: S608
                values,
            )
            span += " AND id::text NOT IN (SELECT row_id FROM responses_unrolledrow WHERE source = %(source)s)"
        _insert(source, span, values)


def _settle(source: RollupSource) -> int:
    """Add remembered rows that have ended meanwhile; returns how many are remembered no more."""
    with scope.every_team(), connection.cursor() as cursor:
        if not _locked():
            return 0
        cursor.execute(
            f"""SELECT remembered.row_id FROM responses_unrolledrow AS remembered
            WHERE remembered.source = %s AND NOT EXISTS (
                SELECT FROM {source.rows} WHERE id = remembered.row_id::{_id_type(source)} AND {source.is_open}
            ) LIMIT %s""",  # noqa: S608
            [source.name, _AT_ONCE],
        )
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            # Without a mark nothing is remembered. A call that began again behind it is summed with its new hour.
            values: dict[str, Any] = {"ids": ids, "until": RollupMark.objects.values_list("until", flat=True).get()}
            _insert(source, f"id = ANY(%(ids)s::{_id_type(source)}[]) AND {source.time} < %(until)s", values)
            UnrolledRow.objects.filter(source=source.name, row_id__in=ids).delete()
        return len(ids)


def _id_type(source: RollupSource) -> str:
    return "text" if source.name == "responses" else "bigint"


def _insert(source: RollupSource, condition: str, values: dict[str, Any]) -> None:
    columns = ", ".join(["hour", *source.names, *source.sums, *source.histograms, "level"])
    rows = f"(SELECT {', '.join(source.columns)} FROM {source.rows} WHERE {condition})"  # noqa: S608
    summed = cells_sql(source, rows, sets=source.levels)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {source.table} ({columns}) SELECT {columns} FROM ({summed}) AS cells",  # noqa: S608
            values,
        )
