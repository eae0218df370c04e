"""Query of the usage page, parsed from the URL, with the metrics and groupings that it can choose.

Every URL results in a valid query: unsupported combinations are adjusted, and `notes` tell the user what was changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.http import QueryDict
from django.utils.http import urlencode

from console import charts
from core.periods import end_of_hour, start_of_day
from responses.rollups import histograms
from responses.rollups.sources import CALLS, RESPONSES, TOOLS, RollupSource
from tenants.prices import amount

SOURCES: Mapping[str, RollupSource] = {source.name: source for source in (RESPONSES, CALLS, TOOLS)}


# Tones are class names of charts.css.
STATUS_TONES: Mapping[str, str] = {
    "completed": "good",
    "failed": "bad",
    "incomplete": "warn",
    "cancelled": "other",
    "in_progress": "s5",
    "queued": "s7",
}


class MetricKind(Enum):
    """Computation of a metric: a sum, the ratio of two sums in percent, or a percentile of a histogram."""

    SUM = "sum"
    SHARE = "share"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Metric of the usage page.

    `columns` are the columns it is computed from, by source, in order of preference: the first source that has the
    grouping and the filters is used. `share` is the percentile between 0 and 1.
    """

    name: str
    title: str
    columns: Mapping[str, tuple[str, ...]]
    kind: MetricKind = MetricKind.SUM
    share: float = 0
    format_value: Callable[[float], str] = charts.number

    def value(self, source: str, sums: Mapping[str, Any]) -> float | None:
        """Return the value computed from sums, or None without data."""
        first, *others = self.columns[source]
        match self.kind:
            case MetricKind.PERCENTILE:
                return histograms.quantile(sums[first], self.share)
            case MetricKind.SHARE:
                whole = sums[others[0]]
                return 100 * sums[first] / whole if whole else None
            case MetricKind.SUM:
                return None if sums[first] is None else float(sums[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Grouping of a metric: its dimensions in each source that has them."""

    name: str
    title: str
    dimensions: Mapping[str, tuple[str, ...]]


def dollars(value: float) -> str:
    """Format a cost in US dollars: two decimals, four below one dollar."""
    return amount(Decimal(f"{value:.{2 if value >= 1 else 4}f}"))


def _tokens(name: str, title: str, column: str) -> Metric:
    return Metric(name=name, title=title, columns={"responses": (column,), "calls": (column,)})


def _percentile(name: str, title: str, share: float, **columns: tuple[str, ...]) -> Metric:
    return Metric(
        name=name,
        title=title,
        columns=columns,
        kind=MetricKind.PERCENTILE,
        share=share,
        format_value=charts.milliseconds,
    )


_DURATION: dict[str, tuple[str, ...]] = {"responses": ("duration",), "tools": ("duration",), "calls": ("duration",)}
_FIRST: dict[str, tuple[str, ...]] = {"responses": ("first_token",)}
_ERRORS = {"responses": ("failed", "responses"), "tools": ("failed", "calls"), "calls": ("failed", "calls")}

METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="requests", title="Responses", columns={"responses": ("responses",)}),
        Metric(name="errors", title="Error rate", columns=_ERRORS, kind=MetricKind.SHARE, format_value=charts.percent),
        _tokens("tokens_in", "Input tokens", "input_tokens"),
        _tokens("tokens_cached", "Cached tokens", "cached_tokens"),
        _tokens("tokens_out", "Output tokens", "output_tokens"),
        Metric(name="tools", title="Tool calls", columns={"responses": ("tool_calls",), "tools": ("calls",)}),
        _percentile("p50", "Latency p50", 0.5, **_DURATION),
        _percentile("p95", "Latency p95", 0.95, **_DURATION),
        _percentile("ttft50", "Time to first token p50", 0.5, **_FIRST),
        _percentile("ttft95", "Time to first token p95", 0.95, **_FIRST),
        Metric(name="calls", title="Model calls (all endpoints)", columns={"calls": ("calls",)}),
        Metric(name="cost", title="Cost", columns={"calls": ("cost", "unpriced")}, format_value=dollars),
    )
}
GROUPS = {
    group.name: group
    for group in (
        Grouping(name="none", title="None", dimensions={"responses": (), "calls": (), "tools": ()}),
        Grouping(name="team", title="Team", dimensions=dict.fromkeys(SOURCES, ("team_id",))),
        Grouping(name="key", title="API key", dimensions=dict.fromkeys(("responses", "calls"), ("api_key_id",))),
        Grouping(name="model", title="Model", dimensions=dict.fromkeys(("responses", "calls"), ("model",))),
        Grouping(name="upstream", title="Upstream", dimensions=dict.fromkeys(("responses", "calls"), ("upstream_id",))),
        Grouping(name="status", title="Status", dimensions={"responses": ("status",), "tools": ("status",)}),
        Grouping(name="mode", title="Mode", dimensions={"responses": ("mode",)}),
        Grouping(name="endpoint", title="Endpoint", dimensions={"calls": ("endpoint",)}),
        Grouping(name="tool", title="Tool", dimensions={"tools": ("kind", "name")}),
    )
}


def source_for(metric: Metric, group: Grouping, filters: Mapping[str, str]) -> RollupSource | None:
    """Return the first source that has the metric, the grouping and the filtered dimensions, or None."""
    wanted = {FILTERS[name] for name in filters}
    found = (SOURCES[name] for name in metric.columns if name in group.dimensions)
    return next((source for source in found if wanted <= set(source.names)), None)


# -- queries -----------------------------------------------------------------------------------------------------------

MAX_RANGE = timedelta(days=366)
RANGES = {
    "24h": "24 hours",
    "today": "Today",
    "yesterday": "Yesterday",
    "7d": "7 days",
    "30d": "30 days",
    "last_week": "Last week",
    "this_month": "This month",
    "last_month": "Last month",
    "custom": "Custom",
}
BUCKETS = {"hour": "Hour", "day": "Day", "week": "Week", "month": "Month"}
VIEWS = {"bars": "Bars", "lines": "Lines", "table": "Table"}
FILTERS = {"team": "team_id", "model": "model", "key": "api_key_id"}
ZONE_COOKIE = "console_zone"
_LENGTHS = {"24h": timedelta(hours=24), "today": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
# Longer ranges by the hour would have more bars than a chart can show.
_MAX_HOURLY = timedelta(days=14)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Query of the usage page or of its pivot.

    `since` and `until` are whole hours (UTC) or starts of days of the zone. `filters` maps the names in `FILTERS` to
    values. `parameters` is the query string that leads to the same page.
    """

    metric: Metric
    range: str
    zone: ZoneInfo
    since: datetime
    until: datetime
    filters: Mapping[str, str]
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def only(self) -> dict[str, list[str]]:
        """Return the filters by dimension."""
        return {FILTERS[name]: [value] for name, value in self.filters.items()}

    def url(self, **changes: str) -> str:
        """Return the URL of the same page with changed parameters."""
        return "?" + urlencode({name: value for name, value in {**self.parameters, **changes}.items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery(ReportQuery):
    """Query of the usage page."""

    group: Grouping
    source: RollupSource
    bucket: str
    view: str

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the dimensions of the grouping in the chosen source."""
        return self.group.dimensions[self.source.name]


def parse_query(query: QueryDict, *, current_time: datetime, zone: str = "") -> UsageQuery:
    """Parse a query string. `zone` is the browser's time zone, used unless the query string has `tz`."""
    notes: list[str] = []
    metric = METRICS.get(query.get("metric", ""), METRICS["requests"])
    group = GROUPS.get(query.get("group", ""), GROUPS["status"])
    # Links to a metric show its total. The bare page starts with requests by status.
    if "metric" in query and "group" not in query:
        group = GROUPS["none"]
    metric, group, filters = _answerable(metric, group, parse_filters(query), notes)
    source = source_for(metric, group, filters) or SOURCES[next(iter(metric.columns))]
    span, local, since, until = parse_span(query, current_time=current_time, zone=zone, default="7d", notes=notes)
    bucket, length = query.get("bucket", ""), until - since
    if bucket not in BUCKETS:
        bucket = "hour" if length <= timedelta(days=2) else "day" if length <= timedelta(days=120) else "week"
    elif bucket == "hour" and length > _MAX_HOURLY:
        bucket = "day"
        notes.append("Hourly intervals are limited to two weeks. Showing days instead.")
    view = query.get("view", "")
    view = view if view in VIEWS else "bars"
    parameters = {"metric": metric.name, "group": group.name, "range": span, "bucket": bucket, "view": view, **filters}
    if span == "custom":
        parameters |= {"since": query.get("since", ""), "until": query.get("until", "")}
    return UsageQuery(
        metric=metric,
        group=group,
        source=source,
        bucket=bucket,
        view=view,
        range=span,
        zone=local,
        since=since,
        until=until,
        filters=filters,
        notes=tuple(notes),
        parameters={**parameters, "tz": local.key},
    )


def parse_filters(query: QueryDict) -> dict[str, str]:
    """Return the values of the filters that are set."""
    given = {name: query.get(name, "").replace("\0", "").strip()[:200] for name in FILTERS}
    return {name: value for name, value in given.items() if value}


@lru_cache(maxsize=1)
def zones() -> list[str]:
    """Return the names of all time zones, sorted."""
    return sorted(available_timezones())


def _answerable(
    metric: Metric, group: Grouping, filters: dict[str, str], notes: list[str]
) -> tuple[Metric, Grouping, dict[str, str]]:
    """Return the closest combination that a source supports.

    Sums of tool calls have no model or key, and sums of responses have no endpoint.
    """
    if source_for(metric, group, filters):
        return metric, group, filters
    if group.name == "tool":
        if metric.name not in ("tools", "errors", "p50", "p95"):
            notes.append(f"{metric.title} cannot be grouped by tool. Showing tool calls instead.")
            metric = METRICS["tools"]
        remaining = {name: value for name, value in filters.items() if name == "team"}
        if remaining != filters:
            notes.append("Tool calls cannot be filtered by model or API key. These filters were removed.")
        return metric, group, remaining
    if any(source_for(candidate, group, filters) for candidate in METRICS.values()):
        notes.append(f"{metric.title} cannot be grouped by {group.title.lower()}. Showing the total instead.")
    return metric, GROUPS["none"], filters


def parse_span(
    query: QueryDict, *, current_time: datetime, zone: str, default: str, notes: list[str]
) -> tuple[str, ZoneInfo, datetime, datetime]:
    """Return the name of the range of a query, the time zone, and the first and the last moment."""
    local = _zone(query.get("tz") or zone, notes)
    name = query.get("range", "") if query.get("range") in RANGES else default
    since, until = _range(name, query, current_time, local, notes)
    return name, local, since, until


def _zone(name: str, notes: list[str]) -> ZoneInfo:
    """Return a time zone by its name; an unknown one adds a note."""
    if name and name not in available_timezones():
        notes.append("Unknown time zone. Showing times in UTC.")
        name = ""
    return ZoneInfo(name or "UTC")


def _range(
    span: str, query: QueryDict, current_time: datetime, zone: ZoneInfo, notes: list[str]
) -> tuple[datetime, datetime]:
    """Return the first and the last moment of one of `RANGES`."""
    # Ranges of days are whole days of the time zone and end today.
    end = end_of_hour(current_time)
    if span == "24h":
        return end - _LENGTHS[span], end
    today = current_time.astimezone(zone).date()
    month = today.replace(day=1)
    if span == "this_month":
        return start_of_day(month, zone), end
    if span == "last_month":
        return start_of_day((month - timedelta(days=1)).replace(day=1), zone), start_of_day(month, zone)
    if span == "yesterday":
        return start_of_day(today - timedelta(days=1), zone), start_of_day(today, zone)
    if span == "last_week":
        monday = today - timedelta(days=today.weekday())
        return start_of_day(monday - timedelta(days=7), zone), start_of_day(monday, zone)
    if span != "custom":
        return start_of_day(today - _LENGTHS[span] + timedelta(days=1), zone), end
    # Missing or reversed dates are corrected instead of rejected, since the fields are edited one at a time.
    first, last = (_date(query.get(name, "")) for name in ("since", "until"))
    last = min(last or today, today)
    first = min(first or last - timedelta(days=29), last)
    if last - first >= MAX_RANGE:
        first = last - MAX_RANGE + timedelta(days=1)
        notes.append("The maximum range is one year. The start date was adjusted.")
    return start_of_day(first, zone), min(start_of_day(last + timedelta(days=1), zone), end)


def _date(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if 2000 <= day.year < 2200 else None
