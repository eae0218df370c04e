"""Reading sums over any span of whole hours: what is rolled up, and the rows that are not, added.

Expects to run inside a scope (`tenants.scope`). One statement for each question, so that a row which is rolled up
meanwhile counts once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from responses.models.rollups import RollupMark
from responses.rollups import histograms
from responses.rollups.sources import RollupSource, cells_sql

MOST_LIVE = 200_000
"""So many rows that are not rolled up are read at most: the newest. Reached only where the hourly task stands still."""

_MOST_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupQuery:
    """What to add up: `measures` of a source between two hours, by the values of some dimensions and by time.

    `teams` None: every team (for those who see every team). `only` keeps rows whose dimension has one of these values.
    `bucket` is `hour`, `day` or `week` in the time zone `zone`; empty: all of the span in one.
    """

    source: RollupSource
    since: datetime
    until: datetime
    measures: Sequence[str]
    by: Sequence[str] = ()
    bucket: str = ""
    zone: str = "UTC"
    teams: Sequence[str] | None = None
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRow:
    """One row of the answer; a histogram is the list of the counts of all buckets."""

    bucket: datetime | None
    key: tuple[str, ...]
    values: dict[str, Any]


def rolled_up_until() -> datetime | None:
    """Up to when everything is rolled up; None before the first time."""
    return RollupMark.objects.values_list("until", flat=True).first()


def is_behind(*, at: datetime) -> bool:
    """Whether the hourly task has not run for so long that newer rows may be more than are read."""
    mark = rolled_up_until()
    return mark is not None and at - mark > timedelta(hours=6)


def fetch_rows(question: RollupQuery) -> list[RollupRow]:
    """The sums, by time and in no order besides."""
    source, wanted = question.source, question.measures
    needed = frozenset([*question.by, *question.only, *(() if question.teams is None else ["team_id"])])
    mark = rolled_up_until() or question.since
    values: dict[str, Any] = {
        "since": question.since,
        "until": question.until,
        "mark": mark,
        "edge": max(question.since, min(mark, question.until)),
        "level": source.level(needed),
        "bucket": question.bucket,
        "zone": question.zone,
        "teams": None if question.teams is None else list(question.teams),
        "source": source.name,
    }
    narrow = "" if question.teams is None else " AND team_id = ANY(%(teams)s)"
    narrow_rows = narrow
    for place, (name, kept) in enumerate(question.only.items()):
        narrow += f" AND {name} = ANY(%(only{place})s)"
        narrow_rows += f" AND {source.dimensions[name]} = ANY(%(only{place})s)"
        values[f"only{place}"] = list(kept)
    columns = ", ".join(["hour", *question.by, *wanted])
    live = cells_sql(source, _live(source, narrow_rows), sets=[needed], wanted=wanted)
    summed = [
        f"{histograms.add_sql(name)} AS {name}" if name in source.histograms else f"coalesce(sum({name}), 0) AS {name}"
        for name in wanted
    ]
    bucket = "date_trunc(%(bucket)s, hour, %(zone)s)" if question.bucket else "NULL::timestamptz"
    keys = "".join(f", {name}" for name in question.by)
    sql = f"""
SELECT {bucket} AS bucket{keys}, {", ".join(summed)}
FROM (
    SELECT {columns} FROM {source.table}
    WHERE level = %(level)s AND hour >= %(since)s AND hour < %(edge)s{narrow}
    UNION ALL
    SELECT {columns} FROM ({live}) AS live
) AS cells
GROUP BY 1{keys}
ORDER BY 1
"""  # noqa: S608 - names and expressions of our own
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    return [_sums(row, question) for row in rows]


def _live(source: RollupSource, narrow: str) -> str:
    """The rows that are in no sum yet: newer than the mark, or remembered."""
    columns = ", ".join(source.columns)
    newest = f"ORDER BY {source.time} DESC " if source.has_time_index else ""
    newer = f"""
    (SELECT {columns} FROM {source.rows} WHERE {source.within("%(edge)s", "%(until)s")}{narrow}
    {newest}LIMIT {MOST_LIVE})"""  # noqa: S608
    if not source.is_open:
        return f"({newer})"
    id_type = "text" if source.name == "responses" else "bigint"
    return f"""({newer}
    UNION ALL
    SELECT {columns} FROM {source.rows} WHERE id = ANY (ARRAY(
        SELECT row_id::{id_type} FROM responses_unrolledrow WHERE source = %(source)s LIMIT {_MOST_REMEMBERED}
    )) AND {source.time} >= %(since)s AND {source.time} < %(edge)s{narrow})"""  # noqa: S608


def _sums(row: tuple[Any, ...], question: RollupQuery) -> RollupRow:
    first = 1 + len(question.by)
    values = dict(zip(question.measures, row[first:], strict=True))
    for name, value in values.items():
        if name in question.source.histograms:
            values[name] = [int(count) for count in value]
        elif name != "cost":
            values[name] = int(value)
    return RollupRow(bucket=row[0], key=tuple(str(each) for each in row[1:first]), values=values)
