"""Query sums over whole hours or days, from stored sums and from rows that are not rolled up yet.

Sums of days are used for each day of UTC that lies within a single interval of the result. They are far fewer: with a
thousand keys that are always in use, 30 days have 30,000 sums of days and 1.1 million sums of hours.

Call every function inside a scope (`tenants.scope`). Each query is a single statement, so that a row that is rolled up
at the same time counts exactly once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection

from core import periods
from responses.models.rollups import RollupMark
from responses.rollups import cells, histograms
from responses.rollups.sources import DAY, RollupSource, cells_sql

MAX_LIVE_ROWS = 200_000
"""Maximum number of rows, newest first, that are read without being rolled up. Reached only if the task is down."""

_MAX_UNROLLED_ROWS = 20_000
_FRACTIONS = {"cost", "budget_cost", "audio_seconds"}
_EDGE = "(SELECT edge FROM mark)"
# The edges of whole days alternate: the start of a span and its end. The times before, between and after these spans
# are read from sums of hours, and so are days that have no sums yet.
_PAIRS = """SELECT edges[place] AS since, edges[place + 1] AS until
    FROM (SELECT %({name})s::timestamptz[] AS edges) AS given, generate_series(1, cardinality(edges), 2) AS place"""
_SPANS = f"""days AS ({_PAIRS.format(name="days")}
), hours AS ({_PAIRS.format(name="hours")}
), spans AS (
    SELECT %(level)s + {DAY} AS level, since, least(until, summed_days) AS until FROM days, mark
    UNION ALL
    SELECT %(level)s, greatest(since, summed_days), least(until, edge) FROM days, mark
    UNION ALL
    SELECT %(level)s, since, least(until, edge) FROM hours, mark
)"""  # noqa: S608 - names of our own


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupQuery:
    """The sums of `measures` of a source between two times, grouped by dimensions and by time.

    - `since`, `until`: whole hours, or the start of a day in any time zone.
    - `by`: the dimensions to group by.
    - `bucket`: `hour`, or `day`, `week` or `month` in the time zone `zone`; empty for a single bucket.
    - `teams`: the teams to include; None for every team, if the caller may see them all.
    - `only`: the values to include, by dimension.
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
    """One row of the result. The value of a histogram is the list of counts of all its buckets.

    `bucket` is the start of its hour, day, week or month, which may be before the start of the query.
    """

    bucket: datetime | None
    key: tuple[str, ...]
    values: dict[str, Any]


def rolled_up_until() -> datetime | None:
    """Return the time up to which everything is rolled up, or None before the first rollup."""
    return RollupMark.objects.values_list("until", flat=True).first()


def is_behind(*, at: datetime) -> bool:
    """Return true if the periodic task is so late that queries may miss rows."""
    mark = rolled_up_until()
    return mark is not None and at - mark > timedelta(hours=6)


def fetch_rows(query: RollupQuery) -> list[RollupRow]:
    """Return the sums, ordered by time only."""
    source, wanted = query.source, query.measures
    needed = frozenset([*query.by, *query.only, *(() if query.teams is None else ["team_id"])])
    starts = periods.edges(query.since, query.until, query.bucket, ZoneInfo(query.zone)) if query.bucket else []
    divided = [query.since, *(start for start in starts if query.since < start < query.until), query.until]
    days = [edge for span in cells.whole_days(divided) for edge in span]
    values: dict[str, Any] = {
        "since": query.since,
        "until": query.until,
        "level": source.level(needed),
        "edges": starts,
        "days": days,
        "hours": [query.since, *days, query.until],
        "source": source.name,
    }
    conditions, row_conditions = _conditions(query, values)
    columns = ", ".join(["hour", *query.by, *wanted])
    live = cells_sql(source, _live(source, row_conditions), sets=[needed], wanted=wanted)
    summed = [
        f"{histograms.add_sql(name)} AS {name}" if name in source.histograms else _sum_sql(name, f"sum({name})")
        for name in wanted
    ]
    # Not `date_trunc`: in time zones in which clocks go back at midnight, it would move the first hour of a day to the
    # second midnight.
    edges = "%(edges)s::timestamptz[]"
    bucket = f"width_bucket(hour, {edges})" if query.bucket else "NULL::int"
    keys = "".join(f", {name}" for name in query.by)
    # Sums are used before the edge, and rows after it. All are read by the same statement, because if the mark moved
    # between two statements, some rows would count twice or not at all. `LATERAL` makes PostgreSQL read one range of an
    # index for each span.
    sql = f"""
WITH mark AS MATERIALIZED (
    SELECT greatest(%(since)s, least(coalesce((SELECT until FROM responses_rollupmark), %(since)s), %(until)s)) AS edge,
        coalesce((SELECT days_until FROM responses_rollupmark), '-infinity') AS summed_days
), {_SPANS}
SELECT {bucket} AS bucket{keys}, {", ".join(summed)}
FROM (
    SELECT {columns} FROM spans CROSS JOIN LATERAL (
        SELECT {columns} FROM {source.table}
        WHERE level = spans.level AND hour >= spans.since AND hour < spans.until{conditions} OFFSET 0
    ) AS sums
    UNION ALL
    SELECT {columns} FROM ({live}) AS live
) AS cells
GROUP BY 1{keys}
ORDER BY 1
"""  # noqa: S608 - names and expressions of our own
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    return [_sums(row, query, bucket=starts[row[0] - 1] if query.bucket else None) for row in rows]


