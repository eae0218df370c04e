"""Home page: tiles, charts and panels for a period, compared with the period before. Every number links to its list.

Past activity is read from sums of hours and days, current activity from partial indexes, so the cost of the page does
not depend on the number of responses. The page shows no content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.safestring import SafeString

from billing.admin.rejections import rejected, rejections_by_limit, rejections_chart
from billing.admin.usage import links
from billing.admin.usage.aggregate import add_sums, buckets, build_report
from billing.admin.usage.pages import chart, chart_points
from billing.admin.usage.query import UsageQuery, dollars, parse_query
from console import charts
from console.charts import Chart, Series
from console.widgets import changelist_url, compact, copyable, duration
from core.clock import now
from responses.admin import cells
from responses.admin.live.active import MAX_AWAITING, count_text, read_active
from responses.models import Response, Status
from responses.rollups import queries
from responses.rollups.histograms import BUCKETS, quantile
from responses.rollups.queries import RollupQuery, RollupRow
from responses.rollups.sources import CALLS, RESPONSES
from responses.webhooks.models import WebhookDelivery
from server.admin.first_steps import first_steps, is_model_missing
from server.admin.home_panels import panels
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import DeliveryState
from tenants.prices import NO_PRICE, sum_costs

MAX_ROWS = 1000
"""Rows read at most for a count of current activity; a count that reaches it is shown with a plus sign."""

_LATEST, _SHOWN_TEAMS = 10, 10
# Smallest relative change of a latency that is coloured.
_MIN_CHANGE = 0.05
# Title of each period, its length in days, and the name of the period before.
_PERIODS = {
    "today": ("Today", 1, "yesterday"),
    "7d": ("7 days", 7, "previous 7 days"),
    "30d": ("30 days", 30, "previous 30 days"),
}
_MEASURES = (
    "responses", "failed", "input_tokens", "cached_tokens", "output_tokens", "duration", "first_token",
)  # fmt: skip
_NO_SUMS: dict[str, Any] = {name: [0] * BUCKETS if name in RESPONSES.histograms else 0 for name in _MEASURES}


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


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the template context of the home page. Called by Unfold (`DASHBOARD_CALLBACK`)."""
    current_time = now()
    name = request.GET.get("span", "")
    period = name if name in _PERIODS else "today"
    viewer = viewer_of(request)
    teams = viewer.team_ids()
    rows = admin.site.get_model_admin(Response).get_queryset(request)
    latest = list(rows.order_by("-created_at", "-id")[:_LATEST])
    page = {
        **context,
        "title": "Home",
        "is_fullwidth": "1",
        "periods": [(f"?span={key}", title, key == period) for key, (title, *_) in _PERIODS.items()],
    }
    # The list is read before everything else: without responses the first steps replace the page.
    if not latest:
        return {**page, "first_steps": first_steps(request)}
    query = _usage_query(period, current_time, metric="requests", group="none")
    sums = {row.bucket: row.values for row in _sums(query, teams, bucket=query.bucket)}
    # Hours without responses have no sums; zeros keep the sparklines evenly spaced.
    parts = [sums.get(start, _NO_SUMS) for start in buckets(query)[:-1]]
    # Shifted by whole days: today until this hour is compared with yesterday until the same hour.
    earlier = timedelta(days=_PERIODS[period][1])
    before = _sums(query, teams, earlier=earlier)
    activity = _tiles(query, parts, before[0].values if before else _NO_SUMS)
    rejections = rejections_by_limit(teams, edges=buckets(query))
    cost = _cost_tile(query, teams, earlier=earlier)
    refused = _rejected_tile(query, rejections, teams, earlier=earlier)
    # A member asks first what the team has spent and what has failed, an operator what the platform does.
    tiles = [*activity, cost, refused] if teams is None else [cost, activity[1], refused, activity[0], *activity[2:]]
    return {
        **page,
        # Without a model, nothing can be requested, whatever was stored before.
        "first_steps": first_steps(request, since=current_time) if is_model_missing(request) else None,
        "own_teams": [] if teams is None else _own_teams(viewer),
        "tiles": tiles,
        "now_tiles": _now_tiles(viewer, current_time),
        "charts": _charts(query, parts, teams, rejections),
        "panels": panels(request, viewer, current_time=current_time),
        "latest": {
            "headers": ["Time", "Status", "Response", "Team and key", "Model", "Tokens (in / out)", "Duration"],
            "rows": [
                [
                    cells.created(row),
                    cells.status_and_mode(row),
                    copyable(row.pk, href=cells.url(row.pk)),
                    cells.caller(row),
                    cells.model(row),
                    cells.tokens(row),
                    cells.latency(row),
                ]
                for row in latest
            ],
        },
    }


