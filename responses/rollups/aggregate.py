"""Roll up rows into sums of hours and of days, in the order of time.

The rows of the current hour are added every five minutes. Rolling up a whole hour with 266,000 responses and as many
calls at once would take 11 s of a core, and would be repeated in each of the next two hours. With steps of five
minutes, a step takes 1.2 to 3 s, and the longest statement at the end of an hour takes 4 s, with pauses between
statements. A past hour that was not rolled up while it lasted is rolled up in a single step.

A response counts in the hour of its creation, a tool call in the hour of its start, and an upstream call in the hour of
its end. If a row has not ended when its hour is rolled up, it is remembered as an `UnrolledRow`, and added to the sums
of that hour when it has ended. A trigger remembers usage records that are inserted after their hour was rolled up. So
each row is in exactly one of three states: in the sums, remembered, or newer than the mark. The queries
(`responses.rollups.queries`) add up all three. Hours in which the day begins in some time zones have sums of their
parts (`responses.rollups.cells`).

Three hours after the end of a day (UTC), the sums of its hours are added up to sums of the day, in the same tables with
levels of their own. Rows that end later are added to the sums of their hour and to those of their day.

If a row is deleted after it was summed, the sums are not changed. A client tool call that is answered after more than
an hour stays counted as waiting.

The task can safely run repeatedly and concurrently: a process that does not get the lock does nothing.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

from django.db import connection

from core.clock import now
from responses.models.rollups import RollupMark, UnrolledRow
from responses.rollups import cells, histograms
from responses.rollups.sources import DAY, SOURCES, RollupSource, cells_sql
from tenants import scope

logger = logging.getLogger(__name__)
HOUR = timedelta(hours=1)
_WHOLE_DAY = timedelta(days=1)
_STEP = timedelta(minutes=5)
# Rows get the time of their process's clock and are committed later, so they are rolled up after this delay.
_CLOSING_DELAY = timedelta(minutes=5)
# At the end of an hour, this number of hours is checked for rows that were committed even later.
_CHECKED_HOURS = 3
# Before a day is summed, the days before are compared with their hours. Nearly all rows have ended after a week.
_CHECKED_DAYS = 8
_RECENT = timedelta(hours=6)
_BATCH_SIZE = 2000
# Pause after a statement on a whole hour, as a multiple of its duration, so that most of the capacity of the machine is
# free for requests.
_REST = 3.0
_NOT_REMEMBERED = " AND id::text NOT IN (SELECT row_id FROM responses_unrolledrow WHERE source = %(source)s)"
LOCK = 0x726F6C6C7570  # "rollup"
"""Advisory lock that must be held to change sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupResult:
    """The number of steps and of late rows that were rolled up. `more` is true if there is more work."""

    steps: int
    late: int
    more: bool


def roll_up(*, seconds: float = 20, at: datetime | None = None) -> RollupResult:
    """Roll up closed hours, the closed part of the hour of `at` (default: now), and rows that have ended since.

    Takes about `seconds` seconds if there is enough work, and longer if an hour or a day has ended.
    """
    until, steps, more_steps = monotonic() + seconds, 0, True
    while more_steps and monotonic() < until:
        step = _next_step(present=at or now())
        more_steps = step is not None and step.has_rows
        steps += more_steps
        if step is not None:
            _complete_hours(step)
    late, more_rows = 0, True
    while more_rows and monotonic() < until:
        added = [_add_ended_rows(source) for source in SOURCES if source.is_open]
        late += sum(added)
        more_rows = _BATCH_SIZE in added
    more_days = True
    while more_days and monotonic() < until:
        more_days = _sum_next_day()
    return RollupResult(steps=steps, late=late, more=more_steps or more_rows or more_days)


