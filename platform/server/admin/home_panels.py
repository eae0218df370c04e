"""Panels of the home page: short lists of what needs attention, each with a link to the whole list."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse

from billing.admin.budgets import budget_states
from billing.admin.usage import links
from console.widgets import ago, changelist_url, duration
from core.periods import end_of_hour
from organization.admin.limits import subject_name
from responses.admin.approvals import inbox
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS, TOOLS
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, DeliveryState, Upstream

# Title, icon, url, rows (name, note and URL of each) and empty_text.
Panel = dict[str, Any]

_SHOWN = 5
_DAY = timedelta(days=1)
_NEARLY_SPENT = 80
_EXPIRES_SOON, _UNUSED_FOR = timedelta(days=14), timedelta(days=90)


def panels(request: HttpRequest, viewer: Viewer, *, current_time: datetime) -> list[Panel]:
    """Return the panels of the home page; staff also see upstreams."""
    teams = viewer.team_ids()
    # Only keys that people created: the playground makes short-lived ones, which would fill the panels.
    keys: Any = admin.site.get_model_admin(ApiKey).get_queryset(request).filter(revoked_at=None, source="person")
    soon = keys.filter(expires_at__gt=current_time, expires_at__lte=current_time + _EXPIRES_SOON).order_by("expires_at")
    states = budget_states(teams=teams, at=current_time)
    nearly_spent = [state for state in states if state.percent >= _NEARLY_SPENT]
    since = current_time - _UNUSED_FOR
    # A key that was never used counts from its creation.
    idle = Q(last_used_at__lt=since) | Q(last_used_at=None, created_at__lt=since)
    old = keys.filter(idle).exclude(expires_at__lte=current_time).order_by("last_used_at", "created_at")
    shown = [
        {
            "title": f"Budgets {_NEARLY_SPENT} % spent",
            "icon": "savings",
            "url": reverse("console:budgets"),
            "rows": [
                (
                    f"{state.budget.team.name}: {subject_name(state.budget.limit_set)}",
                    f"{state.percent} % of {state.budget}",
                    reverse("console:budgets"),
                )
                for state in nearly_spent[:_SHOWN]
            ],
            "empty_text": "No budget is nearly spent.",
        },
        {
            "title": "API keys expiring within 14 days",
            "icon": "key",
            "url": changelist_url("tenants_apikey", status="active"),
            "rows": [(key.name, ago(key.expires_at), _page_of("tenants_apikey", key.pk)) for key in soon[:_SHOWN]],
            "empty_text": "No API keys expire soon.",
        },
        {
            "title": "API keys unused for 90 days",
            "icon": "key_off",
            "url": changelist_url("tenants_apikey", status="active"),
            "rows": [
                (
                    key.name,
                    f"used {ago(key.last_used_at)}" if key.last_used_at else "never used",
                    _page_of("tenants_apikey", key.pk),
                )
                for key in old[:_SHOWN]
            ],
            "empty_text": "All API keys are in use.",
        },
        _tools(current_time, teams),
        _webhooks(request, current_time),
    ]
    return [_approvals(viewer), *([_upstreams(current_time)] if teams is None else []), *shown]


def _approvals(viewer: Viewer) -> Panel:
    """Return the panel of what waits for a decision, the first to expire first."""
    return {
        "title": "Awaiting approval",
        "icon": "front_hand",
        "url": reverse("console:approvals"),
        "rows": [
            (
                f"{entry.row.team.name}: {entry.subject.tool or entry.row.get_kind_display()}",
                f"expires {ago(entry.row.expires_at)}" if entry.row.expires_at is not None else "",
                reverse("console:approval", args=[entry.row.pk]),
            )
            for entry in inbox.read_page(viewer, inbox.InboxQuery(), size=_SHOWN).rows
        ],
        "empty_text": "Nothing waits for approval.",
    }


def _page_of(model: str, row_id: str) -> str:
    return reverse(f"admin:{model}_change", args=[row_id])


def _upstreams(current_time: datetime) -> Panel:
    # The sums include all teams, so this panel is for staff only.
    until = end_of_hour(current_time)
    measures = ["calls", "failed", "duration"]
    rows = queries.fetch_rows(
        RollupQuery(source=CALLS, since=until - _DAY, until=until, measures=measures, by=["upstream_id"])
    )
    names = dict(Upstream.objects.filter(pk__in=[row.key[0] for row in rows]).values_list("pk", "name"))

    def describe(values: dict[str, Any]) -> str:
        share = f"{100 * values['failed'] / values['calls']:.1f} % of {values['calls']:,} calls failed"
        return f"{share}, p95 {duration(quantile(values['duration'], 0.95))}"

    return {
        "title": "Upstreams, last 24 hours",
        "icon": "dns",
        "url": changelist_url("tenants_upstream"),
        "rows": [
            (names[row.key[0]], describe(row.values), _page_of("tenants_upstream", row.key[0]))
            # Every upstream is listed, the highest error rate first.
            for row in sorted(rows, key=lambda row: -row.values["failed"] / row.values["calls"])
            # The sums also count upstreams that were deleted since.
            if row.key[0] in names
        ][:_SHOWN],
        "empty_text": "No upstream calls.",
    }


def _tools(current_time: datetime, teams: Sequence[str] | None) -> Panel:
    until = end_of_hour(current_time)
    measures, by, since = ["calls", "failed"], ["kind", "name"], until - _DAY
    rows = queries.fetch_rows(
        RollupQuery(source=TOOLS, since=since, until=until, measures=measures, by=by, teams=teams)
    )
    failing = sorted((row for row in rows if row.values["failed"]), key=lambda row: -row.values["failed"])
    return {
        "title": "Failing tools, last 24 hours",
        "icon": "construction",
        "url": changelist_url("responses_toolcall", period="24h", status="failed"),
        "rows": [
            (
                row.key[1],
                f"{row.values['failed']:,} of {row.values['calls']:,} calls failed",
                links.rows_of("tools", since=since, until=until, kind=row.key[0], name=row.key[1], status="failed"),
            )
            for row in failing[:_SHOWN]
        ],
        "empty_text": "No failed tool calls.",
    }


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
    return {
        "title": "Failing webhooks",
        "icon": "webhook",
        "url": changelist_url("responses_webhookendpoint"),
        "rows": [
            (
                endpoint.name,
                f"{failed[endpoint.pk]:,} failed deliveries in 24 hours"
                if endpoint.pk in failed
                else f"failing since {ago(endpoint.failing_since or current_time)}",
                _page_of("responses_webhookendpoint", endpoint.pk),
            )
            for endpoint in failing[:_SHOWN]
        ],
        "empty_text": "No failing webhooks.",
    }
