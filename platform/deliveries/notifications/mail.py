"""Mail as a channel of the outbox: plain text through the SMTP server of the configuration."""

import asyncio
import smtplib
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import parseaddr
from functools import partial

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import Case, When, Window
from django.db.models.functions import RowNumber
from typing_extensions import override

from core.clock import now
from deliveries.notifications.recipients import Subscription, sign
from deliveries.outbox.attempt import BODY_LENGTH, AttemptResult
from deliveries.outbox.delivery_worker import DeliveryChannel
from deliveries.outbox.queue import ClaimedDelivery, claimed, record_attempt
from tenants.models.notifications import DeliveryState, MailDelivery, NotificationKind

# An SMTP session has about ten steps, each with the timeout of EMAIL_TIMEOUT. A server that takes longer in total gets
# the mail twice, with the same Message-ID.
_CLAIM_SECONDS = 120
_CANDIDATES = 8
_FIRST_PERMANENT = 500
# Literals, because `reverse` would import all pages, which takes a worker seconds.
_UNSUBSCRIBE = "/account/unsubscribe/"
_PREFERENCES = "/admin/notifications/"


class MailChannel(DeliveryChannel):
    """Sends mails, each in a thread of its own: Django's mail backend is synchronous."""

    name = "mail"

    def __init__(self, *, slots: int) -> None:
        super().__init__(slots=slots)
        # Not the threads of the database: a mail server that does not answer would occupy them.
        self._threads = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="mail")

    @override
    def claim(self, *, at: datetime, slots: int) -> list[ClaimedDelivery]:
        until = at + timedelta(seconds=_CLAIM_SECONDS)
        due = MailDelivery.objects.filter(state=DeliveryState.PENDING, next_attempt_at__lte=at)
        # The first mail of each team, then the second of each: a team with many mails does not delay the others.
        place = Window(RowNumber(), partition_by="team", order_by="next_attempt_at")
        fair = due.annotate(place=place).order_by("place", "next_attempt_at").values_list("pk", flat=True)
        # More than needed, because other workers claim the same mails.
        candidates = list(fair[: _CANDIDATES * slots])
        if not candidates:
            return []
        order = Case(*(When(pk=pk, then=number) for number, pk in enumerate(candidates)))
        rows = list(
            due.filter(pk__in=candidates)
            .select_for_update(skip_locked=True, no_key=True, of=("self",))
            .select_related("notification", "team")
            .order_by(order)[:slots]
        )
        MailDelivery.objects.filter(pk__in=[row.pk for row in rows]).update(claimed_until=until, next_attempt_at=until)
        for row in rows:
            row.claimed_until = row.next_attempt_at = until
        return claimed(rows, until=until, channel=self.name, labels={"mail": "id", "notification": "notification_id"})

    @override
    async def send(self, delivery: MailDelivery) -> AttemptResult:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(_send, delivery))

    @override
    def record(self, delivery: MailDelivery, result: AttemptResult) -> None:
        record_attempt(delivery=delivery, result=result)


def _send(delivery: MailDelivery) -> AttemptResult:
    at, started = now(), time.monotonic()
    status, error, is_final = None, "", False
    try:
        message_of(delivery).send()
        status = 250
    except smtplib.SMTPRecipientsRefused as refused:
        ((status, answer),) = refused.recipients.values()
        # The address does not exist, for example. Answers of 400 to 499 are temporary, such as a full mailbox.
        error, is_final = _text(answer), status >= _FIRST_PERMANENT
    except smtplib.SMTPDataError as refused:
        status, error, is_final = refused.smtp_code, _text(refused.smtp_error), refused.smtp_code >= _FIRST_PERMANENT
    except smtplib.SMTPResponseException as refused:
        # Also a wrong password or sender, which an operator can correct in the meantime.
        status, error = refused.smtp_code, _text(refused.smtp_error)
    except (OSError, smtplib.SMTPException, ValueError) as failed:
        error = f"{type(failed).__name__}: {failed}"[:BODY_LENGTH]
    milliseconds = round((time.monotonic() - started) * 1000)
    return AttemptResult(at=at, milliseconds=milliseconds, status=status, error=error, is_final=is_final)


def message_of(delivery: MailDelivery) -> EmailMessage:
    """Return the mail with its footer; the same at every attempt, except for the date."""
    kind = NotificationKind(delivery.notification.kind)
    token = sign(Subscription(user_id=delivery.user_id, team_id=delivery.team_id, kind=kind))
    unsubscribe = f"{settings.PUBLIC_URL}{_UNSUBSCRIBE}{token}/"
    footer = (
        f"You receive this as a member of the team {delivery.team.name}.\n"
        f"Choose your notifications: {settings.PUBLIC_URL}{_PREFERENCES}\n"
        f'Unsubscribe from "{kind.label}" of this team: {unsubscribe}\n'
    )
    return EmailMessage(
        subject=delivery.subject,
        body=f"{delivery.text}\n\n-- \n{footer}",
        to=[delivery.address],
        headers={
            "Message-ID": f"<{delivery.pk}@{sender_domain()}>",
            "Auto-Submitted": "auto-generated",
            # Mail programs show a button, which posts to the URL (RFC 8058).
            "List-Unsubscribe": f"<{unsubscribe}>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        },
    )


def sender_domain() -> str:
    """Return the domain of the sender's address."""
    return parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "localhost"


def _text(answer: bytes | str) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return text.replace("\x00", "")[:BODY_LENGTH]
