"""Retention of deliveries. Each run is one bounded transaction and may run twice or in parallel."""

from datetime import timedelta

from kernel.clock import now
from responses.webhooks.models import DeliveryState, WebhookDelivery
from responses.webhooks.schedule import LIFETIME
from tenants import scope

RETENTION = timedelta(days=30)
_UNCLAIMED = timedelta(minutes=10)
_BATCH_SIZE = 10_000


def sweep() -> int:
    """Mark expired deliveries as failed, delete those older than 30 days, and return the number of rows changed."""
    at = now()
    with scope.every_team():
        # A delivery that is due for so long without a claim belongs to a disabled endpoint. Those of enabled endpoints
        # are left to the delivery workers, which record their last attempt.
        waiting = WebhookDelivery.objects.filter(
            state=DeliveryState.PENDING, created_at__lt=at - LIFETIME, next_attempt_at__lt=at - _UNCLAIMED
        )
        expired = waiting.order_by("created_at").values("pk")[:_BATCH_SIZE]
        failed = WebhookDelivery.objects.filter(pk__in=expired).update(
            state=DeliveryState.FAILED, next_attempt_at=None, claimed_until=None
        )
        outdated = WebhookDelivery.objects.filter(created_at__lt=at - RETENTION)
        deleted, _ = WebhookDelivery.objects.filter(
            pk__in=outdated.order_by("created_at").values("pk")[:_BATCH_SIZE]
        ).delete()
    return failed + deleted
