"""Mails through a real SMTP server: retried with one Message-ID, never lost, and without delaying webhooks.

In tests a failed delivery is retried three times immediately, and then after ten minutes (tests/servers.py).
"""

import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from core.clock import now
from deliveries.notifications import sweep
from deliveries.notifications.mail import MailChannel
from tenants import scope
from tenants.models import MailDelivery, Notification
from tests.support.api import Caller, MakeCaller
from tests.support.mail import add_person, mails_of, mails_settled, notify_team, use_mail
from tests.support.smtp_server import SmtpServer, running_smtp_server
from tests.support.waiting import eventually
from tests.support.webhooks import add_endpoint, announce, delivering, running_receiver, settled
from tests.support.workers import running_worker


@pytest.fixture
def smtp(database: None, settings: Settings) -> Iterator[SmtpServer]:
    """A mail server that answers."""
    with running_smtp_server() as running:
        use_mail(settings, running)
        yield running


@pytest.fixture
def silent_smtp(database: None, settings: Settings) -> Iterator[SmtpServer]:
    """A mail server that accepts connections and does not answer until its gate is opened."""
    with running_smtp_server(closed=True) as running:
        use_mail(settings, running)
        yield running


def test_a_mail_is_plain_text_with_links_and_headers(caller: Caller, smtp: SmtpServer) -> None:
    person = add_person(caller)
    with delivering():
        notify_team(caller, subject="Line\r\nbreak", text="Ä text.")
        (delivery,) = mails_settled(caller, "delivered")
    (mail,) = smtp.messages
    assert (mail["subject"], mail["to"], mail["from"]) == (
        "Line break",
        person.email,
        "Platform <platform@example.com>",
    )
    assert mail["message-id"] == f"<{delivery.pk}@example.com>"
    assert mail["list-unsubscribe-post"] == "List-Unsubscribe=One-Click"
    assert mail["auto-submitted"] == "auto-generated"
    assert mail.get_content_type() == "text/plain"
    body = mail.get_content().replace("\r\n", "\n")
    assert "Ä text.\n\nhttps://platform.example.com/admin/tenants/team/" in body
    assert mail["list-unsubscribe"].strip(" <>") in body
    assert (delivery.attempts, delivery.last_status) == (1, 250)


def test_a_mail_is_sent_as_soon_as_it_is_committed(caller: Caller, smtp: SmtpServer) -> None:
    add_person(caller)
    with delivering(poll_seconds=600):
        notify_team(caller, "one")
        smtp.wait_for(1)
        notify_team(caller, "two")
        smtp.wait_for(2)


def test_retries_keep_the_message_id(caller: Caller, smtp: SmtpServer) -> None:
    add_person(caller)
    smtp.answers = ["451 try again", "452 disk full"]
    with delivering():
        notify_team(caller)
        (delivery,) = mails_settled(caller, "delivered")
    assert [attempt["status"] for attempt in delivery.history] == [451, 452, 250]
    assert {mail["message-id"] for mail in smtp.messages} == {f"<{delivery.pk}@example.com>"}
    assert len({mail.get_content() for mail in smtp.messages}) == 1


def test_an_unknown_address_is_not_retried_and_delays_no_other_mail(caller: Caller, smtp: SmtpServer) -> None:
    gone, present = add_person(caller), add_person(caller)
    smtp.refused = {gone.email}
    with delivering():
        notify_team(caller)
        eventually(lambda: {mail.state for mail in mails_of(caller)} == {"failed", "delivered"})
    by_address = {mail.address: mail for mail in mails_of(caller)}
    assert (by_address[gone.email].attempts, by_address[gone.email].last_status) == (1, 550)
    assert "no such mailbox" in by_address[gone.email].last_error
    assert [mail["to"] for mail in smtp.messages] == [present.email]


def test_a_refused_message_is_not_retried(caller: Caller, smtp: SmtpServer) -> None:
    add_person(caller)
    smtp.answers = ["554 looks like spam"]
    with delivering():
        notify_team(caller)
        (delivery,) = mails_settled(caller, "failed")
    assert (delivery.attempts, delivery.last_status) == (1, 554)


def test_a_dead_mail_server_delays_no_webhook(caller: Caller, settings: Settings) -> None:
    with running_smtp_server() as server:
        use_mail(settings, server)
    add_person(caller)
    with running_receiver() as receiver, delivering():
        add_endpoint(caller, receiver.url)
        for number in range(10):
            notify_team(caller, str(number))
        announce(caller)
        settled(caller, "delivered")
        eventually(lambda: all(mail.attempts == 4 for mail in mails_of(caller)))
    assert {mail.state for mail in mails_of(caller)} == {"pending"}
    assert "Connection refused" in mails_of(caller)[0].last_error


def test_a_silent_mail_server_delays_no_webhook(caller: Caller, silent_smtp: SmtpServer, settings: Settings) -> None:
    settings.EMAIL_TIMEOUT = 60
    add_person(caller)
    with running_receiver() as receiver, delivering():
        add_endpoint(caller, receiver.url)
        for number in range(10):
            notify_team(caller, str(number))
        # Both mail slots of the worker are in use.
        eventually(lambda: silent_smtp.here == 2)
        for number in range(20):
            announce(caller, object_id=f"resp_{number}")
        settled(caller, *["delivered"] * 20)
        assert silent_smtp.here == 2
        silent_smtp.gate.set()
        mails_settled(caller, *["delivered"] * 10)


