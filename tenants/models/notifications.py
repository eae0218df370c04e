"""Models of the outbox and of notifications: the base class of deliveries, mails, and the preferences of users."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from typing_extensions import override

from core.clock import now
from core.ids import new_id
from tenants.models.teams import IdField, Team, TeamRow


def notification_id() -> str:
    """Return a new notification id."""
    return new_id("ntf")


def mail_id() -> str:
    """Return a new id of a mail."""
    return new_id("mail")


class DeliveryState(models.TextChoices):
    """State of a delivery. Failed means that no further attempt is made."""

    PENDING = "pending", "Pending"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


DELIVERY_TONES = {
    DeliveryState.PENDING.value: "info",
    DeliveryState.DELIVERED.value: "success",
    DeliveryState.FAILED.value: "danger",
}
"""Colours of the states in the console."""


class Delivery(TeamRow):
    """A row of the outbox: a message to be sent to one receiver.

    Until `claimed_until`, only the worker that claimed the row may send the message. Then any worker may claim it.
    """

    created_at = models.DateTimeField(default=now)
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    next_attempt_at = models.DateTimeField(null=True, default=now, help_text="Set only while the delivery is pending.")
    claimed_until = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    last_status = models.PositiveIntegerField(null=True, help_text="Empty if there was no response.")
    last_ms = models.PositiveIntegerField(null=True)
    last_error = models.CharField(max_length=300, default="", blank=True)
    last_body = models.CharField(max_length=500, default="", blank=True, help_text="Start of the response body.")
    history = models.JSONField(default=list, help_text="Latest attempts, oldest first.")

    class Meta:
        abstract = True


DUE_IFF_PENDING = Q(state=DeliveryState.PENDING, next_attempt_at__isnull=False) | (
    ~Q(state=DeliveryState.PENDING) & Q(next_attempt_at__isnull=True)
)
"""Condition of a check constraint that each table of deliveries has."""


class NotificationKind(models.TextChoices):
    """Kinds of notifications. Users can turn each kind on or off for each of their teams."""

    BUDGET_ALERT = "budget.alert", "Budget alerts"
    KEY_EXPIRING = "api_key.expiring", "API keys that expire soon"
    APPROVAL_REQUESTED = "approval.requested", "Approvals that responses wait for"
    ENDPOINT_DISABLED = "webhook_endpoint.disabled", "Webhook endpoints disabled by failures"


class Notification(TeamRow):
    """An event of which a team was notified. `key` identifies it within its kind, so that it is reported only once."""

    id = IdField(default=notification_id)
    kind = models.CharField(max_length=40, choices=NotificationKind.choices)
    key = models.CharField(max_length=300, db_collation="C")
    created_at = models.DateTimeField(default=now)
    details = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "kind", "key"], name="notification_once")]
        indexes = [models.Index(fields=["created_at"], name="notification_by_time")]


class MailDelivery(Delivery):
    """A mail to one person. Every attempt has the same Message-ID, which is derived from `id`.

    The text must not contain secrets. The footer with the link to unsubscribe is added when the mail is sent.
    """

    id = IdField(default=mail_id)
    notification = models.ForeignKey(Notification, on_delete=models.CASCADE, related_name="mails")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    address = models.CharField(max_length=254)
    subject = models.CharField(max_length=300)
    text = models.TextField()

    class Meta:
        verbose_name = "mail"
        constraints = [
            models.UniqueConstraint(fields=["user", "notification"], name="mail_once"),
            models.CheckConstraint(condition=DUE_IFF_PENDING, name="mail_due_iff_pending"),
        ]
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="mail_by_team"),
            models.Index(fields=["created_at", "id"], name="mail_by_time"),
            models.Index(fields=["next_attempt_at"], condition=Q(state=DeliveryState.PENDING), name="mail_due"),
        ]

    @override
    def __str__(self) -> str:
        return self.subject


class NotificationPreference(models.Model):
    """The choice of a user to receive, or not to receive, mails with notifications of one kind for one team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=40, choices=NotificationKind.choices)
    by_mail = models.BooleanField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "team", "kind"], name="notification_preference_once")]

    @override
    def __str__(self) -> str:
        return f"{self.kind} of {self.team} for {self.user}"


class BudgetCheck(models.Model):
    """The time up to which usage was compared with budgets. The table has one row, or none before the first check."""

    # A fixed key keeps the table at one row.
    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    until = models.DateTimeField()

    @override
    def __str__(self) -> str:
        return f"{self.until:%Y-%m-%d %H:%M} UTC"
