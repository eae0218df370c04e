"""Values of the usage page: one per time bucket and group, with totals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from responses.admin.usage.metrics import MetricKind
from responses.admin.usage.query import UsageQuery
from responses.rollups import queries
from responses.rollups.queries import RollupQuery, RollupRow
from tenants.models import ApiKey, Team, Upstream

TOP = 8
OTHER = "Other"
_HOUR = timedelta(hours=1)
Key = tuple[str, ...]
_OTHER_KEY: Key = ("\0rest",)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """One group with its values per bucket and its total. `key` is None for the remaining groups together ("Other")."""

    key: Key | None
    name: str
    values: Sequence[float | None]
    total: float | None


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


def build_report(query: UsageQuery, *, teams: Sequence[str] | None, top: int = TOP) -> UsageReport:
    """Return the `top` largest groups over time; the remaining groups are combined as "Other"."""
    # Two reads: the totals decide which groups are shown, then the same sums are read per bucket.
    totals = _ask(query, teams, bucket="")
    ranked = sorted(totals, key=lambda row: -_weight(query, row))
    top_keys = [row.key for row in ranked[:top]]
    edges = buckets(query)
    by_group: dict[Key, dict[datetime, dict[str, Any]]] = defaultdict(dict)
    for row in _ask(query, teams, bucket=query.bucket):
        if row.bucket is not None:
            cells = by_group[row.key if row.key in top_keys else _OTHER_KEY]
            cells[row.bucket] = _added(cells.get(row.bucket), row.values)
    # The first bucket may start before the range, at the start of its day or week.
    starts = [_start(edge, query) for edge in edges[:-1]]
    sums: dict[Key, dict[str, Any]] = {}
    for row in totals:
        key = row.key if row.key in top_keys else _OTHER_KEY
        sums[key] = _added(sums.get(key), row.values)
    names = _names(query, top_keys)
    groups = [
        UsageGroup(
            key=None if key == _OTHER_KEY else key,
            name=OTHER if key == _OTHER_KEY else names[key],
            values=[_value(query, by_group[key].get(start)) for start in starts],
            total=_value(query, sums[key]),
        )
        for key in [*top_keys, *([_OTHER_KEY] if _OTHER_KEY in sums else [])]
    ]
    whole: dict[str, Any] | None = None
    for row in totals:
        whole = _added(whole, row.values)
    return UsageReport(edges=edges, groups=groups, total=_value(query, whole), other_count=max(0, len(totals) - top))


def buckets(query: UsageQuery) -> list[datetime]:
    """Return the starts of the buckets of a query, and the end of the last one."""
    edges = [query.since]
    while edges[-1] < query.until:
        edges.append(min(_next(edges[-1], query), query.until))
    return edges


def _next(moment: datetime, query: UsageQuery) -> datetime:
    if query.bucket == "hour":
        return moment + _HOUR
    # A day of the zone may have 23 or 25 hours when clocks change. Twelve hours past the nominal end is always within
    # the next bucket, whose midnight is then taken.
    length = timedelta(days=1 if query.bucket == "day" else 7)
    later = (_start(moment, query) + length + timedelta(hours=12)).astimezone(query.zone)
    midnight = later.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
    floor = midnight.replace(minute=0)
    return floor if floor == midnight else floor + _HOUR


def _start(moment: datetime, query: UsageQuery) -> datetime:
    # Must equal PostgreSQL's date_trunc in the zone of the query: the sums carry its results as bucket keys.
    if query.bucket == "hour":
        return moment.astimezone(UTC)
    local = moment.astimezone(query.zone)
    day = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if query.bucket == "week":
        day = day.replace(tzinfo=None) - timedelta(days=day.weekday())
        day = day.replace(tzinfo=query.zone)
    return day.astimezone(UTC)


def _ask(query: UsageQuery, teams: Sequence[str] | None, *, bucket: str) -> list[RollupRow]:
    columns = query.metric.columns[query.source.name]
    measures = [*dict.fromkeys(columns)]
    return queries.fetch_rows(
        RollupQuery(
            source=query.source,
            since=query.since,
            until=query.until,
            measures=measures,
            by=query.dimensions,
            bucket=bucket,
            zone=query.zone.key,
            teams=teams,
            only=query.only,
        )
    )


def _weight(query: UsageQuery, row: RollupRow) -> float:
    # Ratios and percentiles rank groups by volume: the slowest group may have a single call.
    *_, last = query.metric.columns[query.source.name]
    value = row.values[last]
    return float(sum(value)) if query.metric.kind is MetricKind.PERCENTILE else float(value)


def _added(sums: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    if sums is None:
        return dict(more)
    return {
        name: [one + other for one, other in zip(sums[name], value, strict=True)]
        if isinstance(value, list)
        else sums[name] + value
        for name, value in more.items()
    }


def _value(query: UsageQuery, sums: Mapping[str, Any] | None) -> float | None:
    # An empty bucket is zero for a sum, but a gap in the line of a ratio or percentile.
    if sums is None:
        return 0 if query.metric.kind is MetricKind.SUM else None
    return query.metric.value(query.source.name, sums)


def _names(query: UsageQuery, keys: Sequence[Key]) -> dict[Key, str]:
    ids = [key[0] for key in keys if key]
    known: dict[str, str] = {}
    match query.group.name:
        case "team":
            known = dict(Team.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "key":
            rows = ApiKey.objects.filter(pk__in=ids)
            known = {row.pk: f"{row.name} ({row.prefix}…{row.last_four})" for row in rows}
        case "upstream":
            known = dict(Upstream.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "status" | "mode":
            known = {each: each.replace("_", " ") for each in ids}
        # Built-in tools share names with functions of clients, so their kind is added.
        case "tool":
            return {key: key[1] if key[0] == "function" else f"{key[1]} ({key[0].replace('_', ' ')})" for key in keys}
        case "none":
            return dict.fromkeys(keys, query.metric.title)
    return {key: known.get(key[0], key[0]) or "none" for key in keys}
