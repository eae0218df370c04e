"""Home page: tiles, charts and panels for a period, compared with the period before. Every number links to its list.

Past activity is read from the hourly sums and current activity from partial indexes, so the cost of the page does not
depend on the number of responses. The page shows no content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.safestring import SafeString

from console import charts
from console.charts import Chart, ChartPoint, Series
from console.widgets import compact, duration
from kernel.clock import now
from responses.admin import cells
from responses.admin.home import panels as home_panels
from responses.admin.home.panels import ActiveRuns
from responses.admin.usage import links
from responses.admin.usage.aggregate import UsageReport, buckets, build_report
from responses.admin.usage.metrics import STATUS_TONES, MetricKind
from responses.admin.usage.query import UsageQuery, parse_query
from responses.models import RUNNING, Response, Status
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery, RollupRow
from responses.rollups.sources import RESPONSES
from tenants.console.roles import everywhere, teams_of

_LATEST = 10
# Smallest relative change of a latency that is coloured.
_MIN_CHANGE = 0.05
_PERIODS = {"today": "Today", "7d": "7 days", "30d": "30 days"}
_MEASURES = (
    "responses", "failed", "input_tokens", "cached_tokens", "output_tokens", "duration", "first_token",
)  # fmt: skip
_PREVIOUS = {"today": "yesterday", "7d": "previous 7 days", "30d": "previous 30 days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Number with a title, a detail line, a sparkline and a link to the list that it counts.

    `tone` and `change_tone` are "good", "bad" or empty.
    """

    title: str
    value: str
    icon: str
    url: str
    detail: str = ""
    change: str = ""
    change_tone: str = ""
    tone: str = ""
    spark: SafeString | str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSums:
    """Sums of the period by bucket and in total, and totals of the period before. Read once for all tiles."""

    query: UsageQuery
    by_bucket: Sequence[dict[str, Any]]
    total: dict[str, Any]
    previous: dict[str, Any]


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the template context of the home page. Called by Unfold (`DASHBOARD_CALLBACK`)."""
    current_time = now()
    name = request.GET.get("span", "")
    period_name = name if name in _PERIODS else "today"
    teams = None if everywhere(request) else teams_of(request)
    rows = admin.site.get_model_admin(Response).get_queryset(request)
    latest = list(rows.order_by("-created_at", "-id")[:_LATEST])
    page = {
        **context,
        "title": "Home",
        "is_fullwidth": "1",
        "periods": [(f"?span={key}", title, key == period_name) for key, title in _PERIODS.items()],
    }
    # The list is read before everything else: without responses the first steps replace the page.
    if not latest:
        return {**page, "first_steps": home_panels.first_steps(request)}
    period = _read_sums(period_name, current_time, teams)
    return {
        **page,
        "tiles": _tiles(period),
        "now_tiles": _now_tiles(home_panels.running(), current_time),
        "charts": _charts(period, teams),
        "panels": home_panels.panels(request, current_time, teams),
        "latest": _latest_table(latest),
    }


def _usage_query(period_name: str, current_time: datetime, **query: str) -> UsageQuery:
    # Built as a query string of the usage page, so that a chart here can link to the same chart there.
    parameters = QueryDict(mutable=True)
    parameters.update({"range": period_name, **query})
    return parse_query(parameters, current_time=current_time)


def _read_sums(period_name: str, current_time: datetime, teams: Sequence[str] | None) -> PeriodSums:
    query = _usage_query(period_name, current_time, metric="requests", group="none")
    by_bucket = {row.bucket: row.values for row in _sums(query, teams, query.since, query.until, query.bucket)}
    # Shifted by whole days: today until this hour is compared with yesterday until the same hour.
    whole_days = {"today": 1, "7d": 7, "30d": 30}[period_name]
    earlier = timedelta(days=whole_days)
    previous = _sums(query, teams, query.since - earlier, query.until - earlier, "")
    nothing = _zero_sums()
    # Hours without responses have no sums; zeros keep the sparklines evenly spaced.
    parts = [by_bucket.get(start, nothing) for start in buckets(query)[:-1]]
    return PeriodSums(
        query=query, by_bucket=parts, total=_merge(parts), previous=previous[0].values if previous else nothing
    )


def _sums(
    query: UsageQuery, teams: Sequence[str] | None, since: datetime, until: datetime, bucket: str
) -> list[RollupRow]:
    return queries.fetch_rows(
        RollupQuery(source=RESPONSES, since=since, until=until, measures=_MEASURES, bucket=bucket, teams=teams)
    )


def _zero_sums() -> dict[str, Any]:
    return {name: [0] if name in RESPONSES.histograms else 0 for name in _MEASURES}


def _merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total = _zero_sums()
    for part in parts:
        for name, value in part.items():
            # The zero histogram has a single bucket, so the lengths may differ.
            if isinstance(value, list):
                longer, shorter = sorted((value, total[name]), key=len, reverse=True)
                total[name] = [
                    one + (shorter[index] if index < len(shorter) else 0) for index, one in enumerate(longer)
                ]
            else:
                total[name] += value
    return total


# -- tiles -------------------------------------------------------------------------------------------------------------


def _tiles(period: PeriodSums) -> list[Tile]:
    since, until = period.query.since, period.query.until
    return [
        _count_tile(period, "Requests", "responses", "forum", links.responses(since=since, until=until)),
        _error_tile(period),
        _quantile_tile(period, "Time to first token p50", "first_token", 0.5, "ttft50"),
        _quantile_tile(period, "Time to first token p95", "first_token", 0.95, "ttft95"),
        _quantile_tile(period, "Latency p50", "duration", 0.5, "p50"),
        _quantile_tile(period, "Latency p95", "duration", 0.95, "p95"),
        _count_tile(period, "Input tokens", "input_tokens", "login", _usage_url(period, "tokens_in"), cached=True),
        _count_tile(period, "Output tokens", "output_tokens", "logout", _usage_url(period, "tokens_out")),
    ]


def _count_tile(period: PeriodSums, title: str, name: str, icon: str, url: str, *, cached: bool = False) -> Tile:
    value, previous = period.total[name], period.previous[name]
    detail = f"{compact(period.total['cached_tokens'])} cached" if cached else ""
    return Tile(
        title=title,
        value=compact(value),
        icon=icon,
        url=url,
        detail=detail,
        change=_change(value, previous, period),
        spark=charts.sparkline([part[name] for part in period.by_bucket]),
    )


def _error_tile(period: PeriodSums) -> Tile:
    share, previous = (_share(sums["failed"], sums["responses"]) for sums in (period.total, period.previous))
    return Tile(
        title="Errors",
        value="–" if share is None else f"{share:.1f} %",
        icon="error",
        url=links.responses(since=period.query.since, until=period.query.until, status=Status.FAILED.value),
        detail=f"{period.total['failed']:,} failed",
        # The difference of two percentages, in percentage points.
        change="" if share is None or previous is None else f"{share - previous:+.1f} points",
        change_tone=""
        if share is None or previous is None or share == previous
        else "bad"
        if share > previous
        else "good",
        tone="bad" if period.total["failed"] else "",
        spark=charts.sparkline([part["failed"] for part in period.by_bucket]),
    )


def _quantile_tile(period: PeriodSums, title: str, name: str, share: float, metric: str) -> Tile:
    value, previous = quantile(period.total[name], share), quantile(period.previous[name], share)
    return Tile(
        title=title,
        value=duration(value),
        icon="speed" if name == "duration" else "bolt",
        url=_usage_url(period, metric),
        change=_change(value or 0, previous or 0, period) if value is not None else "",
        change_tone=_change_tone(value, previous),
        spark=charts.sparkline([quantile(part[name], share) for part in period.by_bucket]),
    )


def _change_tone(value: float | None, previous: float | None) -> str:
    # Small changes of a percentile are noise and are not coloured.
    if not value or not previous or abs(value - previous) < previous * _MIN_CHANGE:
        return ""
    return "bad" if value > previous else "good"


def _change(value: float, previous: float, period: PeriodSums) -> str:
    # No relative change from zero.
    if not previous:
        return ""
    return f"{100 * (value - previous) / previous:+.0f} % vs. {_PREVIOUS[period.query.range]}"


def _share(part: int, total: int) -> float | None:
    return 100 * part / total if total else None


def _usage_url(period: PeriodSums, metric: str, group: str = "none") -> str:
    return f"{reverse('console:usage')}{period.query.url(metric=metric, group=group)}"


def _now_tiles(active: ActiveRuns, current_time: datetime) -> list[Tile]:
    # The lists show 24 hours by default, but a run may have begun earlier.
    running = [status.value for status in RUNNING]
    listed = {status: links.changelist("responses_response", period="30d", status__exact=status) for status in running}
    live = reverse("console:live")
    oldest = "–" if active.oldest is None else duration(round((current_time - active.oldest).total_seconds() * 1000))
    backlog = home_panels.backlog()
    pending = links.changelist("responses_webhookdelivery", period="30d", state__exact="pending")
    return [
        Tile(title="Running", value=active.format_count(active.running), icon="play_circle", url=listed["in_progress"]),
        Tile(title="Queued", value=active.format_count(active.queued), icon="hourglass", url=listed["queued"]),
        Tile(title="Oldest in queue", value=oldest, icon="schedule", url=live),
        Tile(
            title="Stuck", value=active.format_count(active.stuck), icon="warning", url=live,
            tone="bad" if active.stuck else "", detail="no heartbeat from worker",
        ),
        Tile(title="Pending webhooks", value=backlog, icon="webhook", url=pending),
    ]  # fmt: skip


# -- charts ------------------------------------------------------------------------------------------------------------


def _charts(period: PeriodSums, teams: Sequence[str] | None) -> list[tuple[str, str, Chart]]:
    """Return title, link to the usage page and chart."""
    current_time, period_name = now(), period.query.range
    # For a user with one team, a chart by team has a single series; models say more.
    by = "team" if teams is None or len(teams) > 1 else "model"
    charts_shown = [
        ("Requests by status", _usage_query(period_name, current_time, metric="requests", group="status")),
        (f"Requests by {by}", _usage_query(period_name, current_time, metric="requests", group=by)),
        ("Time to first token p95 by model", _usage_query(period_name, current_time, metric="ttft95", group="model")),
    ]
    built = [
        (title, _usage_of(query), _draw(title, query, build_report(query, teams=teams)))
        for title, query in charts_shown
    ]
    return [built[0], built[1], ("Tokens", _usage_url(period, "tokens_in", "model"), _tokens(period)), built[2]]


def _usage_of(query: UsageQuery) -> str:
    return f"{reverse('console:usage')}{query.url()}"


def _draw(title: str, query: UsageQuery, report: UsageReport) -> Chart:
    series = [
        Series(name=group.name, tone="other" if group.key is None else _series_tone(query, group.key[0], index))
        for index, group in enumerate(report.groups)
    ]
    points = [
        ChartPoint(
            name=_bucket_name(start, query),
            label=_bucket_label(start, query),
            values=[group.values[index] for group in report.groups],
            url=links.responses(since=start, until=report.edges[index + 1]),
        )
        for index, start in enumerate(report.edges[:-1])
    ]
    draw = charts.stacked if query.metric.kind is MetricKind.SUM else charts.lines
    return draw(points, series, title=title, format_value=query.metric.format_value)


def _series_tone(query: UsageQuery, key: str, index: int) -> str:
    return STATUS_TONES.get(key, f"s{index}") if query.group.name == "status" else f"s{index}"


def _tokens(period: PeriodSums) -> Chart:
    # Cached tokens are part of the input tokens, so the stack shows the uncached remainder.
    edges = buckets(period.query)
    series = [Series(name="input", tone="s0"), Series(name="cached", tone="s1"), Series(name="output", tone="s2")]
    points = [
        ChartPoint(
            name=_bucket_name(start, period.query),
            label=_bucket_label(start, period.query),
            values=[
                part["input_tokens"] - part["cached_tokens"],
                part["cached_tokens"],
                part["output_tokens"],
            ],
            url=links.responses(since=start, until=edges[index + 1]),
        )
        for index, (start, part) in enumerate(zip(edges[:-1], period.by_bucket, strict=True))
    ]
    return charts.stacked(points, series, title="Tokens")


def _bucket_name(moment: datetime, query: UsageQuery) -> str:
    return f"{moment:%d %b %H:%M} UTC" if query.bucket == "hour" else f"{moment:%d %b %Y}"


def _bucket_label(moment: datetime, query: UsageQuery) -> str:
    return f"{moment:%H:%M}" if query.bucket == "hour" else f"{moment:%d %b}"


# -- latest responses --------------------------------------------------------------------------------------------------


def _latest_table(latest: Sequence[Response]) -> dict[str, Any]:
    """Return the newest responses as rows of Unfold's table component."""
    return {
        "headers": ["Time", "Status", "Response", "Team and key", "Model", "Tokens (in / out)", "Duration"],
        "rows": [
            [
                cells.created(row),
                cells.status_and_mode(row),
                home_panels.response_link(row),
                cells.caller(row),
                cells.model(row),
                cells.tokens(row),
                cells.latency(row),
            ]
            for row in latest
        ],
    }
