"""Tabs of the team page: overview of a week, usage by day and model, webhooks."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse

from console.widgets import badge, changelist_url, compact, duration, link, when
from core.clock import now
from core.periods import end_of_hour
from organization.admin.team_tabs import tab, tab_url
from responses.models import Response, Status
from responses.rollups import histograms
from responses.rollups.queries import RollupQuery, RollupRow, fetch_rows
from responses.rollups.sources import CALLS, RESPONSES
from responses.webhooks.models import WebhookEndpoint
from server.admin.home import Tile
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, KeySource, Membership, Team
from tenants.prices import NO_PRICE

_DAYS = 7
_MAX_ROWS = 50
# Active runs are counted row by row instead of read from the hourly sums, so their number is limited.
_MAX_RUNNING = 1000
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "cost", "unpriced")


def _week(team: Team, **query: Any) -> list[RollupRow]:
    # Seven days including today: one more hour would begin an eighth day.
    end = end_of_hour(now())
    since = now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS - 1)
    return fetch_rows(RollupQuery(since=since, until=end, teams=[team.pk], **query))


@tab("overview", title="Overview", template="admin/responses/team/overview.html")
def overview(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return tiles with the activity of a week, active runs, keys and members."""
    totals = _week(team, source=RESPONSES, measures=("responses", "failed", "tool_calls", "duration", *_TOKENS))
    values = totals[0].values if totals else {}
    count, failed = values.get("responses", 0), values.get("failed", 0)
    slow = histograms.quantile(values.get("duration", []), 0.95)
    # The same runs as on Home, on the page of running jobs and in the list with this status.
    runs = Response.objects.filter(team=team, status=Status.IN_PROGRESS).order_by()[:_MAX_RUNNING].count()
    responses = changelist_url("responses_response", team__id__exact=team.pk, period="7d")
    keys = ApiKey.objects.filter(team=team, source=KeySource.PERSON, revoked_at=None).count()
    people = Membership.objects.filter(team=team).count()
    tiles = [
        Tile(title="Responses", value=compact(count), detail="in 7 days", icon="forum", url=responses),
        Tile(
            title="Failed",
            value=f"{100 * failed / count:.1f} %" if count else "–",
            detail=f"{compact(failed)} in 7 days",
            icon="error",
            url=f"{responses}&status__exact=failed",
            tone="bad" if failed else "",
        ),
        Tile(
            title="Latency p95",
            value=duration(slow) if slow is not None else "–",
            detail="total time",
            icon="timer",
            url=responses,
        ),
        Tile(
            title="Cost",
            value=_dollars(values),
            detail=f"{compact(values['unpriced'])} without a price" if values.get("unpriced") else "in 7 days",
            icon="payments",
            url=responses,
        ),
        Tile(
            title="Tokens",
            value=compact(values.get("input_tokens", 0) + values.get("output_tokens", 0)),
            detail=f"{compact(values.get('cached_tokens', 0))} cached",
            icon="token",
            url=responses,
        ),
        Tile(title="Running", value=compact(runs), detail="now", icon="play_circle", url=tab_url(team, "usage")),
        Tile(title="API keys", value=compact(keys), detail="active", icon="key", url=tab_url(team, "keys")),
        Tile(
            title="Members", value=compact(people), detail="in this team", icon="groups", url=tab_url(team, "members")
        ),
    ]
    return {"tiles": tiles}


@tab("usage", title="Usage", template="admin/responses/team/usage.html")
def usage(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the upstream calls of a week by day and by model."""
    measures = ("calls", "failed", *_TOKENS)
    found = {row.bucket.date(): row for row in _week(team, source=CALLS, measures=measures, bucket="day") if row.bucket}
    today = now().date()
    nothing = RollupRow(bucket=None, key=(), values={**dict.fromkeys(measures, 0), "cost": None})
    # Days without calls are listed too, so that a week has seven rows.
    week = [today - timedelta(days=ago) for ago in reversed(range(_DAYS))]
    days = {day: found.get(day, nothing) for day in week} if found else {}
    models = _week(team, source=CALLS, measures=measures, by=("model",))
    # Models without a price have no cost and are sorted by calls.
    by_cost = sorted(models, key=lambda row: (row.values["cost"] or 0, row.values["calls"]), reverse=True)
    headers = ["Calls", "Failed", "Input tokens", "Cached tokens", "Output tokens", "Cost"]
    return {
        "days": {"headers": ["Day (UTC)", *headers], "rows": [_row(f"{day:%Y-%m-%d}", days[day]) for day in days]},
        "models": {"headers": ["Model", *headers], "rows": [_row(row.key[0], row) for row in by_cost[:_MAX_ROWS]]},
        "all": (changelist_url("tenants_usagerecord", team__id__exact=team.pk), "View usage records"),
    }


def _row(name: str, row: RollupRow) -> Sequence[Any]:
    sums = row.values
    counts = [f"{sums[column]:,}" for column in ("calls", "failed", "input_tokens", "cached_tokens", "output_tokens")]
    return [name, *counts, _dollars(sums)]


def _dollars(values: dict[str, Any]) -> str:
    if values.get("cost") is None:
        return NO_PRICE if values.get("calls") or values.get("responses") else "–"
    cost = Decimal(values["cost"])
    # Four decimals below one dollar, so that small costs are not shown as zero.
    shown = f"${cost:,.2f}" if not cost or cost >= 1 else f"${cost:.4f}"
    return f"at least {shown}" if values["unpriced"] else shown


@tab("webhooks", title="Webhooks", template="admin/tenants/team/table.html")
def webhooks(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the webhook endpoints of the team, newest first."""
    # The secrets are deferred so that they are not decrypted for a list.
    endpoints = WebhookEndpoint.objects.filter(team=team).defer("secret", "previous_secret")
    rows = [
        [
            link(reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk]), endpoint.name),
            endpoint.url,
            badge("enabled", "success") if endpoint.enabled else badge("disabled", "warning"),
            f"{len(endpoint.event_types)} events",
            when(endpoint.created_at),
        ]
        for endpoint in endpoints.order_by("-created_at", "-pk")[:_MAX_ROWS]
    ]
    return {
        "table": {"headers": ["Name", "URL", "Status", "Subscribed events", "Created"], "rows": rows},
        "empty": "No webhook endpoints yet.",
        "all": (changelist_url("responses_webhookendpoint", team__id__exact=team.pk), "View all endpoints"),
    }