def discard(*, since: datetime | None = None) -> None:
    """Delete all sums, or all sums since a time. Until they are rolled up again, queries read the rows instead."""
    start = None if since is None else since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        for source in SOURCES:
            condition = "" if start is None else " AND hour >= %s"
            for levels, first in ((source.numbers, start), (source.days, start and _day(start))):
                values: list[Any] = [levels] if first is None else [levels, first]
                cursor.execute(f"DELETE FROM {source.table} WHERE level = ANY(%s){condition}", values)  # noqa: S608
        unrolled = UnrolledRow.objects.all()
        if start is None:
            unrolled.delete()
            RollupMark.objects.all().delete()
        else:
            unrolled.filter(hour__gte=start).delete()
            RollupMark.objects.filter(until__gt=start).update(until=start)
            RollupMark.objects.filter(days_until__gt=_day(start)).update(days_until=_day(start))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A move of the mark from `since` to `until`. `since` is None for the first move."""

    since: datetime | None
    until: datetime
    has_rows: bool
    present: datetime


def _next_step(*, present: datetime) -> _Step | None:
    """Roll up the next rows and move the mark. Return None if it cannot move, or another process has the lock."""
    with scope.every_team():
        if not _locked():
            return None
        mark = RollupMark.objects.first()
        marked = mark.until if mark else None
        first = _first_row(marked)
        closed = _beginning(present - _CLOSING_DELAY)
        has_rows = first is not None and first < closed
        if first is not None and has_rows:
            hour = _hour(first)
            since, until = max(hour, marked or hour), min(hour + HOUR, closed)
            for source in SOURCES:
                if since == hour:
                    _delete(source, hour)
                _add(source, since, until)
        elif marked is not None and marked < closed:
            # There are no rows before this time, so the mark is moved. Then queries need not search for rows.
            until = closed
        else:
            return None
        RollupMark.objects.update_or_create(id=1, defaults={"until": until})
        return _Step(since=marked, until=until, has_rows=has_rows, present=present)


def _hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _day(moment: datetime) -> datetime:
    return _hour(moment).replace(hour=0)


def _beginning(moment: datetime) -> datetime:
    """Return the beginning of the five-minute interval that contains a time."""
    return moment - (moment - _hour(moment)) % _STEP


def _complete_hours(step: _Step) -> None:
    """If an hour has ended, sum the rows that were committed late, and merge the sums of the steps.

    Every statement is a transaction. If the process ends in between, the sums are correct but have more rows than
    needed.
    """
    if step.since is None or _hour(step.since) == _hour(step.until):
        return
    for source in SOURCES:
        if step.until > step.present - _RECENT:
            for back in range(1, _CHECKED_HOURS + 1):
                with _resting():
                    _add_late_rows(source, _hour(step.until) - back * HOUR)
        if step.since > _hour(step.since):
            for level in source.numbers:
                with _resting():
                    _merge(source, level, _hour(step.since))


@contextmanager
def _resting() -> Iterator[None]:
    began = monotonic()
    yield
    sleep(_REST * (monotonic() - began))


def _add_late_rows(source: RollupSource, hour: datetime) -> None:
    """Compute the sums of an hour again if the hour has more rows than were summed."""
    counted = next(iter(source.sums))
    values: dict[str, Any] = {"since": hour, "until": hour + HOUR, "source": source.name}
    values["level"] = source.level(frozenset())
    condition = source.within("%(since)s", "%(until)s") + (_NOT_REMEMBERED if source.is_open else "")
    with scope.every_team(), connection.cursor() as cursor:
        if not _locked():
            return
        cursor.execute(
            f"""SELECT (SELECT count(*) FROM {source.rows} WHERE {condition}) > coalesce(sum({counted}), 0)
            FROM {source.table} WHERE level = %(level)s AND hour >= %(since)s AND hour < %(until)s""",  # noqa: S608
            values,
        )
        (has_more,) = cursor.fetchone()
        if has_more:
            _delete(source, hour)
            _add(source, hour, hour + HOUR)


def _merge(source: RollupSource, level: int, hour: datetime) -> None:
    """Replace several rows for the same cell of an hour by one row with their sum."""
    keys = ", ".join(["hour", *source.names, "level"])
    columns = ", ".join([*source.sums, *source.histograms])
    with scope.every_team(), connection.cursor() as cursor:
        if _locked():
            cursor.execute(
                f"""WITH parts AS (
                    DELETE FROM {source.table} WHERE level = %s AND hour >= %s AND hour < %s RETURNING {keys}, {columns}
                )
                INSERT INTO {source.table} ({keys}, {columns})
                SELECT {keys}, {", ".join(_summed(source))} FROM parts GROUP BY {keys}""",  # noqa: S608
                [level, hour, hour + HOUR],
            )


def _sum_next_day() -> bool:
    """Add up the sums of the hours of the next day. Return False if there is none, or another process has the lock.

    This is one transaction, so that no row can be added to an hour of the day in between.
    """
    with scope.every_team():
        mark = RollupMark.objects.first() if _locked() else None
        if mark is None:
            return False
        # Until then, sums of hours may be computed again.
        end = _day(mark.until - _CHECKED_HOURS * HOUR)
        if mark.days_until is not None and mark.days_until >= end:
            return False
        for source in SOURCES:
            if mark.days_until is not None and (day := _different_day(source, mark.days_until)) is not None:
                _sum_day(source, day)
                return True
        hours = [_first_hour(source, mark.days_until, end) for source in SOURCES]
        first = min((hour for hour in hours if hour is not None), default=None)
        if first is not None:
            for source in SOURCES:
                _sum_day(source, _day(first))
            end = _day(first) + _WHOLE_DAY
        RollupMark.objects.update(days_until=end)
        return first is not None


def _different_day(source: RollupSource, until: datetime) -> datetime | None:
    """Return a day before `until` with another number of rows than its hours.

    During an upgrade, a worker of a version without sums of days may add rows to the hours only.
    """
    counted, level = next(iter(source.sums)), source.level(frozenset())
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT day FROM (
                SELECT {cells.day_sql("hour")} AS day, sum({counted}) FILTER (WHERE level = %(level)s) AS of_hours,
                    sum({counted}) FILTER (WHERE level = %(days)s) AS of_day
                FROM {source.table}
                WHERE level IN (%(level)s, %(days)s) AND hour >= %(since)s AND hour < %(until)s GROUP BY 1
            ) AS counts WHERE of_hours IS DISTINCT FROM of_day LIMIT 1""",  # noqa: S608
            {"level": level, "days": DAY + level, "since": until - _CHECKED_DAYS * _WHOLE_DAY, "until": until},
        )
        found = cursor.fetchone()
        return found[0] if found else None