def _own_teams(viewer: Viewer) -> list[tuple[str, str]]:
    """Return the names of the user's teams with the URLs of their pages."""
    return [(team.name, reverse("admin:tenants_team_change", args=[team.pk])) for team in viewer.teams()[:_SHOWN_TEAMS]]


def _usage_query(period: str, current_time: datetime, **query: str) -> UsageQuery:
    # Built as a query string of the usage page, so that a chart here can link to the same chart there.
    parameters = QueryDict(mutable=True)
    parameters.update({"range": period, **query})
    return parse_query(parameters, current_time=current_time)


def _sums(
    query: UsageQuery, teams: Sequence[str] | None, *, bucket: str = "", earlier: timedelta = timedelta()
) -> list[RollupRow]:
    since, until = query.since - earlier, query.until - earlier
    return queries.fetch_rows(
        RollupQuery(source=RESPONSES, since=since, until=until, measures=_MEASURES, bucket=bucket, teams=teams)
    )


# -- tiles -------------------------------------------------------------------------------------------------------------


def _tiles(query: UsageQuery, parts: Sequence[dict[str, Any]], before: dict[str, Any]) -> list[Tile]:
    total = reduce(add_sums, parts, _NO_SUMS)

    change, usage = partial(_change, query), partial(_usage_url, query)

    def count(title: str, name: str, icon: str, url: str, detail: str = "") -> Tile:
        return Tile(
            title=title,
            value=compact(total[name]),
            icon=icon,
            url=url,
            detail=detail,
            change=change(total[name], before[name]),
            spark=charts.sparkline([part[name] for part in parts]),
        )

    def percentile(title: str, name: str, share: float, metric: str) -> Tile:
        value, previous = quantile(total[name], share), quantile(before[name], share)
        tone = ""
        # Small changes of a percentile are noise and are not coloured.
        if value and previous and abs(value - previous) >= previous * _MIN_CHANGE:
            tone = "bad" if value > previous else "good"
        return Tile(
            title=title,
            value=duration(value),
            icon="speed" if name == "duration" else "bolt",
            url=usage(metric),
            change=change(value, previous or 0) if value is not None else "",
            change_tone=tone,
            spark=charts.sparkline([quantile(part[name], share) for part in parts]),
        )

    def errors() -> Tile:
        share, previous = (
            100 * sums["failed"] / sums["responses"] if sums["responses"] else None for sums in (total, before)
        )
        # The difference of two percentages, in percentage points.
        points = None if share is None or previous is None else share - previous
        return Tile(
            title="Errors",
            value="–" if share is None else f"{share:.1f} %",
            icon="error",
            url=links.rows_of("responses", since=query.since, until=query.until, status=Status.FAILED.value),
            detail=f"{total['failed']:,} failed",
            change="" if points is None else f"{points:+.1f} points",
            change_tone="" if not points else "bad" if points > 0 else "good",
            tone="bad" if total["failed"] else "",
            spark=charts.sparkline([part["failed"] for part in parts]),
        )

    cached = f"{compact(total['cached_tokens'])} cached"
    listed = links.rows_of("responses", since=query.since, until=query.until)
    return [
        count("Requests", "responses", "forum", listed),
        errors(),
        percentile("First token p50", "first_token", 0.5, "ttft50"),
        percentile("First token p95", "first_token", 0.95, "ttft95"),
        percentile("Latency p50", "duration", 0.5, "p50"),
        percentile("Latency p95", "duration", 0.95, "p95"),
        count("Input tokens", "input_tokens", "login", usage("tokens_in"), cached),
        count("Output tokens", "output_tokens", "logout", usage("tokens_out")),
    ]


def _change(query: UsageQuery, value: float, previous: float) -> str:
    # A change from zero has no percentage.
    return f"{100 * (value - previous) / previous:+.0f} % vs. {_PERIODS[query.range][2]}" if previous else ""


def _usage_url(query: UsageQuery, metric: str) -> str:
    return f"{reverse('console:usage')}{query.url(metric=metric, group='none')}"


