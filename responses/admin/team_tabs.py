"""Tabs of a team's page about what it does: figures of a week, usage by day and by model, webhooks."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.widgets import badge, compact, duration, when
from kernel.clock import now
from responses.admin.home.page import Tile
from responses.models import RUNNING, Response
from responses.rollups import histograms
from responses.rollups.queries import RollupQuery, RollupRow, fetch_rows
from responses.rollups.sources import CALLS, RESPONSES
from responses.webhooks.models import WebhookEndpoint
from tenants.admin.team_pages import linked, list_of
from tenants.admin.team_tabs import tab
from tenants.models import ApiKey, KeySource, Membership, Team

_DAYS = 7
_MOST = 50
_MOST_RUNNING = 1000
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "cost")


def _week(team: Team, **question: Any) -> list[RollupRow]:
    end = now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return fetch_rows(RollupQuery(since=end - timedelta(days=_DAYS), until=end, teams=[team.pk], **question))


@tab("overview", title="Overview", template="admin/responses/team/overview.html")
def overview(request: HttpRequest, team: Team) -> dict[str, Any]:
    """What the team did in a week, and what it has."""
    summed = _week(team, source=RESPONSES, measures=("responses", "failed", "tool_calls", "duration", *_TOKENS))
    values = summed[0].values if summed else {}
    count, failed = values.get("responses", 0), values.get("failed", 0)
    slow = histograms.quantile(values.get("duration", []), 0.95)
    running = Response.objects.filter(team=team, status__in=RUNNING).order_by()
    runs = running.filter(created_at__gte=now() - timedelta(days=1))[:_MOST_RUNNING].count()
    responses = list_of("responses_response", team__id__exact=team.pk, period="7d")
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
            title="p95",
            value=duration(slow) if slow is not None else "–",
            detail="whole responses",
            icon="timer",
            url=responses,
        ),
        Tile(title="Cost", value=_dollars(values), detail="as far as prices are known", icon="payments", url=responses),
        Tile(
            title="Tokens",
            value=compact(values.get("input_tokens", 0) + values.get("output_tokens", 0)),
            detail=f"{compact(values.get('cached_tokens', 0))} from the cache",
            icon="token",
            url=responses,
        ),
        Tile(title="Running", value=compact(runs), detail="right now", icon="play_circle", url=_tab_url(team, "usage")),
        Tile(title="Keys", value=compact(keys), detail="not revoked", icon="key", url=_tab_url(team, "keys")),
        Tile(
            title="Members", value=compact(people), detail="of the team", icon="groups", url=_tab_url(team, "members")
        ),
    ]
    return {"tiles": tiles}


def _tab_url(team: Team, name: str) -> str:
    return f"{reverse('admin:tenants_team_change', args=[team.pk])}?tab={name}"


@tab("usage", title="Usage", template="admin/responses/team/usage.html")
def usage(request: HttpRequest, team: Team) -> dict[str, Any]:
    """A week of upstream calls, by day and by model."""
    measures = ("calls", "failed", *_TOKENS)
    days = _week(team, source=CALLS, measures=measures, bucket="day")
    models = _week(team, source=CALLS, measures=measures, by=("model",))
    by_cost = sorted(models, key=lambda row: (row.values["cost"], row.values["calls"]), reverse=True)
    headers = ["Calls", "Failed", "Tokens in", "Cached", "Tokens out", "Cost"]
    return {
        "days": {"headers": ["Day (UTC)", *headers], "rows": [_row(f"{row.bucket:%Y-%m-%d}", row) for row in days]},
        "models": {"headers": ["Model", *headers], "rows": [_row(row.key[0], row) for row in by_cost[:_MOST]]},
        "all": (list_of("tenants_usagerecord", team__id__exact=team.pk), "The ledger"),
    }


def _row(name: str, row: RollupRow) -> Sequence[Any]:
    found = row.values
    counts = [f"{found[each]:,}" for each in ("calls", "failed", "input_tokens", "cached_tokens", "output_tokens")]
    return [name, *counts, _dollars(found)]


def _dollars(values: dict[str, Any]) -> str:
    cost = Decimal(values.get("cost") or 0)
    return f"${cost:,.2f}" if not cost or cost >= 1 else f"${cost:.4f}"


@tab("webhooks", title="Webhooks", template="admin/tenants/team/table.html")
def webhooks(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Where the team is told of events."""
    endpoints = WebhookEndpoint.objects.filter(team=team).defer("secret", "previous_secret")
    rows = [
        [
            linked(reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk]), endpoint.name),
            endpoint.url,
            badge("enabled", "success") if endpoint.enabled else badge("disabled", "warning"),
            f"{len(endpoint.event_types)} events",
            when(endpoint.created_at),
        ]
        for endpoint in endpoints.order_by("-created_at", "-pk")[:_MOST]
    ]
    return {
        "table": {"headers": ["Name", "URL", "Status", "Told of", "Created"], "rows": rows},
        "empty": "No endpoint yet.",
        "all": (list_of("responses_webhookendpoint", team__id__exact=team.pk), "All endpoints"),
    }
