"""What the home page tells beside its charts: what runs, what needs somebody, and the first steps of a new platform."""

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

MOST = 1000
"""No number of what is happening costs more than reading this many rows; one that reaches it says so."""

_SHOWN = 5
_SOON, _UNUSED = timedelta(days=14), timedelta(days=90)
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
class Running:
    """What runs now, and since when the oldest waits."""

    running: int
    queued: int
    oldest: datetime | None
    stuck: int
    is_cut: bool

    def spoken(self, count: int) -> str:
        """A number of these, with a plus where there may be more."""
        return f"{count:,}" + ("+" if self.is_cut else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A short list of what needs somebody: rows of a name, a note and an address."""

    title: str
    icon: str
    url: str
    rows: Sequence[tuple[str, str, str]]
    fine: str


def running() -> Running:
    """Read from the partial index of running responses; row-level security sees to whose they are."""
    with connection.cursor() as cursor:
        cursor.execute(_RUNNING, [MOST])
        executed, queued, oldest, stuck, read = cursor.fetchone()
    return Running(running=executed, queued=queued, oldest=oldest, stuck=stuck, is_cut=read >= MOST)


def backlog() -> str:
    """How many webhooks wait to be sent."""
    waiting = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)[:MOST].count()
    return f"{waiting:,}" + ("+" if waiting >= MOST else "")


def response_link(response: Response) -> SafeString:
    """The id of a response, which leads to its page."""
    return copyable(response.pk, href=cells.url(response.pk))


def panels(request: HttpRequest, present: datetime, teams: Sequence[str] | None) -> list[Panel]:
    """All of them."""
    keys = admin.site.get_model_admin(ApiKey).get_queryset(request).filter(revoked_at=None, source="person")
    found = [
        _expiring(keys, present),
        _unused(keys, present),
        _tools(present, teams),
        _webhooks(request, present),
    ]
    return [_upstreams(present), *found] if everywhere(request) else found


def _expiring(keys: Any, present: datetime) -> Panel:
    soon = keys.filter(expires_at__gt=present, expires_at__lte=present + _SOON).order_by("expires_at")
    return Panel(
        title="Keys that expire within 14 days",
        icon="key",
        url=links.changelist("tenants_apikey", status="active"),
        rows=[(key.name, ago(key.expires_at), _key_url(key)) for key in soon[:_SHOWN]],
        fine="No key expires soon.",
    )


def _unused(keys: Any, present: datetime) -> Panel:
    since = present - _UNUSED
    idle = Q(last_used_at__lt=since) | Q(last_used_at=None, created_at__lt=since)
    old = keys.filter(idle).exclude(expires_at__lte=present).order_by("last_used_at", "created_at")
    return Panel(
        title="Keys unused for 90 days",
        icon="key_off",
        url=links.changelist("tenants_apikey", status="active"),
        rows=[
            (key.name, f"used {ago(key.last_used_at)}" if key.last_used_at else "never used", _key_url(key))
            for key in old[:_SHOWN]
        ],
        fine="Every key is in use.",
    )


def _key_url(key: ApiKey) -> str:
    return reverse("admin:tenants_apikey_change", args=[key.pk])


def _hour(present: datetime) -> datetime:
    return present.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def _upstreams(present: datetime) -> Panel:
    """Of all teams: for staff."""
    until = _hour(present)
    rows = queries.fetch_rows(
        RollupQuery(
            source=CALLS, since=until - _DAY, until=until, measures=["calls", "failed", "duration"], by=["upstream_id"]
        )
    )
    names = dict(Upstream.objects.filter(pk__in=[row.key[0] for row in rows]).values_list("pk", "name"))

    def told(values: dict[str, Any]) -> str:
        share = f"{100 * values['failed'] / values['calls']:.1f} % failed of {values['calls']:,}"
        return f"{share}, p95 {duration(quantile(values['duration'], 0.95))}"

    worst = sorted(rows, key=lambda row: -row.values["failed"] / row.values["calls"])
    return Panel(
        title="Upstreams, last 24 hours",
        icon="dns",
        url=links.changelist("tenants_upstream"),
        rows=[
            (
                names[row.key[0]],
                told(row.values),
                reverse("admin:tenants_upstream_change", args=[row.key[0]]),
            )
            for row in worst
            if row.key[0] in names
        ][:_SHOWN],
        fine="No upstream was called.",
    )


def _tools(present: datetime, teams: Sequence[str] | None) -> Panel:
    until = _hour(present)
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
        fine="No tool call failed.",
    )


def _webhooks(request: HttpRequest, present: datetime) -> Panel:
    lately = (
        WebhookDelivery.objects.filter(created_at__gte=present - _DAY, state=DeliveryState.FAILED)
        .order_by()
        .values_list("endpoint_id")
        .annotate(failed=Count("id"))
        .order_by("-failed")[:_SHOWN]
    )
    failed = dict(lately)
    endpoints = admin.site.get_model_admin(WebhookEndpoint).get_queryset(request)
    bad = endpoints.filter(Q(pk__in=failed) | Q(failing_since__isnull=False)).order_by("failing_since")
    return Panel(
        title="Failing webhooks",
        icon="webhook",
        url=links.changelist("responses_webhookendpoint"),
        rows=[
            (
                endpoint.name,
                f"{failed[endpoint.pk]:,} gave up within a day"
                if endpoint.pk in failed
                else f"failing since {ago(endpoint.failing_since or present)}",
                reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk]),
            )
            for endpoint in bad[:_SHOWN]
        ],
        fine="No webhook fails.",
    )


def first_steps(request: HttpRequest) -> dict[str, Any]:
    """What somebody does who sees a platform without responses."""
    url = request.build_absolute_uri("/v1/responses")
    curl = (
        f'curl {url} \\\n  -H "Authorization: Bearer $API_KEY" \\\n  -H "Content-Type: application/json" \\\n'
        '  -d \'{"model": "demo", "input": "What is 12*7?"}\''
    )
    may = {model: admin.site.get_model_admin(model).has_add_permission(request) for model in (Team, ApiKey)}
    return {
        "team_url": reverse("admin:tenants_team_add") if may[Team] else "",
        "key_url": reverse("admin:tenants_apikey_add") if may[ApiKey] else "",
        "curl": curl,
    }
