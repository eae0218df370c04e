"""What the address of the usage page asks for. Whatever it says, a question comes out; notes say what was changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from django.http import QueryDict
from django.utils.http import urlencode

from responses.admin.usage.metrics import GROUPS, METRICS, SOURCES, Group, Metric, source_of
from responses.rollups.sources import RollupSource

LONGEST = timedelta(days=366)
RANGES = {"24h": "24 hours", "today": "Today", "7d": "7 days", "30d": "30 days", "custom": "Custom"}
BUCKETS = {"hour": "Hour", "day": "Day", "week": "Week"}
VIEWS = {"bars": "Bars", "lines": "Lines", "table": "Table"}
FILTERS = {"team": "team_id", "model": "model", "key": "api_key_id"}
ZONE_COOKIE = "console_zone"
_LENGTHS = {"24h": timedelta(hours=24), "today": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
_MOST_HOURS = timedelta(days=14)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question of the usage page. `since` and `until` are whole hours; `chosen` are the values of its filters."""

    metric: Metric
    group: Group
    source: RollupSource
    bucket: str
    view: str
    range: str
    zone: ZoneInfo
    since: datetime
    until: datetime
    chosen: Mapping[str, str]
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def only(self) -> dict[str, list[str]]:
        """The filters as dimensions."""
        return {FILTERS[name]: [value] for name, value in self.chosen.items()}

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions of the group."""
        return self.group.dimensions[self.source.name]

    def url(self, **changes: str) -> str:
        """The address of the same page with something changed."""
        return "?" + urlencode({name: value for name, value in {**self.parameters, **changes}.items() if value})


def asked(query: QueryDict, *, present: datetime, zone: str = "") -> Asked:
    """Read an address; `zone` is the time zone that the browser has named before."""
    notes: list[str] = []
    metric = METRICS.get(query.get("metric", ""), METRICS["requests"])
    group = GROUPS.get(query.get("group", ""), GROUPS["status"])
    if "metric" in query and "group" not in query:
        group = GROUPS["none"]
    filters = {name: query.get(name, "").replace("\0", "").strip()[:200] for name in FILTERS}
    chosen = {name: value for name, value in filters.items() if value}
    metric, group, chosen = _possible(metric, group, chosen, notes)
    found = source_of(metric, group, _dimensions(chosen)) or SOURCES[next(iter(metric.columns))]
    local = _zone(query.get("tz") or zone, notes)
    span = query.get("range", "") if query.get("range") in RANGES else "7d"
    since, until = _span(span, query, present, local, notes)
    bucket = _bucket(query.get("bucket", ""), until - since, notes)
    view = query.get("view", "")
    view = view if view in VIEWS else "bars"
    parameters: dict[str, str] = {
        "metric": metric.name,
        "group": group.name,
        "range": span,
        "bucket": bucket,
        "view": view,
        **chosen,
    }
    if span == "custom":
        parameters |= {"since": query.get("since", ""), "until": query.get("until", "")}
    return Asked(
        metric=metric,
        group=group,
        source=found,
        bucket=bucket,
        view=view,
        range=span,
        zone=local,
        since=since,
        until=until,
        chosen=chosen,
        notes=tuple(notes),
        parameters={**parameters, "tz": local.key},
    )


@lru_cache(maxsize=1)
def zones() -> list[str]:
    """All time zones, by name."""
    return sorted(available_timezones())


def _possible(
    metric: Metric, group: Group, chosen: dict[str, str], notes: list[str]
) -> tuple[Metric, Group, dict[str, str]]:
    """The nearest that can be answered: sums of tool calls know no model, those of responses no endpoint."""
    if source_of(metric, group, _dimensions(chosen)):
        return metric, group, chosen
    fitting = next((each for each in METRICS.values() if source_of(each, group, _dimensions(chosen))), None)
    if group.name == "tool" and metric.name not in ("tools", "errors", "p50", "p95"):
        fitting, chosen_for_tools = METRICS["tools"], {name: chosen[name] for name in ("team",) if name in chosen}
        notes.append(f"{metric.title} cannot be told apart by tool: these are tool calls.")
        return _without(fitting, group, chosen, chosen_for_tools, notes)
    if group.name == "tool":
        return _without(metric, group, chosen, {name: chosen[name] for name in ("team",) if name in chosen}, notes)
    if fitting is not None:
        notes.append(f"{metric.title} cannot be told apart by {group.title.lower()}: this is not grouped.")
    return metric, GROUPS["none"], chosen


def _without(
    metric: Metric, group: Group, chosen: dict[str, str], kept: dict[str, str], notes: list[str]
) -> tuple[Metric, Group, dict[str, str]]:
    if kept != chosen:
        notes.append("Tool calls are not counted by model or key: those filters are off.")
    return metric, group, kept


def _dimensions(chosen: Mapping[str, str]) -> dict[str, str]:
    return {FILTERS[name]: value for name, value in chosen.items()}


def _zone(name: str, notes: list[str]) -> ZoneInfo:
    if not name or name in available_timezones():
        return ZoneInfo(name or "UTC")
    notes.append("There is no time zone of that name: times are UTC.")
    return ZoneInfo("UTC")


def _span(
    span: str, query: QueryDict, present: datetime, zone: ZoneInfo, notes: list[str]
) -> tuple[datetime, datetime]:
    """Whole hours; of days, whole days of the time zone, today being the last of those."""
    end = present.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + _HOUR
    if span == "24h":
        return end - _LENGTHS[span], end
    today = present.astimezone(zone).date()
    if span != "custom":
        return _hour(_midnight(today - _LENGTHS[span] + timedelta(days=1), zone)), end
    first, last = (_date(query.get(name, "")) for name in ("since", "until"))
    last = min(last or today, today)
    first = min(first or last - timedelta(days=29), last)
    if last - first >= LONGEST:
        first = last - LONGEST + timedelta(days=1)
        notes.append("A year is the most that is shown at once.")
    return _hour(_midnight(first, zone)), min(_hour(_midnight(last + timedelta(days=1), zone)), end)


def _date(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if 2000 <= found.year < 2200 else None


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time.min, tzinfo=zone).astimezone(UTC)


def _hour(moment: datetime) -> datetime:
    """The first hour that begins then or later: an hour belongs to the day in which it begins, in any time zone."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if hour == moment else hour + _HOUR


def _bucket(wanted: str, length: timedelta, notes: list[str]) -> str:
    if wanted not in BUCKETS:
        return "hour" if length <= timedelta(days=2) else "day" if length <= timedelta(days=120) else "week"
    if wanted == "hour" and length > _MOST_HOURS:
        notes.append("Hours are shown of two weeks at most: these are days.")
        return "day"
    return wanted
