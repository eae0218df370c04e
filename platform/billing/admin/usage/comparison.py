"""Comparison of a period with the one before: the totals, and the groups that contributed most to the change.

All values are sums of rollups, so the cost does not depend on the number of responses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from billing.admin.usage import links
from billing.admin.usage.aggregate import Key, names_of, tool_name
from billing.admin.usage.query import METRICS, SOURCES, Metric, MetricKind, UsageQuery
from core.periods import start_of_day
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import RollupSource

TOP = 5
_DAY = timedelta(days=1)
_MONTHS = ("this_month", "last_month")
_SMALLEST = 1e-9
# Name, title and dimensions of the groups by which a change is explained.
_GROUPS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("team", "Team", ("team_id",)),
    ("model", "Model", ("model",)),
    ("key", "API key", ("api_key_id",)),
    ("end_user", "End user", ("end_user",)),
    ("endpoint", "Endpoint or tool with a price", ("endpoint",)),
)
_TOOL_GROUP = ("tool", "Tool, by calls", ("kind", "name"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A group with its values in both periods. `url` leads to the usage or the rows of the group."""

    name: str
    before: float
    after: float
    url: str = ""

    @property
    def change(self) -> float:
        """The difference of the two values."""
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributorTable:
    """The groups of one kind with the largest changes, largest first."""

    title: str
    metric: Metric
    rows: Sequence[Contributor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The totals of a period and of the one before, and the tables of contributors."""

    since: datetime
    until: datetime
    total: Contributor
    tables: Sequence[ContributorTable]


def period_before(query: UsageQuery) -> tuple[datetime, datetime]:
    """Return the period of the same length before; for a month, the month before until the same time of the month."""
    if query.range in _MONTHS:
        first = query.since.astimezone(query.zone).date().replace(day=1)
        since = start_of_day((first - _DAY).replace(day=1), query.zone)
        end = query.since if query.range == "last_month" else min(query.since, since + (query.until - query.since))
        return since, end
    # Shifted by whole days: today until this hour is compared with yesterday until the same hour.
    shift = ceil((query.until - query.since) / _DAY) * _DAY
    return query.since - shift, query.until - shift


def compare(query: UsageQuery, *, teams: Sequence[str] | None) -> Comparison | None:
    """Return the comparison with the period before; None for ratios and percentiles, which do not add up."""
    if query.metric.kind is not MetricKind.SUM:
        return None
    before = period_before(query)
    source = SOURCES["calls"] if "calls" in query.metric.columns else query.source
    column = query.metric.columns[source.name][0]
    only = {name: values for name, values in query.only.items() if name in source.names}

    def sums(of: RollupSource, name: str, span: tuple[datetime, datetime], by: Sequence[str]) -> dict[Key, float]:
        rows = queries.fetch_rows(
            RollupQuery(source=of, since=span[0], until=span[1], measures=[name], by=by, teams=teams, only=only)
        )
        return {row.key: float(row.values[name] or 0) for row in rows}

    def both(of: RollupSource, name: str, by: Sequence[str]) -> Iterator[tuple[Key, float, float]]:
        earlier, later = sums(of, name, before, by), sums(of, name, (query.since, query.until), by)
        for key in {**later, **earlier}:
            yield key, earlier.get(key, 0.0), later.get(key, 0.0)

    (total,) = [*both(source, column, ())] or [((), 0.0, 0.0)]
    tables = []
    for group, title, by in _GROUPS:
        if not _is_answered(source, by, only) or (group == "team" and teams is not None and len(teams) < 2):
            continue
        # Calls without an end user are not an end user.
        largest = _largest(row for row in both(source, column, by) if row[0] != ("",) or group != "end_user")
        named = names_of(group, [key[0] for key, _, _ in largest])
        rows = [
            Contributor(
                name=named.get(key[0], key[0]) or "none", before=first, after=last, url=_url(query, group, key[0])
            )
            for key, first, last in largest
        ]
        tables.append(ContributorTable(title=title, metric=query.metric, rows=rows))
    tools = SOURCES["tools"]
    if set(only) <= set(tools.names):
        rows = [
            Contributor(
                name=tool_name(*key),
                before=first,
                after=last,
                url=links.rows_of("tools", since=query.since, until=query.until, kind=key[0], name=key[1]),
            )
            for key, first, last in _largest(both(tools, "calls", _TOOL_GROUP[2]))
        ]
        tables.append(ContributorTable(title=_TOOL_GROUP[1], metric=METRICS["tools"], rows=rows))
    return Comparison(
        since=before[0],
        until=before[1],
        total=Contributor(name="Total", before=total[1], after=total[2]),
        tables=[table for table in tables if table.rows],
    )


def _largest(
    rows: Iterator[tuple[Key, float, float]],
) -> list[tuple[Key, float, float]]:
    changed = [row for row in rows if abs(row[2] - row[1]) > _SMALLEST]
    return sorted(changed, key=lambda row: (-abs(row[2] - row[1]), row[0]))[:TOP]


def _is_answered(source: RollupSource, by: Sequence[str], only: dict[str, list[str]]) -> bool:
    if not set(by) <= set(source.names):
        return False
    # The sums of end users have no other dimension than the team.
    return "end_user" not in by or set(only) <= {"team_id"}


def _url(query: UsageQuery, group: str, key: str) -> str:
    if group in {"team", "model", "key"}:
        return query.url(**{group: key, "group": "model" if group == "key" else "key"})
    return links.responses_of(since=query.since, until=query.until, end_user=key) if group == "end_user" and key else ""
