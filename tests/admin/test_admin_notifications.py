"""Notifications of members: defaults, choices in the console, links to unsubscribe; the list of mails."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from deliveries.notifications import choices_of, mail, set_choice
from tenants import scope
from tenants.models import AuditEvent, MailDelivery, Membership, NotificationKind, Role
from tests.admin.rows import text
from tests.support.api import Caller, MakeCaller
from tests.support.mail import add_mail, add_person, mails_of, notify_team
from tests.support.site_client import SiteClient

PAGE = "/admin/notifications/"
MAILS = "/admin/tenants/maildelivery/"
ALERT = NotificationKind.BUDGET_ALERT


@pytest.fixture(autouse=True)
def mail_settings(settings: Settings) -> None:
    """A configured mail server, which nothing connects to."""
    settings.EMAIL_HOST, settings.DEFAULT_FROM_EMAIL = "127.0.0.1", "platform@example.com"


def signed_in(person: User) -> Client:
    """Return the browser of a person."""
    client = SiteClient()
    client.force_login(person)
    return client


def link_in(delivery: MailDelivery) -> str:
    """Return the path of the link to unsubscribe in a mail."""
    with scope.team(delivery.team_id):
        message = mail.message_of(MailDelivery.objects.select_related("notification", "team").get(pk=delivery.pk))
    found = re.search(r"http://localhost:\d+(/account/unsubscribe/\S+)", str(message.body))
    assert found is not None
    return found[1]


def test_leads_are_notified_by_default_and_others_are_not(caller: Caller, make_caller: MakeCaller) -> None:
    lead = add_person(caller)
    add_person(caller, Role.DEVELOPER)
    add_person(caller, Role.AUDITOR)
    add_person(caller, is_active=False)
    add_person(caller, email="")
    add_person(make_caller())
    notify_team(caller)
    assert [one.address for one in mails_of(caller)] == [lead.email]


def test_a_team_is_notified_once_per_key(caller: Caller, make_caller: MakeCaller) -> None:
    add_person(caller)
    assert notify_team(caller, "first") is not None
    assert notify_team(caller, "first") is None
    assert notify_team(caller, "second") is not None
    assert notify_team(caller, "first", NotificationKind.KEY_EXPIRING) is not None
    assert len(mails_of(caller)) == 3
    assert notify_team(make_caller(), "first") is not None


def test_no_mail_is_queued_without_a_mail_server(caller: Caller, settings: Settings) -> None:
    settings.EMAIL_HOST = ""
    add_person(caller)
    assert notify_team(caller) is not None
    assert mails_of(caller) == []


def test_a_choice_replaces_the_default_of_the_role(caller: Caller) -> None:
    lead, developer = add_person(caller), add_person(caller, Role.DEVELOPER)
    set_choice(user_id=lead.pk, team_id=caller.team.pk, kinds=[ALERT], by_mail=False)
    set_choice(user_id=developer.pk, team_id=caller.team.pk, kinds=[ALERT], by_mail=True)
    notify_team(caller, "one")
    notify_team(caller, "two", NotificationKind.ENDPOINT_DISABLED)
    assert [one.address for one in mails_of(caller)] == [developer.email, lead.email]


def test_a_former_member_gets_no_mail(caller: Caller) -> None:
    person = add_person(caller)
    set_choice(user_id=person.pk, team_id=caller.team.pk, kinds=[ALERT], by_mail=True)
    with scope.team(caller.team.pk):
        Membership.objects.filter(user=person).delete()
    notify_team(caller)
    assert mails_of(caller) == []


def test_the_page_stores_the_choices_of_each_team(caller: Caller, make_caller: MakeCaller) -> None:
    person, other = add_person(caller), make_caller()
    with scope.team(other.team.pk):
        Membership.objects.create(team=other.team, user=person, role=Role.DEVELOPER)
    browser = signed_in(person)
    shown = text(browser.get(PAGE))
    assert (shown.count('name="by_mail"'), shown.count(" checked")) == (8, 4)
    wanted = [f"{caller.team.pk} api_key.expiring", f"{other.team.pk} budget.alert"]
    assert browser.post(PAGE, {"by_mail": wanted}).status_code == 302
    stored = [f"{choice.team_id} {choice.kind.value}" for choice in choices_of(person) if choice.by_mail]
    assert sorted(stored) == sorted(wanted)


def test_the_page_stores_no_choices_for_other_teams(caller: Caller, make_caller: MakeCaller) -> None:
    person, other = add_person(caller), make_caller()
    signed_in(person).post(PAGE, {"by_mail": [f"{other.team.pk} budget.alert"]})
    assert {choice.team_id for choice in choices_of(person)} == {caller.team.pk}


def test_the_link_in_a_mail_unsubscribes_after_a_confirmation(caller: Caller) -> None:
    person = add_person(caller)
    notify_team(caller)
    link = link_in(mails_of(caller)[0])
    anyone = SiteClient(enforce_csrf_checks=True)
    # Programs that scan mails open links.
    assert "Unsubscribe?" in text(anyone.get(link))
    assert all(choice.by_mail for choice in choices_of(person))
    # As a mail program does (RFC 8058).
    assert anyone.post(link, {"List-Unsubscribe": "One-Click"}).status_code == 200
    assert [choice.kind for choice in choices_of(person) if not choice.by_mail] == [ALERT]


def test_a_forged_link_to_unsubscribe_is_unknown(caller: Caller) -> None:
    person = add_person(caller)
    notify_team(caller)
    link = link_in(mails_of(caller)[0]).rstrip("/")
    for forged in (f"{link[:-1]}{'A' if link[-1] != 'A' else 'B'}/", "/account/unsubscribe/nonsense/"):
        assert SiteClient().post(forged).status_code == 404
    assert all(choice.by_mail for choice in choices_of(person))


def test_paths_in_mails_lead_to_pages() -> None:
    assert (reverse("unsubscribe", args=["token"]), reverse("console:notifications")) == (
        "/account/unsubscribe/token/",
        PAGE,
    )


def test_leads_see_the_mails_of_their_team(
    caller: Caller, lead: Client, developer: Client, stranger: Client, operator: Client
) -> None:
    sent = add_mail(caller, subject="Budget of nobody else")
    assert "Budget of nobody else" in text(lead.get(MAILS))
    assert "Budget of nobody else" in text(operator.get(MAILS))
    assert "Budget of nobody else" not in text(stranger.get(MAILS))
    assert developer.get(MAILS).status_code == 403
    assert stranger.get(f"{MAILS}{sent.pk}/change/").status_code == 404


def test_a_lead_resends_a_mail(caller: Caller, lead: Client, stranger: Client) -> None:
    sent = add_mail(caller, state="failed", next_attempt_at=None, attempts=1, last_status=550)
    assert stranger.post(f"{MAILS}{sent.pk}/resend/").status_code == 404
    assert mails_of(caller)[0].state == "failed"
    assert lead.post(f"{MAILS}{sent.pk}/resend/").status_code == 302
    assert (mails_of(caller)[0].state, mails_of(caller)[0].next_attempt_at is not None) == ("pending", True)
    with scope.team(caller.team.pk):
        assert AuditEvent.objects.filter(action="mail.resent", target=sent.pk).count() == 1
