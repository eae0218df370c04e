"""Database models of webhooks: endpoints, and their deliveries in the outbox."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from typing_extensions import override

from core.clock import now
from core.crypto import EncryptedTextField
from core.ids import new_id
from tenants.models import IdField, Team
from tenants.models.notifications import DUE_IFF_PENDING, Delivery, DeliveryState

MAX_NAME = 256
MAX_URL = 2048


def endpoint_id() -> str:
    """Return a new endpoint id."""
    return new_id("we")


class DisabledReason(models.TextChoices):
    """Reason why an endpoint receives no more events."""

    GONE = "gone", "Endpoint returned 410 Gone"
    FAILING = "failing", "No successful delivery for five days"
    BY_HAND = "by_hand", "Disabled manually"


class WebhookEndpoint(models.Model):
    """A URL that receives events of a team. Until `previous_until`, deliveries are signed with both secrets."""

    id = IdField(default=endpoint_id)
    # No separate index: the index on team and time below begins with this column.
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=MAX_NAME)
    url = models.CharField(max_length=MAX_URL)
    event_types = ArrayField(models.CharField(max_length=40), default=list)
    secret = EncryptedTextField()
    previous_secret = EncryptedTextField(blank=True, default="")
    previous_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=10, choices=DisabledReason.choices, blank=True, default="")
    failing_since = models.DateTimeField(null=True, blank=True, help_text="No delivery has succeeded since then.")
    created_at = models.DateTimeField(default=now, editable=False)
    updated_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        verbose_name = "webhook endpoint"
        constraints = [
            models.CheckConstraint(
                condition=Q(enabled=True, disabled_at__isnull=True) | Q(enabled=False, disabled_at__isnull=False),
                name="webhook_disabled_at_iff_disabled",
            )
        ]
        indexes = [models.Index(fields=["team", "created_at", "id"], name="webhook_by_team_and_time")]

    @override
    def __str__(self) -> str:
        return self.name


class WebhookDelivery(Delivery):
    """One event for one endpoint."""

    event_id = models.CharField(max_length=64, db_collation="C")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    event_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64, db_collation="C")
    data = models.JSONField(default=dict, help_text="Data of the event besides the id of its object.")

    class Meta:
        verbose_name = "webhook delivery"
        verbose_name_plural = "webhook deliveries"
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event_id"], name="webhook_delivery_once"),
            models.CheckConstraint(condition=DUE_IFF_PENDING, name="webhook_delivery_due_iff_pending"),
        ]
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="webhook_delivery_by_team"),
            models.Index(fields=["created_at", "id"], name="webhook_delivery_by_time"),
            models.Index(fields=["object_id"], name="webhook_delivery_by_object"),
            # Partial indexes: of a table that keeps 30 days, only few rows are pending, and even fewer are claimed.
            models.Index(
                fields=["endpoint", "next_attempt_at"],
                condition=Q(state=DeliveryState.PENDING),
                name="webhook_delivery_due",
            ),
            models.Index(
                fields=["endpoint"], condition=Q(claimed_until__isnull=False), name="webhook_delivery_claimed"
            ),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.event_type} {self.event_id}"
