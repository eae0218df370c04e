"""Notify a team: store an event once, with a mail for each member who wants it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings

from core.clock import now
from deliveries.notifications.recipients import recipients
from deliveries.outbox import queue
from tenants import scope
from tenants.models.notifications import MailDelivery, Notification, NotificationKind

# Longer than the longest period of a budget and the notice before an expiry. If a notification were deleted earlier,
# the same event could be reported again.
_RETENTION = timedelta(days=400)
_SUBJECT_LENGTH = 300
_BATCH_SIZE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Subject and plain text of a mail, without secrets, and the path of the console page about it."""

    subject: str
    text: str
    path: str


def notify(
    *, team_id: str, kind: NotificationKind, key: str, message: Message, details: Mapping[str, Any] | None = None
) -> Notification | None:
    """Store a notification and its mails in the caller's transaction. Return None if the team has one with this key.

    Must run in a scope that sees the team. Of two simultaneous calls with the same key, one returns None.
    """
    made = Notification(team_id=team_id, kind=kind, key=key, details=details or {})
    # Waits for a transaction that inserts the same key, and then finds its row.
    Notification.objects.bulk_create([made], ignore_conflicts=True)
    if not Notification.objects.filter(pk=made.pk).exists():
        return None
    if settings.EMAIL_HOST:
        # Names in the subject may contain line breaks, which headers must not.
        subject = " ".join(message.subject.split())[:_SUBJECT_LENGTH]
        text = f"{message.text}\n\n{settings.PUBLIC_URL}{message.path}"
        MailDelivery.objects.bulk_create(
            MailDelivery(
                team_id=team_id, notification=made, user=person, address=person.email, subject=subject, text=text
            )
            for person in recipients(team_id=team_id, kind=kind)
        )
        queue.wake()
    return made


def sweep() -> int:
    """Give up late mails, delete old mails and notifications, and return the number of rows changed."""
    swept = queue.sweep(MailDelivery)
    with scope.every_team():
        old = Notification.objects.filter(created_at__lt=now() - _RETENTION).order_by("created_at")
        deleted, _ = Notification.objects.filter(pk__in=old.values("pk")[:_BATCH_SIZE]).delete()
    return swept + deleted