def test_a_slow_webhook_receiver_delays_no_mail(caller: Caller, smtp: SmtpServer, settings: Settings) -> None:
    settings.WEBHOOK_TIMEOUT_SECONDS = 60
    add_person(caller)
    with running_receiver(closed=True) as receiver, delivering(slots=1):
        add_endpoint(caller, receiver.url)
        announce(caller)
        receiver.wait_for(1)
        notify_team(caller)
        mails_settled(caller, "delivered")
        receiver.gate.set()
        settled(caller, "delivered")


def test_a_mail_server_that_does_not_answer_in_time_fails_the_attempt(caller: Caller, silent_smtp: SmtpServer) -> None:
    add_person(caller)
    with delivering():
        notify_team(caller)
        (delivery,) = eventually(lambda: [mail for mail in mails_of(caller) if mail.attempts])
        silent_smtp.gate.set()
        assert "timed out" in delivery.history[0]["error"]
        mails_settled(caller, "delivered")


def test_late_mails_are_abandoned_and_old_ones_deleted(caller: Caller, smtp: SmtpServer) -> None:
    """The mails are never sent because the mail server was removed from the configuration of all workers."""
    add_person(caller)
    made = notify_team(caller)
    late = now() - timedelta(hours=73)
    with scope.team(caller.team.pk):
        MailDelivery.objects.update(created_at=late, next_attempt_at=late)
    sweep()
    mails_settled(caller, "failed")
    with scope.team(caller.team.pk):
        MailDelivery.objects.update(created_at=now() - timedelta(days=31))
    sweep()
    assert mails_of(caller) == []
    # The notification of the team is remembered longer than the longest budget period.
    assert notify_team(caller) is None
    with scope.team(caller.team.pk):
        Notification.objects.filter(pk=made.pk if made else "").update(created_at=now() - timedelta(days=401))
    sweep()
    assert notify_team(caller) is not None


def test_mails_are_retried_for_three_days(caller: Caller, smtp: SmtpServer) -> None:
    add_person(caller)
    smtp.answers = ["451 try again"] * 5
    with delivering():
        notify_team(caller)
        eventually(lambda: [mail for mail in mails_of(caller) if mail.attempts == 4])
        with scope.team(caller.team.pk):
            MailDelivery.objects.update(created_at=now() - timedelta(hours=72), next_attempt_at=now())
        mails_settled(caller, "failed")
    assert len(smtp.messages) == 5


def test_leads_are_told_that_an_endpoint_was_disabled(caller: Caller, smtp: SmtpServer) -> None:
    person = add_person(caller)
    with running_receiver() as receiver, delivering():
        made = add_endpoint(caller, f"{receiver.url}?token=secret")
        receiver.statuses = [410]
        announce(caller)
        (mail,) = smtp.wait_for(1)
    assert (mail["to"], mail["subject"]) == (person.email, "Webhook endpoint test was disabled")
    body = mail.get_content()
    assert f"https://platform.example.com/admin/responses/webhookendpoint/{made.pk}/change/" in body
    assert "410" in body
    assert "token" not in body.replace("/account/unsubscribe/", "")


def test_a_team_with_many_mails_does_not_delay_others(
    caller: Caller, make_caller: MakeCaller, smtp: SmtpServer
) -> None:
    other = make_caller()
    for team, mails in ((caller, 5), (other, 1)):
        add_person(team)
        for number in range(mails):
            notify_team(team, str(number))
    channel = MailChannel(slots=2)
    with scope.every_team():
        first = channel.claim(at=now(), slots=2)
        second = channel.claim(at=now(), slots=2)
    assert [one.team_id for one in first] == [caller.team.pk, other.team.pk]
    assert [one.team_id for one in second] == [caller.team.pk] * 2


@pytest.mark.slow
def test_a_mail_interrupted_by_a_killed_worker_is_repeated_with_its_message_id(
    caller: Caller, silent_smtp: SmtpServer
) -> None:
    """Delivery is at least once. Mail programs and servers recognize the duplicate by its Message-ID."""
    add_person(caller)
    mail: dict[str, Any] = {"EMAIL_URL": silent_smtp.url, "MAIL_FROM": "platform@example.com"}
    with running_worker(**mail) as worker:
        notify_team(caller)
        eventually(lambda: silent_smtp.here == 1)
        worker.stop(signal.SIGKILL)
    (delivery,) = mails_of(caller)
    assert (delivery.state, delivery.attempts) == ("pending", 0)
    silent_smtp.gate.set()
    # Its claim expires.
    with scope.team(caller.team.pk):
        MailDelivery.objects.update(claimed_until=now(), next_attempt_at=now())
    with running_worker(**mail):
        mails_settled(caller, "delivered", seconds=30)
    assert {one["message-id"] for one in silent_smtp.messages} == {f"<{delivery.pk}@example.com>"}