def count_minutes(query: RollupQuery) -> list[RollupRow]:
    """Return the sums of each minute, ordered by time only. Reads the rows themselves, so query at most a day."""
    source = query.source
    values: dict[str, Any] = {"since": query.since, "until": query.until}
    _, conditions = _conditions(query, values)
    keys = "".join(f", {source.dimensions[name]} AS d_{name}" for name in query.by)
    summed = ", ".join(_sum_sql(name, source.sums[name]) for name in query.measures)
    sql = f"""
SELECT date_trunc('minute', {source.time}, 'UTC') AS bucket{keys}, {summed}
FROM {source.rows}
WHERE {source.within("%(since)s", "%(until)s")}{conditions}
GROUP BY 1{"".join(f", d_{name}" for name in query.by)}
ORDER BY 1
"""  # noqa: S608 - names and expressions of our own
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    return [_sums(row, query, bucket=row[0]) for row in rows]


def _conditions(query: RollupQuery, values: dict[str, Any]) -> tuple[str, str]:
    """Return the SQL conditions of the filters for the sums and for the rows, and add their values to `values`."""
    conditions = rows = ""
    if query.teams is not None:
        conditions = rows = " AND team_id = ANY(%(teams)s)"
        values["teams"] = list(query.teams)
    for place, (name, kept) in enumerate(query.only.items()):
        conditions += f" AND {name} = ANY(%(only{place})s)"
        rows += f" AND {query.source.dimensions[name]} = ANY(%(only{place})s)"
        values[f"only{place}"] = list(kept)
    return conditions, rows


def _sum_sql(name: str, expression: str) -> str:
    if name in _FRACTIONS:
        # The sum of costs is null and not zero if no call had a price.
        return f"{expression} AS {name}" if name == "cost" else f"coalesce({expression}, 0) AS {name}"
    # Sums of integers would be of the type numeric, which takes longer to read.
    return f"coalesce({expression}, 0)::bigint AS {name}"


def _live(source: RollupSource, conditions: str) -> str:
    """Return the SQL for rows that are in no sum yet: newer than the mark, or not ended when their hour was summed."""
    columns = ", ".join(source.columns)
    newer = f"""
    (SELECT {columns} FROM {source.rows} WHERE {source.within(_EDGE, "%(until)s")}{conditions}
    ORDER BY {source.time} DESC LIMIT {MAX_LIVE_ROWS})"""  # noqa: S608
    if not source.is_open:
        return f"({newer})"
    # OFFSET 0 makes PostgreSQL look up the rows by their ids. Otherwise it would search by time, because it
    # underestimates the number of rows between two times.
    return f"""({newer}
    UNION ALL
    SELECT {columns} FROM (
        SELECT * FROM {source.rows} WHERE id = ANY (ARRAY(
            SELECT row_id::{source.id_type} FROM responses_unrolledrow WHERE source = %(source)s
            LIMIT {_MAX_UNROLLED_ROWS}
        )) OFFSET 0
    ) AS unrolled WHERE {source.time} >= %(since)s AND {source.time} < {_EDGE}{conditions})"""  # noqa: S608


def _sums(row: tuple[Any, ...], query: RollupQuery, *, bucket: datetime | None) -> RollupRow:
    first = 1 + len(query.by)
    values = dict(zip(query.measures, row[first:], strict=True))
    return RollupRow(bucket=bucket, key=tuple(map(str, row[1:first])), values=values)