def _first_hour(source: RollupSource, since: datetime | None, until: datetime) -> datetime | None:
    """Return the first hour with sums between two times."""
    after = "" if since is None else " AND hour >= %(since)s"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT min(hour) FROM {source.table} WHERE level = %(level)s AND hour < %(until)s{after}",  # noqa: S608
            {"level": source.level(frozenset()), "since": since, "until": until},
        )
        first: datetime | None = cursor.fetchone()[0]
        return first


def _sum_day(source: RollupSource, day: datetime) -> None:
    """Replace the sums of a day by the sums of its hours."""
    keys = ", ".join([*source.names, "level"])
    columns = ", ".join([*source.sums, *source.histograms])
    summed = ", ".join(_summed(source))
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {source.table} WHERE level = ANY(%s) AND hour = %s",  # noqa: S608
            [source.days, day],
        )
        for number in source.numbers:
            cursor.execute(
                f"""INSERT INTO {source.table} (hour, {keys}, {columns})
                SELECT %s, {", ".join(source.names)}, level + {DAY}, {summed} FROM {source.table}
                WHERE level = %s AND hour >= %s AND hour < %s GROUP BY {keys}""",  # noqa: S608
                [day, number, day, day + _WHOLE_DAY],
            )


def _summed(source: RollupSource) -> list[str]:
    return [f"sum({name})" for name in source.sums] + [histograms.merge_sql(name) for name in source.histograms]


def _locked() -> bool:
    with connection.cursor() as cursor:
        # No parallel workers: they would take cores from requests, and no request waits for the result.
        cursor.execute(
            "SELECT set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)"
        )
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


def _delete(source: RollupSource, hour: datetime) -> None:
    """Delete the sums of an hour."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {source.table} WHERE level = ANY(%s) AND hour >= %s AND hour < %s",  # noqa: S608
            [source.numbers, hour, hour + HOUR],
        )
    UnrolledRow.objects.filter(source=source.name, hour=hour).delete()


def _add(source: RollupSource, since: datetime, until: datetime) -> None:
    """Add the rows between two times to the sums."""
    values: dict[str, Any] = {"since": since, "until": until, "source": source.name}
    condition = source.within("%(since)s", "%(until)s")
    if source.is_open:
        with connection.cursor() as cursor:
            # A call that was restarted may already be remembered with an earlier hour, which is not changed.
            cursor.execute(
                f"""INSERT INTO responses_unrolledrow (team_id, source, row_id, hour)
                SELECT team_id, %(source)s, id::text, date_trunc('hour', {source.time}, 'UTC')
                FROM {source.rows} WHERE {condition} AND {source.is_open}
                ON CONFLICT (source, row_id) DO NOTHING""",  # noqa: S608
                values,
            )
        # Rows that are still open are added later, when they have ended.
        condition += _NOT_REMEMBERED
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
            # There is a mark, because no rows are remembered without one. If a call was restarted after the mark, it is
            # not added here, because it will be summed with its new hour.
            mark = RollupMark.objects.get()
            values: dict[str, Any] = {"ids": ids, "until": mark.until, "days_until": mark.days_until}
            ended = f"id = ANY(%(ids)s::{source.id_type}[]) AND {source.time} < "
            _insert(source, f"{ended}%(until)s", values)
            if mark.days_until is not None:
                _insert(source, f"{ended}%(days_until)s", values, whole_days=True)
            UnrolledRow.objects.filter(source=source.name, row_id__in=ids).delete()
        return len(ids)


def _insert(source: RollupSource, condition: str, values: dict[str, Any], *, whole_days: bool = False) -> None:
    columns = ", ".join(["hour", *source.names, *source.sums, *source.histograms, "level"])
    rows = f"(SELECT {', '.join(source.columns)} FROM {source.rows} WHERE {condition})"  # noqa: S608
    summed = cells_sql(source, rows, sets=source.levels, whole_days=whole_days)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {source.table} ({columns}) SELECT {columns} FROM ({summed}) AS cells",  # noqa: S608
            values,
        )
