"""Webhooks and audit tabs: the deliveries and the audit events of a response."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.widgets import badge, copyable, duration, tone, when
from responses.models import Response
from responses.webhooks.models import DeliveryState, WebhookDelivery
from tenants.models import AuditEvent

SHOWN = 200
_TONES = {
    DeliveryState.PENDING.value: "info",
    DeliveryState.DELIVERED.value: "success",
    DeliveryState.FAILED.value: "danger",
}


def webhooks(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the webhook deliveries of the response, newest first."""
    rows = WebhookDelivery.objects.filter(object_id=response.pk, team_id=response.team_id).prefetch_related("endpoint")
    return {"deliveries": [_delivery(row) for row in rows.order_by("-created_at", "-id")[:SHOWN]]}


def _delivery(row: WebhookDelivery) -> dict[str, Any]:
    return {
        "row": row,
        "when": when(row.created_at),
        "url": reverse("admin:responses_webhookdelivery_change", args=[row.pk]),
        "endpoint_url": reverse("admin:responses_webhookendpoint_change", args=[row.endpoint_id]),
        "event": copyable(row.event_id),
        "state": tone(_TONES, row.state),
        "answer": f"{row.last_status or 'no response'} after {duration(row.last_ms)}" if row.attempts else "–",
        "next": when(row.next_attempt_at) if row.next_attempt_at else "–",
    }


def audit(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the audit events of the response, newest first."""
    rows = AuditEvent.objects.filter(target=response.pk, team_id=response.team_id)
    return {"lines": [_line(row) for row in rows.order_by("-occurred_at", "-id")[:SHOWN]], "limit": SHOWN}


def _line(row: AuditEvent) -> dict[str, Any]:
    return {
        "row": row,
        "when": when(row.occurred_at),
        "url": reverse("admin:tenants_auditevent_change", args=[row.pk]),
        "action": badge(row.action, "danger" if row.action.endswith("deleted") else "info"),
        "request": copyable(row.request_id) if row.request_id else "–",
        "reason": str(row.after.get("reason") or "") if isinstance(row.after, dict) else "",
    }
