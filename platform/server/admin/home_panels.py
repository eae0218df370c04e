"""Panels of the home page: short lists of what needs attention, each with a link to the whole list."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from billing.admin.budgets import budget_states
from billing.admin.usage import links
from console.widgets import ago, changelist_url, duration
from core.periods import end_of_hour
from organization.admin.limits import subject_name
from responses.admin.approvals import inbox
from responses.admin.cells import url as response_url
from responses.models import UNSUCCESSFUL, Response, Status
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS, TOOLS
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from server.admin import refused_requests
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, DeliveryState, Upstream

# Title, icon, url, rows (name, note and URL of each) and empty_text.
Panel = dict[str, Any]

_SHOWN = 5
# Failures whose reasons are counted, the newest first.
_MAX_FAILURES = 1000
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
    # Members see all budgets of their teams, staff those of all teams that need attention.
    listed = states if teams is not None else [state for state in states if state.percent >= _NEARLY_SPENT]
    since = current_time - _UNUSED_FOR
    # A key that was never used counts from its creation.
    idle = Q(last_used_at__lt=since) | Q(last_used_at=None, created_at__lt=since)
    old = keys.filter(idle).exclude(expires_at__lte=current_time).order_by("last_used_at", "created_at")
    shown: list[Panel] = [
        {
            "title": "Spend and budgets" if teams is not None else f"Budgets {_NEARLY_SPENT} % spent",
            "icon": "savings",
            "url": reverse("console:budgets"),
            "rows": [
                (
                    f"{state.budget.team.name}: {subject_name(state.budget.limit_set)}",
                    f"{state.percent} % of {state.budget}",
                    reverse("console:budgets"),
                )
                for state in listed[:_SHOWN]
            ],
            "empty_text": "No budget is nearly spent." if teams is None else "No budgets are set.",
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
        *_tools(current_time, teams),
        _webhooks(request, current_time),
    ]
    attention = [*_failures(current_time, teams), _refused(teams), _approvals(viewer)]
    if teams is None:
        return [*attention, _upstreams(current_time), *shown]
    budgets, *others = shown
    return [budgets, *attention, *others]


def _refused(teams: Sequence[str] | None) -> Panel:
    """Return the panel of the latest requests that were answered with an error."""
    url = str(reverse("console:refused"))
    return {
        "title": "Refused requests, last 24 hours",
        "icon": "block",
        "url": url,
        "rows": [
            (
                f"{row.status} {row.code or 'no code'}",
                f"{row.model or row.route}, {row.count:,} in a minute, {ago(row.last_at)}",
                f"{url}?{urlencode([('status', row.status), ('code', row.code)])}",
            )
            for row in refused_requests.reasons(teams, most=_SHOWN)
        ],
        "empty_text": "No request was refused.",
    }


def _failures(current_time: datetime, teams: Sequence[str] | None) -> list[Panel]:
    """Return the panels of the latest failed responses, and of the reasons of the newest `_MAX_FAILURES`."""
    since = current_time - _DAY
    rows = Response.objects.filter(status=Status.FAILED, status__in=UNSUCCESSFUL, created_at__gte=since)
    if teams is not None:
        rows = rows.filter(team__in=teams)
    newest = rows.order_by("-created_at").values_list("pk", "model", "error_code", "created_at")[:_MAX_FAILURES]
    failures = [(pk, model, code or "failed", at) for pk, model, code, at in newest]
    reasons = Counter((code, model) for _, model, code, _ in failures)
    url = changelist_url("responses_response", period="24h", status__exact=Status.FAILED.value)
    plus = "+" if len(failures) == _MAX_FAILURES else ""
    return [
        {
            "title": "Latest failures",
            "icon": "error",
            "url": url,
            "rows": [(code, f"{model}, {ago(at)}", response_url(pk)) for pk, model, code, at in failures[:_SHOWN]],
            "empty_text": "No response has failed in 24 hours.",
        },
        {
            "title": "Reasons of failures, last 24 hours",
            "icon": "troubleshoot",
            "url": url,
            "rows": [
                (
                    f"{code}: {model}",
                    f"{number:,}{plus} failed",
                    changelist_url("responses_response", period="24h", error_code=code, model=model)
                    if code != "failed"
                    else changelist_url("responses_response", period="24h", status__exact="failed", model=model),
                )
                for (code, model), number in reasons.most_common(_SHOWN)
            ],
            "empty_text": "No response has failed in 24 hours.",
        },
    ]


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


def _tools(current_time: datetime, teams: Sequence[str] | None) -> list[Panel]:
    """Return the panels of the tools that fail, and of the slowest tools."""
    until = end_of_hour(current_time)
    measures, by, since = ["calls", "failed", "duration"], ["kind", "name"], until - _DAY
    rows = queries.fetch_rows(
        RollupQuery(source=TOOLS, since=since, until=until, measures=measures, by=by, teams=teams)
    )
    failing = sorted((row for row in rows if row.values["failed"]), key=lambda row: -row.values["failed"])
    timed = [(row, quantile(row.values["duration"], 0.95)) for row in rows]
    slowest = sorted((pair for pair in timed if pair[1]), key=lambda pair: -(pair[1] or 0))
    slow = {
        "title": "Slowest tools, last 24 hours",
        "icon": "hourglass_bottom",
        "url": changelist_url("responses_toolcall", period="24h"),
        "rows": [
            (
                row.key[1],
                f"p95 {duration(p95)} in {row.values['calls']:,} calls",
                links.rows_of("tools", since=since, until=until, kind=row.key[0], name=row.key[1]),
            )
            for row, p95 in slowest[:_SHOWN]
        ],
        "empty_text": "No tool calls.",
    }
    failed = {
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
    return [slow, failed]


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
