"""Notices of API keys that expire soon: once per key and time of expiry."""

from datetime import timedelta

import pytest
from pytest_django import Settings

from core.clock import now
from deliveries.notifications import notify_of_expiring_keys
from tenants import scope, services
from tenants.models import ApiKey
from tests.support.api import Caller
from tests.support.mail import add_person, mails_of


@pytest.fixture(autouse=True)
def mail_settings(database: None, settings: Settings) -> None:
    """A configured mail server, which nothing connects to."""
    settings.EMAIL_HOST, settings.DEFAULT_FROM_EMAIL = "127.0.0.1", "platform@example.com"


def add_key(caller: Caller, days: float) -> ApiKey:
    """Create a key that expires after this many days."""
    return services.create_key(
        team=caller.team, spec=services.KeySpec(name="billing", expires_at=now() + timedelta(days=days))
    ).key


def test_a_key_that_expires_within_14_days_is_reported_once(caller: Caller) -> None:
    add_person(caller)
    key = add_key(caller, 13.9)
    add_key(caller, 14.1)
    for _ in range(2):
        notify_of_expiring_keys()
    (mail,) = mails_of(caller)
    assert mail.subject == f"The API key billing of the team {caller.team.name} expires soon"
    assert f"{key.prefix}…{key.last_four}" in mail.text
    assert f"/admin/tenants/apikey/{key.pk}/change/" in mail.text


def test_a_key_with_a_changed_expiry_is_reported_again(caller: Caller) -> None:
    add_person(caller)
    key = add_key(caller, 10)
    notify_of_expiring_keys()
    with scope.team(caller.team.pk):
        ApiKey.objects.filter(pk=key.pk).update(expires_at=now() + timedelta(days=12))
    notify_of_expiring_keys()
    assert len(mails_of(caller)) == 2


def test_revoked_disabled_and_short_lived_keys_are_not_reported(caller: Caller) -> None:
    add_person(caller)
    services.revoke_key(key=add_key(caller, 10))
    services.enable_key(key=add_key(caller, 10), enabled=False)
    add_key(caller, 1)
    notify_of_expiring_keys()
    assert mails_of(caller) == []
