"""Pivot of usage: one metric over any two of team, key, model, upstream, end user, tool, mode, status and tag.

If the hourly sums distinguish both dimensions, the values are read from the sums. Otherwise they are computed from the
responses themselves, of which at most the newest `MAX_ROWS` are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.http import QueryDict

from billing.admin.usage.aggregate import add_sums, names_of, tool_name
from billing.admin.usage.query import FILTERS, METRICS, Metric, MetricKind, ReportQuery, parse_filters, parse_span
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS, RESPONSES, RollupSource

# Counting more responses takes too long for a page.
MAX_ROWS = 20_000
TOP_ROWS, TOP_COLUMNS = 30, 10
_MAX_TAG = 64
_OTHER = "\0rest"
_NO_VALUE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One side of the pivot. `column` is its dimension in the sums, `sql` its expression over responses and tools.

    `filter` is the parameter of the list of responses that selects one value.
    """

    name: str
    title: str
    sql: str
    column: str = ""
    filter: str = ""


AXES = {
    axis.name: axis
    for axis in (
        Axis(name="team", title="Team", sql="response.team_id", column="team_id", filter="team__id__exact"),
        Axis(name="key", title="API key", sql="response.api_key_id", column="api_key_id", filter="api_key__id__exact"),
        Axis(name="model", title="Model", sql="response.model", column="model", filter="model"),
        Axis(name="upstream", title="Upstream", sql="response.upstream_id", column="upstream_id"),
        Axis(name="user", title="End user", sql="response.end_user", filter="end_user"),
        Axis(name="tool", title="Tool", sql="tool.kind || chr(31) || tool.name"),
        Axis(name="mode", title="Mode", sql=RESPONSES.dimensions["mode"], column="mode", filter="mode"),
        Axis(name="status", title="Status", sql="response.status", column="status", filter="status__exact"),
        Axis(name="tag", title="Tag", sql="response.metadata ->> %(tag)s", filter="metadata"),
    )
}
PIVOT_METRICS = ("cost", "requests", "errors", "tokens_in", "tokens_cached", "tokens_out", "tools", "calls")
# Computed from tool calls, but named like the sums of responses, because the metrics read these names.
_TOOL_SUMS = {
    "tool_calls": "count(*)",
    "failed": "count(*) FILTER (WHERE tool.status = 'failed')",
    "responses": "count(*)",
}
PRESETS = {
    "Cost by team and model, this month": {"metric": "cost", "rows": "team", "columns": "model", "range": "this_month"},
    "Cost by key and model, last week": {"metric": "cost", "rows": "key", "columns": "model", "range": "last_week"},
    "Cost by end user and model, this month": {
        "metric": "cost", "rows": "user", "columns": "model", "range": "this_month",
    },
    "Tool calls by tool and team, last week": {
        "metric": "tools", "rows": "tool", "columns": "team", "range": "last_week",
    },
    "Responses by team and mode, last week": {
        "metric": "requests", "rows": "team", "columns": "mode", "range": "last_week",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotQuery(ReportQuery):
    """Query of the pivot page, parsed from the URL. `source` is None if the responses themselves are counted.

    `tag` is the key of the metadata whose values the axis "tag" shows.
    """

    rows: Axis
    columns: Axis
    source: RollupSource | None
    tag: str

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Return both sides."""
        return self.rows, self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotRow:
    """One line of the pivot: its value and name, the value in each column, and its total."""

    key: str
    name: str
    values: Sequence[float | None]
    total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """Result of a query. `columns` are values and names; `is_cut` is true if older responses were not read.

    `unpriced` is the number of calls or responses whose cost is unknown, if the metric is the cost.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[PivotRow]
    totals: Sequence[float | None]
    total: float | None
    is_cut: bool
    unpriced: int = 0


def parse_pivot(query: QueryDict, *, current_time: datetime, zone: str = "") -> PivotQuery:
    """Parse a query string. Unsupported combinations are adjusted, and `notes` tell what was changed."""
    notes: list[str] = []
    rows = AXES.get(query.get("rows", ""), AXES["team"])
    columns = AXES.get(query.get("columns", ""), AXES["model"])
    if rows is columns:
        columns = AXES["model" if rows.name != "model" else "team"]
        notes.append(f"Rows and columns must differ. Showing {columns.title.lower()} in the columns.")
    metric = METRICS[query.get("metric", "") if query.get("metric") in PIVOT_METRICS else "cost"]
    names = {rows.name, columns.name}
    if "tool" in names and metric.name not in ("tools", "errors"):
        notes.append(f"{metric.title} cannot be divided by tool. Showing tool calls instead.")
        metric = METRICS["tools"]
    tag = query.get("tag", "").replace("\0", "").strip()[:_MAX_TAG]
    if "tag" in names and not tag:
        notes.append("Enter the key of the metadata whose values are the tags.")
    filters = parse_filters(query)
    source = _source(metric, names)
    if metric.name == "calls" and source is not CALLS:
        notes.append("Model calls cannot be divided like this. Showing responses instead.")
        metric = METRICS["requests"]
        source = _source(metric, names)
    if metric.name in ("cost", "tokens_in", "tokens_cached", "tokens_out") and source is not CALLS:
        notes.append("Counts responses only, without other endpoints such as chat completions.")
    span, local, since, until = parse_span(
        query, current_time=current_time, zone=zone, default="this_month", notes=notes
    )
    parameters = {"metric": metric.name, "rows": rows.name, "columns": columns.name, "tag": tag, "range": span}
    if span == "custom":
        parameters |= {"since": query.get("since", ""), "until": query.get("until", "")}
    return PivotQuery(
        metric=metric,
        rows=rows,
        columns=columns,
        source=source,
        tag=tag,
        range=span,
        zone=local,
        since=since,
        until=until,
        filters=filters,
        notes=tuple(notes),
        parameters={**parameters, **filters, "tz": local.key},
    )


def _measures(metric: Metric, source: RollupSource | None) -> tuple[str, ...]:
    """Return the sums from which a metric is computed."""
    # The sums of responses contain everything that the sums of calls do, except the calls themselves.
    return metric.columns.get("calls" if source is CALLS else "responses") or next(iter(metric.columns.values()))


def _source(metric: Metric, names: set[str]) -> RollupSource | None:
    """Return the source whose sums distinguish both sides, or None.

    The cost and tokens of all endpoints are in the sums of calls.
    """
    columns = {AXES[name].column for name in names}
    order = [CALLS, RESPONSES] if "calls" in metric.columns and metric.kind is MetricKind.SUM else [RESPONSES]
    return next((source for source in order if columns <= set(source.names)), None)


def build_pivot(
    query: PivotQuery, *, teams: Sequence[str] | None, top: tuple[int, int] = (TOP_ROWS, TOP_COLUMNS)
) -> Pivot:
    """Return the largest rows and columns; the remaining ones are combined as "Other"."""
    cells, is_cut = _summed(query, teams), False
    if cells is None:
        cells, is_cut = _counted(query, teams)
    by_row, by_column = _totals(cells, 0), _totals(cells, 1)
    measures = _measures(query.metric, query.source)
    # The key by which the metric finds the names of its sums.
    source = next(name for name, columns in query.metric.columns.items() if columns == measures)

    def value_of(sums: Mapping[str, Any] | None) -> float | None:
        return None if sums is None else query.metric.value(source, sums)

    def largest(sums: Mapping[str, Mapping[str, Any]], most: int) -> list[str]:
        # Ratios rank by volume.
        measure = measures[0 if query.metric.kind is MetricKind.SUM else -1]
        ranked = sorted(sums, key=lambda key: (-float(sums[key][measure] or 0), key))
        return [*ranked[:most], *([_OTHER] if len(ranked) > most else [])]

    shown_rows, shown_columns = largest(by_row, top[0]), largest(by_column, top[1])
    grid: dict[tuple[str, str], dict[str, Any]] = {}
    for (row, column), sums in cells.items():
        place = (row if row in shown_rows else _OTHER, column if column in shown_columns else _OTHER)
        grid[place] = add_sums(grid.get(place), sums)
    whole = None
    for sums in by_row.values():
        whole = add_sums(whole, sums)
    row_sums, column_sums = _totals(grid, 0), _totals(grid, 1)
    row_names, column_names = _names(query.rows, shown_rows), _names(query.columns, shown_columns)
    return Pivot(
        columns=[(key, column_names[key]) for key in shown_columns],
        rows=[
            PivotRow(
                key=key,
                name=row_names[key],
                values=[value_of(grid.get((key, column))) for column in shown_columns],
                total=value_of(row_sums[key]),
            )
            for key in shown_rows
        ],
        totals=[value_of(column_sums[key]) for key in shown_columns],
        total=value_of(whole),
        is_cut=is_cut,
        unpriced=(whole or {}).get("unpriced", 0),
    )


_Cells = dict[tuple[str, str], dict[str, Any]]


def _totals(cells: _Cells, side: int) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for key, sums in cells.items():
        totals[key[side]] = add_sums(totals.get(key[side]), sums)
    return totals


def _summed(query: PivotQuery, teams: Sequence[str] | None) -> _Cells | None:
    """Return the sums by pair from the hourly sums, or None if these do not distinguish both sides."""
    source = query.source
    if source is None:
        return None
    rows = queries.fetch_rows(
        RollupQuery(
            source=source,
            since=query.since,
            until=query.until,
            measures=[*dict.fromkeys(_measures(query.metric, source))],
            by=[axis.column for axis in query.axes],
            teams=teams,
            only=query.only,
        )
    )
    return {(row.key[0], row.key[1]): row.values for row in rows}


def _counted(query: PivotQuery, teams: Sequence[str] | None) -> tuple[_Cells, bool]:
    """Return the sums by pair from the responses, and true if older responses were not read."""
    has_tools = "tool" in {axis.name for axis in query.axes}
    expressions = _TOOL_SUMS if has_tools else RESPONSES.sums
    names = [*dict.fromkeys(_measures(query.metric, None))]
    values: dict[str, Any] = {"since": query.since, "until": query.until, "tag": query.tag, "most": MAX_ROWS}
    conditions = "created_at >= %(since)s AND created_at < %(until)s"
    if teams is not None:
        conditions += " AND team_id = ANY(%(teams)s)"
        values["teams"] = list(teams)
    for name, value in query.filters.items():
        conditions += f" AND {FILTERS[name]} = %(filter_{name})s"
        values[f"filter_{name}"] = value
    sums = ", ".join(f"{expressions[name]} AS {name}" for name in names)
    # OFFSET 0 makes PostgreSQL look up the calls of each response. A join would read the calls of all responses.
    calls = "SELECT * FROM responses_toolcall AS call WHERE call.response_id = response.id OFFSET 0"
    tools = f"CROSS JOIN LATERAL ({calls}) AS tool" if has_tools else ""
    # Only these columns: with the requests, the rows would be written to a temporary file of hundreds of megabytes.
    columns = ", ".join([*RESPONSES.columns, "end_user", "metadata"])
    # Every group also contains the number of rows that were read. A second statement for it could see other rows.
    sql = f"""
WITH response AS MATERIALIZED (
    SELECT {columns} FROM responses_response WHERE {conditions} ORDER BY created_at DESC LIMIT %(most)s
)
SELECT coalesce({query.rows.sql}, ''), coalesce({query.columns.sql}, ''), (SELECT count(*) FROM response), {sums}
FROM response {tools}
GROUP BY 1, 2
"""  # noqa: S608 - names and expressions of our own
    cells: _Cells = {}
    read = 0
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        for row, column, read, *sums_of in cursor.fetchall():  # noqa: B007 - the same in every row
            # No cost is not a cost of zero: then no call had a price.
            cells[row, column] = {
                name: value if name == "cost" else int(value or 0) for name, value in zip(names, sums_of, strict=True)
            }
    return cells, read >= MAX_ROWS


def _names(axis: Axis, keys: Sequence[str]) -> dict[str, str]:
    ids = [key for key in keys if key not in ("", _OTHER)]
    is_tool = axis.name == "tool"
    known = {key: tool_name(*key.split("\x1f", 1)) for key in ids} if is_tool else names_of(axis.name, ids)
    return {key: "Other" if key == _OTHER else known.get(key) or key or _NO_VALUE for key in keys}


def is_other(key: str) -> bool:
    """Return whether a row or column is "Other", the combination of the remaining ones."""
    return key == _OTHER
