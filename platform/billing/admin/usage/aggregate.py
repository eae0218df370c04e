"""Values of the usage page: one per time bucket and group, with totals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from billing.admin.usage.query import MetricKind, UsageQuery
from console.widgets import state_words
from core import periods
from responses.rollups import queries
from responses.rollups.queries import RollupQuery, RollupRow
from tenants.models import ApiKey, Team, Upstream
from tenants.prices import sum_costs

TOP = 8
_FEW = 100
OTHER = "Other"
Key = tuple[str, ...]
_OTHER_KEY: Key = ("\0rest",)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """One group with its values per bucket and its total. `key` is None for the remaining groups together ("Other").

    If the metric is the cost, `unpriced` contains the number of calls per bucket whose cost is unknown.
    """

    key: Key | None
    name: str
    values: Sequence[float | None]
    total: float | None
    unpriced: Sequence[int] = ()
    total_unpriced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Result of a usage query.

    `edges` are the starts of the buckets and the end of the last one. `groups` are sorted by size, largest first.
    `other_count` is the number of groups combined in "Other".
    """

    edges: Sequence[datetime]
    groups: Sequence[UsageGroup]
    total: float | None
    other_count: int
    unpriced: int = 0


def build_report(query: UsageQuery, *, teams: Sequence[str] | None, top: int = TOP) -> UsageReport:
    """Return the `top` largest groups over time; the remaining groups are combined as "Other"."""
    measures = query.metric.columns[query.source.name]
    is_histogram = query.metric.kind is MetricKind.PERCENTILE

    def fetch(
        bucket: str, *, by: Sequence[str] = query.dimensions, only: Mapping[str, Sequence[str]] = query.only
    ) -> list[RollupRow]:
        return queries.fetch_rows(
            RollupQuery(
                source=query.source,
                since=query.since,
                until=query.until,
                measures=[*dict.fromkeys(measures)],
                by=by,
                bucket=bucket,
                zone=query.zone.key,
                teams=teams,
                only=only,
            )
        )

    def weight(row: RollupRow) -> float:
        # Ratios and percentiles rank groups by volume: the slowest group may have a single call.
        value = row.values[measures[0 if query.metric.kind is MetricKind.SUM else -1]]
        return float(sum(value) if is_histogram else value or 0)

    def value_of(sums: Mapping[str, Any] | None) -> float | None:
        # An empty bucket is zero for a sum, but a gap in the line of a ratio or percentile.
        if sums is None:
            return 0 if query.metric.kind is MetricKind.SUM else None
        return query.metric.value(query.source.name, sums)

    def drawn(value: float | None) -> float | None:
        # Calls without a price have no bar.
        return value or 0 if query.metric.kind is MetricKind.SUM else value

    # The totals decide which groups are shown. Of many groups, only these are read per bucket, because adding up all
    # others would take most of the time.
    totals = fetch("")
    shown = [row.key for row in sorted(totals, key=weight, reverse=True)[:top]]
    are_many = len(totals) > max(top, _FEW)
    values = {name: sorted({key[place] for key in shown}) for place, name in enumerate(query.dimensions)}
    parts = fetch(query.bucket, only={**query.only, **values} if are_many else query.only)
    # By group and bucket; the total of a group is in the bucket None.
    sums: dict[Key, dict[datetime | None, dict[str, Any]]] = defaultdict(dict)
    for row in [*totals, *(row for row in parts if not are_many or row.key in shown)]:
        group = sums[row.key if row.key in shown else _OTHER_KEY]
        group[row.bucket] = add_sums(group.get(row.bucket), row.values)
    if are_many:
        for row in fetch(query.bucket, by=()):
            of_shown = (sums[key][row.bucket] for key in shown if row.bucket in sums[key])
            sums[_OTHER_KEY][row.bucket] = reduce(_subtract, of_shown, row.values)
    edges, names = buckets(query), _names(query, shown)
    # The first bucket may start before the range, at the start of its day or week.
    starts = [periods.start_of(edge, query.bucket, query.zone) for edge in edges[:-1]]
    groups = [
        UsageGroup(
            key=None if key == _OTHER_KEY else key,
            name=OTHER if key == _OTHER_KEY else names[key],
            values=[drawn(value_of(sums[key].get(start))) for start in starts],
            total=value_of(sums[key][None]),
            unpriced=[sums[key].get(start, {}).get("unpriced", 0) for start in starts],
            total_unpriced=sums[key][None].get("unpriced", 0),
        )
        for key in [*shown, *([_OTHER_KEY] if len(totals) > top else [])]
    ]
    whole = reduce(add_sums, (row.values for row in totals), None)
    return UsageReport(
        edges=edges,
        groups=groups,
        total=value_of(whole),
        other_count=max(0, len(totals) - top),
        unpriced=(whole or {}).get("unpriced", 0),
    )


def add_sums(sums: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of `sums` and `more`; histograms are added bucket by bucket."""
    if sums is None:
        return dict(more)
    return {
        name: [count + added for count, added in zip(sums[name], value, strict=True)]
        if isinstance(value, list)
        else sum_costs(sums[name], value)
        if name == "cost"
        else sums[name] + value
        for name, value in more.items()
    }


def _subtract(sums: Mapping[str, Any], less: Mapping[str, Any]) -> dict[str, Any]:
    """Return the difference of two sums of which the first contains the second."""
    return {
        name: [count - removed for count, removed in zip(sums[name], value, strict=True)]
        if isinstance(value, list)
        else sums[name]
        if value is None
        else sums[name] - value
        for name, value in less.items()
    }


def buckets(query: UsageQuery) -> list[datetime]:
    """Return the starts of the buckets of a query, and the end of the last one."""
    # The first and the last bucket may be parts of a day, week or month.
    _, *inner, _ = periods.edges(query.since, query.until, query.bucket, query.zone)
    return [query.since, *inner, query.until]


def names_of(dimension: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the names of teams, API keys, upstreams, statuses or modes by id; empty for other dimensions."""
    match dimension:
        case "team":
            return dict(Team.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "key":
            return {key.pk: f"{key.name} ({key.prefix}…{key.last_four})" for key in ApiKey.objects.filter(pk__in=ids)}
        case "upstream":
            return dict(Upstream.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "status" | "mode":
            return {value: state_words(value) for value in ids}
    return {}


def tool_name(kind: str, name: str) -> str:
    """Return the name of a tool, with its kind unless it is a function: built-in tools share names with functions."""
    return name if kind == "function" else f"{name} ({state_words(kind)})"


def _names(query: UsageQuery, keys: Sequence[Key]) -> dict[Key, str]:
    match query.group.name:
        case "tool":
            return {key: tool_name(*key) for key in keys}
        case "none":
            return dict.fromkeys(keys, query.metric.title)
    known = names_of(query.group.name, [key[0] for key in keys])
    return {key: known.get(key[0], key[0]) or "none" for key in keys}