def _cost_tile(query: UsageQuery, teams: Sequence[str] | None, *, earlier: timedelta) -> Tile:
    """Return the tile of the cost of all endpoints."""
    now_and_then = [
        RollupQuery(source=CALLS, since=since, until=until, measures=("cost", "unpriced"), bucket=bucket, teams=teams)
        for since, until, bucket in (
            (query.since, query.until, query.bucket),
            (query.since - earlier, query.until - earlier, ""),
        )
    ]
    rows, before = map(queries.fetch_rows, now_and_then)
    costs = {row.bucket: row.values["cost"] for row in rows}
    unpriced = sum(row.values["unpriced"] for row in rows)
    total, previous = reduce(sum_costs, costs.values(), None), before[0].values["cost"] if before else None
    return Tile(
        title="Cost",
        # Calls without a price are not free.
        value=NO_PRICE if total is None and rows else dollars(float(total or 0)),
        icon="payments",
        url=_usage_url(query, "cost"),
        detail=f"plus {unpriced:,} without a price" if unpriced and total is not None else "",
        change=_change(query, float(total), float(previous)) if total is not None and previous else "",
        spark=charts.sparkline([float(costs.get(start) or 0) for start in buckets(query)[:-1]]),
    )


def _rejected_tile(
    query: UsageQuery, rejections: Mapping[str, Sequence[int]], teams: Sequence[str] | None, *, earlier: timedelta
) -> Tile:
    """Return the tile of the requests that limits have rejected."""
    before = rejected(teams=teams, since=query.since - earlier, until=query.until - earlier)
    total = sum(map(sum, rejections.values()))
    return Tile(
        title="Rejected",
        value=f"{total:,}",
        icon="block",
        url=f"{reverse('console:rejections')}?range={query.range}",
        detail="by limits",
        change=_change(query, total, before),
    )


def _now_tiles(viewer: Viewer, current_time: datetime) -> list[Tile]:
    """Return the tiles of active runs, limited by row-level security to the user's teams, and of pending deliveries."""
    active = read_active(viewer.visible_teams)
    oldest, stuck = active.oldest_queued, active.stuck(current_time)
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)[:MAX_ROWS].count()
    # The lists show 24 hours by default, but a run may have begun earlier.
    in_progress, waiting = (
        changelist_url("responses_response", period="30d", status__exact=status)
        for status in (Status.IN_PROGRESS.value, Status.QUEUED.value)
    )
    deliveries = changelist_url("responses_webhookdelivery", period="30d", state__exact="pending")
    live = reverse("console:live")
    age = "–" if oldest is None else duration(round((current_time - oldest).total_seconds() * 1000))
    return [
        Tile(title="Running", value=count_text(active.running), icon="play_circle", url=in_progress),
        Tile(title="Queued", value=count_text(active.queued), icon="hourglass", url=waiting),
        Tile(
            title="Awaiting approval", value=count_text(len(active.decisions), MAX_AWAITING), icon="front_hand",
            url=reverse("console:approvals"),
        ),
        Tile(title="Oldest in queue", value=age, icon="schedule", url=live),
        Tile(
            title="Stuck", value=count_text(stuck), icon="warning", url=live,
            tone="bad" if stuck else "", detail="make no progress",
        ),
        Tile(title="Pending webhooks", value=count_text(pending, MAX_ROWS), icon="webhook", url=deliveries),
    ]  # fmt: skip


# -- charts ------------------------------------------------------------------------------------------------------------


def _charts(
    query: UsageQuery,
    parts: Sequence[dict[str, Any]],
    teams: Sequence[str] | None,
    rejections: Mapping[str, Sequence[int]],
) -> list[tuple[str, str, Chart]]:
    """Return the charts, each with its title and the link to the usage page that shows the same chart."""
    # For a user with one team, a chart by team has a single series; models say more.
    by = "team" if teams is None or len(teams) > 1 else "model"
    built = []
    for title, metric, group in (
        ("Requests by status", "requests", "status"),
        (f"Requests by {by}", "requests", by),
        (f"Cost by {by}", "cost", by),
        ("Time to first token p95 by model", "ttft95", "model"),
    ):
        shown = _usage_query(query.range, now(), metric=metric, group=group)
        drawn = chart(shown, build_report(shown, teams=teams), title=title, suffix=" UTC")
        built.append((title, f"{reverse('console:usage')}{shown.url()}", drawn))
    # Cached tokens are part of the input tokens, so the stack shows the uncached remainder.
    values = [
        (part["input_tokens"] - part["cached_tokens"], part["cached_tokens"], part["output_tokens"]) for part in parts
    ]
    series = [Series(name="Input", tone="s0"), Series(name="Cached", tone="s1"), Series(name="Output", tone="s2")]
    tokens = charts.stacked(chart_points(query, buckets(query), values, suffix=" UTC"), series, title="Tokens")
    url = f"{reverse('console:usage')}{query.url(metric='tokens_in', group='model')}"
    limits = (
        "Rejected requests by limit",
        f"{reverse('console:rejections')}?range={query.range}",
        rejections_chart(query, rejections, edges=buckets(query)),
    )
    return [*built[:2], ("Tokens", url, tokens), *built[2:], limits]
