"""Mails of the outbox: members with an address, notifications, and the settings of a mail server."""

import uuid
from typing import Any

from django.contrib.auth.models import User
from pytest_django import Settings

from deliveries.notifications import Message, notify
from tenants import scope
from tenants.models import MailDelivery, Membership, Notification, NotificationKind, Role
from tenants.models.notifications import DeliveryState
from tests.support.api import Caller
from tests.support.smtp_server import SmtpServer
from tests.support.waiting import PATIENCE, eventually

PATH = "/admin/tenants/team/"


def use_mail(settings: Settings, server: SmtpServer) -> None:
    """Configure this process to send mail through the server. pytest-django replaces Django's backend."""
    # Mails of other tests would be sent to this server too.
    with scope.every_team():
        MailDelivery.objects.filter(state=DeliveryState.PENDING).delete()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    settings.EMAIL_TIMEOUT = 1
    settings.DEFAULT_FROM_EMAIL = "Platform <platform@example.com>"
    settings.PUBLIC_URL = "https://platform.example.com"


def add_person(caller: Caller, role: Role = Role.TEAM_LEAD, **columns: Any) -> User:
    """Create a member of the caller's team with a mail address."""
    name = f"person-{uuid.uuid4().hex[:8]}"
    person = User.objects.create(**{"username": name, "email": f"{name}@example.com", "is_staff": True, **columns})
    with scope.team(caller.team.pk):
        Membership.objects.create(team=caller.team, user=person, role=role)
    return person


def notify_team(
    caller: Caller, key: str = "one", kind: NotificationKind = NotificationKind.BUDGET_ALERT, **parts: str
) -> Notification | None:
    """Notify the caller's team."""
    message = Message(**{"subject": "A subject", "text": "A text.", "path": PATH, **parts})
    with scope.team(caller.team.pk):
        return notify(team_id=caller.team.pk, kind=kind, key=key, message=message)


def mails_of(caller: Caller) -> list[MailDelivery]:
    """Return the mails of the caller's team in order of creation."""
    with scope.team(caller.team.pk):
        return list(MailDelivery.objects.order_by("pk"))


def mails_settled(caller: Caller, *states: str, seconds: float = PATIENCE) -> list[MailDelivery]:
    """Wait until the team's mails have these states and return them."""

    def look() -> list[MailDelivery]:
        found = mails_of(caller)
        return found if [one.state for one in found] == list(states) else []

    return eventually(look, seconds=seconds)


def add_mail(caller: Caller, **columns: Any) -> MailDelivery:
    """Create a mail to a new lead of the caller's team."""
    person = add_person(caller)
    with scope.team(caller.team.pk):
        about = Notification.objects.create(team=caller.team, kind=NotificationKind.BUDGET_ALERT, key=uuid.uuid4().hex)
        defaults = {"user": person, "address": person.email, "subject": "A subject", "text": "A text."}
        return MailDelivery.objects.create(team=caller.team, notification=about, **{**defaults, **columns})
