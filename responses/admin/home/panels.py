"""Panels of the home page: active runs, items that need attention, and first steps on a new platform."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db import connection
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from console.widgets import ago, copyable, duration
from responses.admin import cells
from responses.admin.usage import links
from responses.models import Response
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS, TOOLS
from responses.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from tenants.console.roles import everywhere
from tenants.models import ApiKey, Team, Upstream

MAX_ROWS = 1000
"""Rows read at most for a count of current activity; a count that reaches it is shown with a plus sign."""

_SHOWN = 5
_EXPIRES_SOON, _UNUSED_FOR = timedelta(days=14), timedelta(days=90)
_DAY = timedelta(days=1)
_RUNNING = """
SELECT count(*) FILTER (WHERE status = 'in_progress'), count(*) FILTER (WHERE status = 'queued'),
    min(created_at) FILTER (WHERE status = 'queued'),
    count(*) FILTER (WHERE status = 'in_progress' AND lease_until < now()), count(*)
FROM (
    SELECT status, created_at, lease_until FROM responses_response
    WHERE status IN ('queued', 'in_progress') ORDER BY lease_until LIMIT %s
) AS running
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRuns:
    """Counts of active runs, and the creation time of the oldest queued one.

    `stuck` are runs with an expired lease. `is_truncated`: there may be more than were read.
    """

    running: int
    queued: int
    oldest: datetime | None
    stuck: int
    is_truncated: bool

    def format_count(self, count: int) -> str:
        """Format a count, with a plus sign if there may be more."""
        return f"{count:,}" + ("+" if self.is_truncated else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Short list of items that need attention; rows are name, note and URL."""

    title: str
    icon: str
    url: str
    rows: Sequence[tuple[str, str, str]]
    empty_text: str


def running() -> ActiveRuns:
    """Count the active runs of the teams that the user sees (by row-level security)."""
    with connection.cursor() as cursor:
        cursor.execute(_RUNNING, [MAX_ROWS])
        executed, queued, oldest, stuck, read = cursor.fetchone()
    return ActiveRuns(running=executed, queued=queued, oldest=oldest, stuck=stuck, is_truncated=read >= MAX_ROWS)


def backlog() -> str:
    """Return the number of pending webhook deliveries."""
    waiting = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)[:MAX_ROWS].count()
    return f"{waiting:,}" + ("+" if waiting >= MAX_ROWS else "")


def response_link(response: Response) -> SafeString:
    """Return the id of a response as a link to its page."""
    return copyable(response.pk, href=cells.url(response.pk))


def panels(request: HttpRequest, current_time: datetime, teams: Sequence[str] | None) -> list[Panel]:
    """Return the panels of the home page; staff also see upstreams."""
    # Only keys that people created: the playground makes short-lived ones, which would fill the panels.
    keys = admin.site.get_model_admin(ApiKey).get_queryset(request).filter(revoked_at=None, source="person")
    found = [
        _expiring(keys, current_time),
        _unused(keys, current_time),
        _tools(current_time, teams),
        _webhooks(request, current_time),
    ]
    return [_upstreams(current_time), *found] if everywhere(request) else found


def _expiring(keys: Any, current_time: datetime) -> Panel:
    soon = keys.filter(expires_at__gt=current_time, expires_at__lte=current_time + _EXPIRES_SOON).order_by("expires_at")
    return Panel(
        title="API keys expiring within 14 days",
        icon="key",
        url=links.changelist("tenants_apikey", status="active"),
        rows=[(key.name, ago(key.expires_at), _key_url(key)) for key in soon[:_SHOWN]],
        empty_text="No API keys expire soon.",
    )


def _unused(keys: Any, current_time: datetime) -> Panel:
    since = current_time - _UNUSED_FOR
    # A key that was never used counts from its creation.
    idle = Q(last_used_at__lt=since) | Q(last_used_at=None, created_at__lt=since)
    old = keys.filter(idle).exclude(expires_at__lte=current_time).order_by("last_used_at", "created_at")
    return Panel(
        title="API keys unused for 90 days",
        icon="key_off",
        url=links.changelist("tenants_apikey", status="active"),
        rows=[
            (key.name, f"used {ago(key.last_used_at)}" if key.last_used_at else "never used", _key_url(key))
            for key in old[:_SHOWN]
        ],
        empty_text="All API keys are in use.",
    )


def _key_url(key: ApiKey) -> str:
    return reverse("admin:tenants_apikey_change", args=[key.pk])


def _hour(current_time: datetime) -> datetime:
    # The sums are hourly; the current hour is included.
    return current_time.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def _upstreams(current_time: datetime) -> Panel:
    # The sums include all teams, so this panel is for staff only.
    until = _hour(current_time)
    rows = queries.fetch_rows(
        RollupQuery(
            source=CALLS, since=until - _DAY, until=until, measures=["calls", "failed", "duration"], by=["upstream_id"]
        )
    )
    names = dict(Upstream.objects.filter(pk__in=[row.key[0] for row in rows]).values_list("pk", "name"))

    def describe(values: dict[str, Any]) -> str:
        share = f"{100 * values['failed'] / values['calls']:.1f} % of {values['calls']:,} calls failed"
        return f"{share}, p95 {duration(quantile(values['duration'], 0.95))}"

    # Every upstream is listed, the highest error rate first.
    worst = sorted(rows, key=lambda row: -row.values["failed"] / row.values["calls"])
    return Panel(
        title="Upstreams, last 24 hours",
        icon="dns",
        url=links.changelist("tenants_upstream"),
        rows=[
            (
                names[row.key[0]],
                describe(row.values),
                reverse("admin:tenants_upstream_change", args=[row.key[0]]),
            )
            for row in worst
            # The sums also count upstreams that were deleted since.
            if row.key[0] in names
        ][:_SHOWN],
        empty_text="No upstream calls.",
    )


def _tools(current_time: datetime, teams: Sequence[str] | None) -> Panel:
    until = _hour(current_time)
    rows = queries.fetch_rows(
        RollupQuery(
            source=TOOLS,
            since=until - _DAY,
            until=until,
            measures=["calls", "failed"],
            by=["kind", "name"],
            teams=teams,
        )
    )
    failing = sorted((row for row in rows if row.values["failed"]), key=lambda row: -row.values["failed"])
    return Panel(
        title="Failing tools, last 24 hours",
        icon="construction",
        url=links.changelist("responses_toolcall", period="24h", status="failed"),
        rows=[
            (
                row.key[1],
                f"{row.values['failed']:,} of {row.values['calls']:,} calls failed",
                links.rows_of(
                    "tools", since=until - _DAY, until=until, kind=row.key[0], name=row.key[1], status="failed"
                ),
            )
            for row in failing[:_SHOWN]
        ],
        empty_text="No failed tool calls.",
    )


def _webhooks(request: HttpRequest, current_time: datetime) -> Panel:
    # `order_by()` removes the default order, whose columns would join the grouping.
    recent_failures = (
        WebhookDelivery.objects.filter(created_at__gte=current_time - _DAY, state=DeliveryState.FAILED)
        .order_by()
        .values_list("endpoint_id")
        .annotate(failed=Count("id"))
        .order_by("-failed")[:_SHOWN]
    )
    failed = dict(recent_failures)
    endpoints = admin.site.get_model_admin(WebhookEndpoint).get_queryset(request)
    # An endpoint may fail now without a failed delivery: deliveries are retried for up to three days.
    failing = endpoints.filter(Q(pk__in=failed) | Q(failing_since__isnull=False)).order_by("failing_since")
    return Panel(
        title="Failing webhooks",
        icon="webhook",
        url=links.changelist("responses_webhookendpoint"),
        rows=[
            (
                endpoint.name,
                f"{failed[endpoint.pk]:,} failed deliveries in 24 hours"
                if endpoint.pk in failed
                else f"failing since {ago(endpoint.failing_since or current_time)}",
                reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk]),
            )
            for endpoint in failing[:_SHOWN]
        ],
        empty_text="No failing webhooks.",
    )


def first_steps(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the first-steps page, shown while there are no responses."""
    url = request.build_absolute_uri("/v1/responses")
    curl = (
        f'curl {url} \\\n  -H "Authorization: Bearer $API_KEY" \\\n  -H "Content-Type: application/json" \\\n'
        '  -d \'{"model": "demo", "input": "What is 12*7?"}\''
    )
    can_add = {model: admin.site.get_model_admin(model).has_add_permission(request) for model in (Team, ApiKey)}
    return {
        "team_url": reverse("admin:tenants_team_add") if can_add[Team] else "",
        "key_url": reverse("admin:tenants_apikey_add") if can_add[ApiKey] else "",
        "curl": curl,
    }
