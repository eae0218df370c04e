"""Query of the usage page, parsed from the URL.

Every URL results in a valid query: unsupported combinations are adjusted, and `notes` tell the user what was changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from django.http import QueryDict
from django.utils.http import urlencode

from responses.admin.usage.metrics import GROUPS, METRICS, SOURCES, Grouping, Metric, source_for
from responses.rollups.sources import RollupSource

MAX_RANGE = timedelta(days=366)
RANGES = {"24h": "24 hours", "today": "Today", "7d": "7 days", "30d": "30 days", "custom": "Custom"}
BUCKETS = {"hour": "Hour", "day": "Day", "week": "Week"}
VIEWS = {"bars": "Bars", "lines": "Lines", "table": "Table"}
FILTERS = {"team": "team_id", "model": "model", "key": "api_key_id"}
ZONE_COOKIE = "console_zone"
_LENGTHS = {"24h": timedelta(hours=24), "today": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
# Longer ranges by the hour would have more bars than a chart can show.
_MAX_HOURLY = timedelta(days=14)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Query of the usage page.

    `since` and `until` are whole hours (UTC). `filters` maps the names in `FILTERS` to values. `parameters` is the
    query string that leads to the same page.
    """

    metric: Metric
    group: Grouping
    source: RollupSource
    bucket: str
    view: str
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

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the dimensions of the grouping in the chosen source."""
        return self.group.dimensions[self.source.name]

    def url(self, **changes: str) -> str:
        """Return the URL of the same page with changed parameters."""
        return "?" + urlencode({name: value for name, value in {**self.parameters, **changes}.items() if value})


def parse_query(query: QueryDict, *, current_time: datetime, zone: str = "") -> UsageQuery:
    """Parse a query string. `zone` is the browser's time zone, used unless the query string has `tz`."""
    notes: list[str] = []
    metric = METRICS.get(query.get("metric", ""), METRICS["requests"])
    group = GROUPS.get(query.get("group", ""), GROUPS["status"])
    # Links to a metric show its total. The bare page starts with requests by status.
    if "metric" in query and "group" not in query:
        group = GROUPS["none"]
    given = {name: query.get(name, "").replace("\0", "").strip()[:200] for name in FILTERS}
    filters = {name: value for name, value in given.items() if value}
    metric, group, filters = _answerable(metric, group, filters, notes)
    source = source_for(metric, group, _dimensions(filters)) or SOURCES[next(iter(metric.columns))]
    local = _zone(query.get("tz") or zone, notes)
    span = query.get("range", "") if query.get("range") in RANGES else "7d"
    since, until = _span(span, query, current_time, local, notes)
    bucket = _bucket(query.get("bucket", ""), until - since, notes)
    view = query.get("view", "")
    view = view if view in VIEWS else "bars"
    parameters: dict[str, str] = {
        "metric": metric.name,
        "group": group.name,
        "range": span,
        "bucket": bucket,
        "view": view,
        **filters,
    }
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
    if source_for(metric, group, _dimensions(filters)):
        return metric, group, filters
    substitute = next((each for each in METRICS.values() if source_for(each, group, _dimensions(filters))), None)
    if group.name == "tool" and metric.name not in ("tools", "errors", "p50", "p95"):
        substitute, tool_filters = METRICS["tools"], {name: filters[name] for name in ("team",) if name in filters}
        notes.append(f"{metric.title} cannot be grouped by tool. Showing tool calls instead.")
        return _drop_filters(substitute, group, filters, tool_filters, notes)
    if group.name == "tool":
        return _drop_filters(
            metric, group, filters, {name: filters[name] for name in ("team",) if name in filters}, notes
        )
    if substitute is not None:
        notes.append(f"{metric.title} cannot be grouped by {group.title.lower()}. Showing the total instead.")
    return metric, GROUPS["none"], filters


def _drop_filters(
    metric: Metric, group: Grouping, filters: dict[str, str], remaining: dict[str, str], notes: list[str]
) -> tuple[Metric, Grouping, dict[str, str]]:
    if remaining != filters:
        notes.append("Tool calls cannot be filtered by model or API key. These filters were removed.")
    return metric, group, remaining


def _dimensions(filters: Mapping[str, str]) -> dict[str, str]:
    return {FILTERS[name]: value for name, value in filters.items()}


def _zone(name: str, notes: list[str]) -> ZoneInfo:
    if not name or name in available_timezones():
        return ZoneInfo(name or "UTC")
    notes.append("Unknown time zone. Showing times in UTC.")
    return ZoneInfo("UTC")


def _span(
    span: str, query: QueryDict, current_time: datetime, zone: ZoneInfo, notes: list[str]
) -> tuple[datetime, datetime]:
    # Whole hours, because the sums are hourly. Ranges of days are whole days of the time zone and end today.
    end = current_time.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + _HOUR
    if span == "24h":
        return end - _LENGTHS[span], end
    today = current_time.astimezone(zone).date()
    if span != "custom":
        return _hour(_midnight(today - _LENGTHS[span] + timedelta(days=1), zone)), end
    # Missing or reversed dates are corrected instead of rejected, since the fields are edited one at a time.
    first, last = (_date(query.get(name, "")) for name in ("since", "until"))
    last = min(last or today, today)
    first = min(first or last - timedelta(days=29), last)
    if last - first >= MAX_RANGE:
        first = last - MAX_RANGE + timedelta(days=1)
        notes.append("The maximum range is one year. The start date was adjusted.")
    return _hour(_midnight(first, zone)), min(_hour(_midnight(last + timedelta(days=1), zone)), end)


def _date(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if 2000 <= day.year < 2200 else None


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time.min, tzinfo=zone).astimezone(UTC)


def _hour(moment: datetime) -> datetime:
    # Round up: in zones with an offset of half an hour, an hour of the sums belongs to the day in which it begins.
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if hour == moment else hour + _HOUR


def _bucket(name: str, length: timedelta, notes: list[str]) -> str:
    if name not in BUCKETS:
        return "hour" if length <= timedelta(days=2) else "day" if length <= timedelta(days=120) else "week"
    if name == "hour" and length > _MAX_HOURLY:
        notes.append("Hourly intervals are limited to two weeks. Showing days instead.")
        return "day"
    return name
