"""The numbers of the usage page: a value for each bucket of time and each group, and what all of the time comes to."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from responses.admin.usage.metrics import Kind
from responses.admin.usage.query import Asked
from responses.rollups import queries
from responses.rollups.queries import RollupQuery, RollupRow
from tenants.models import ApiKey, Team, Upstream

TOP = 8
OTHER = "Other"
_HOUR = timedelta(hours=1)
Key = tuple[str, ...]
_REST: Key = ("\0rest",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One of the groups: its name, its values along the time, and what they come to. `key` None: all the others."""

    key: Key | None
    name: str
    values: Sequence[float | None]
    total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The buckets of time (their beginnings, and the end of the last), the groups, largest first, and the whole."""

    edges: Sequence[datetime]
    groups: Sequence[Group]
    total: float | None
    rest: int


def answer(asked: Asked, *, teams: Sequence[str] | None, top: int = TOP) -> Answer:
    """Ask twice: what is largest, then that along the time; whatever comes after the largest becomes Other."""
    totals = _ask(asked, teams, bucket="")
    ranked = sorted(totals, key=lambda row: -_weight(asked, row))
    kept = [row.key for row in ranked[:top]]
    edges = buckets(asked)
    by_group: dict[Key, dict[datetime, dict[str, Any]]] = defaultdict(dict)
    for row in _ask(asked, teams, bucket=asked.bucket):
        if row.bucket is not None:
            cells = by_group[row.key if row.key in kept else _REST]
            cells[row.bucket] = _added(cells.get(row.bucket), row.values)
    # The first bucket may begin before the span, with the day or the week that it is in.
    starts = [_start(edge, asked) for edge in edges[:-1]]
    sums: dict[Key, dict[str, Any]] = {}
    for row in totals:
        key = row.key if row.key in kept else _REST
        sums[key] = _added(sums.get(key), row.values)
    names = _names(asked, kept)
    groups = [
        Group(
            key=None if key == _REST else key,
            name=OTHER if key == _REST else names[key],
            values=[_value(asked, by_group[key].get(start)) for start in starts],
            total=_value(asked, sums[key]),
        )
        for key in [*kept, *([_REST] if _REST in sums else [])]
    ]
    whole: dict[str, Any] | None = None
    for row in totals:
        whole = _added(whole, row.values)
    return Answer(edges=edges, groups=groups, total=_value(asked, whole), rest=max(0, len(totals) - top))


def buckets(asked: Asked) -> list[datetime]:
    """Where the buckets of a question begin, and where the last one ends."""
    edges = [asked.since]
    while edges[-1] < asked.until:
        edges.append(min(_next(edges[-1], asked), asked.until))
    return edges


def _next(moment: datetime, asked: Asked) -> datetime:
    if asked.bucket == "hour":
        return moment + _HOUR
    # The clock of the zone may be put on or back within: half a day later it is surely the next, whatever happened.
    length = timedelta(days=1 if asked.bucket == "day" else 7)
    later = (_start(moment, asked) + length + timedelta(hours=12)).astimezone(asked.zone)
    midnight = later.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
    floor = midnight.replace(minute=0)
    return floor if floor == midnight else floor + _HOUR


def _start(moment: datetime, asked: Asked) -> datetime:
    """What PostgreSQL's date_trunc makes of an hour, in the zone of the question."""
    if asked.bucket == "hour":
        return moment.astimezone(UTC)
    local = moment.astimezone(asked.zone)
    day = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if asked.bucket == "week":
        day = day.replace(tzinfo=None) - timedelta(days=day.weekday())
        day = day.replace(tzinfo=asked.zone)
    return day.astimezone(UTC)


def _ask(asked: Asked, teams: Sequence[str] | None, *, bucket: str) -> list[RollupRow]:
    columns = asked.metric.columns[asked.source.name]
    measures = [*dict.fromkeys(columns)]
    return queries.fetch_rows(
        RollupQuery(
            source=asked.source,
            since=asked.since,
            until=asked.until,
            measures=measures,
            by=asked.dimensions,
            bucket=bucket,
            zone=asked.zone.key,
            teams=teams,
            only=asked.only,
        )
    )


def _weight(asked: Asked, row: RollupRow) -> float:
    """By what groups are ranked: by how much there is of them, not by how slow or broken they are."""
    *_, last = asked.metric.columns[asked.source.name]
    value = row.values[last]
    return float(sum(value)) if asked.metric.kind is Kind.PERCENTILE else float(value)


def _added(sums: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    if sums is None:
        return dict(more)
    return {
        name: [one + other for one, other in zip(sums[name], value, strict=True)]
        if isinstance(value, list)
        else sums[name] + value
        for name, value in more.items()
    }


def _value(asked: Asked, sums: Mapping[str, Any] | None) -> float | None:
    if sums is None:
        return 0 if asked.metric.kind is Kind.SUM else None
    return asked.metric.value(asked.source.name, sums)


def _names(asked: Asked, keys: Sequence[Key]) -> dict[Key, str]:
    """What people call these groups."""
    ids = [key[0] for key in keys if key]
    known: dict[str, str] = {}
    match asked.group.name:
        case "team":
            known = dict(Team.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "key":
            rows = ApiKey.objects.filter(pk__in=ids)
            known = {row.pk: f"{row.name} ({row.prefix}…{row.last_four})" for row in rows}
        case "upstream":
            known = dict(Upstream.objects.filter(pk__in=ids).values_list("pk", "name"))
        case "status" | "mode":
            known = {each: each.replace("_", " ") for each in ids}
        case "tool":
            return {key: key[1] if key[0] == "function" else f"{key[1]} ({key[0].replace('_', ' ')})" for key in keys}
        case "none":
            return dict.fromkeys(keys, asked.metric.title)
    return {key: known.get(key[0], key[0]) or "none" for key in keys}
