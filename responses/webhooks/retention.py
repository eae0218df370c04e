"""Housekeeping of deliveries, in bounded transactions that are safe to run twice and side by side."""

from datetime import timedelta

from kernel.clock import now
from responses.webhooks.models import DeliveryState, WebhookDelivery
from responses.webhooks.schedule import LIFETIME
from tenants import scope

KEPT = timedelta(days=30)
_UNCLAIMED = timedelta(minutes=10)
_AT_ONCE = 10_000


def sweep() -> int:
    """Give up what nobody will deliver any more, and delete what is older than 30 days; returns how many rows."""
    at = now()
    with scope.every_team():
        # Whatever is due and not claimed for so long waits for an endpoint that is disabled.
        waiting = WebhookDelivery.objects.filter(
            state=DeliveryState.PENDING, created_at__lt=at - LIFETIME, next_attempt_at__lt=at - _UNCLAIMED
        )
        expired = waiting.order_by("created_at").values("pk")[:_AT_ONCE]
        given_up = WebhookDelivery.objects.filter(pk__in=expired).update(
            state=DeliveryState.FAILED, next_attempt_at=None, claimed_until=None
        )
        old = WebhookDelivery.objects.filter(created_at__lt=at - KEPT).order_by("created_at").values("pk")[:_AT_ONCE]
        deleted, _ = WebhookDelivery.objects.filter(pk__in=old).delete()
    return given_up + deleted
