"""Invitations that leads send from the page of their team."""

import re
import uuid
from html import unescape

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from organization.admin.team_invites import MAX_A_DAY
from tenants import invitations, scope
from tenants.audit import audit
from tenants.invitations import ProjectRole
from tenants.models import AuditEvent, Invite, Membership, Role, Team
from tests.admin.conftest import CountQueries
from tests.admin.rows import member, text
from tests.support.api import Caller, MakeCaller
from tests.support.mail import use_mail
from tests.support.site_client import SiteClient
from tests.support.smtp_server import running_smtp_server

PASSWORD = "correct horse battery"
_LINK = re.compile(r"https?://[\w.:-]+/[\w/]*invitations/[\w~/-]+")


@pytest.fixture(autouse=True)
def quick_hashes(settings: LazySettings) -> None:
    """Use a fast password hasher."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def new_address() -> str:
    return f"{uuid.uuid4().hex}@example.com"


def members_page(team: Team) -> str:
    return f"/admin/tenants/team/{team.pk}/change/?tab=members"


def submit(client: Client, team: Team, **form: str) -> str:
    """Submit a form of the members tab and return the next page."""
    return unescape(text(client.post(f"/admin/tenants/team/{team.pk}/members/", form, follow=True)))


def invite(client: Client, team: Team, address: str, role: str = "team_lead") -> str:
    return submit(client, team, do="add", person=address, role=role)


def accept(link: str, address: str) -> None:
    """Create the account of an invitation."""
    form = {"username": address, "password1": PASSWORD, "password2": PASSWORD}
    assert SiteClient().post("/" + link.split("/", 3)[3], form).status_code == 302


def memberships(address: str) -> list[tuple[str, str]]:
    with scope.every_team():
        return list(Membership.objects.filter(user__email=address).values_list("team_id", "role"))


@pytest.mark.parametrize("role", list(Role))
def test_a_lead_invites_a_person_with_any_role(role: Role, lead: Client, caller: Caller) -> None:
    address = new_address()
    page = invite(lead, caller.team, address, role)
    assert "Copy the link below" in page
    (link,) = set(_LINK.findall(page))
    accept(link, address)
    assert memberships(address) == [(caller.team.pk, role)]
    assert link not in text(lead.get(members_page(caller.team)))


def test_the_link_is_sent_by_mail(lead: Client, caller: Caller, settings: Settings) -> None:
    address = new_address()
    with running_smtp_server() as server:
        use_mail(settings, server)
        assert "gets the link by mail" in invite(lead, caller.team, address)
        (mail,) = server.wait_for(1)
    assert (mail["to"], mail["subject"]) == (address, f"Invitation to the team {caller.team.name}")
    (link,) = _LINK.findall(mail.get_content())
    assert link.startswith("https://platform.example.com/")
    accept(link, address)
    assert memberships(address) == [(caller.team.pk, "team_lead")]


def test_a_refused_mail_leaves_the_link_to_copy(lead: Client, caller: Caller, settings: Settings) -> None:
    address = new_address()
    with running_smtp_server() as server:
        use_mail(settings, server)
        server.refused.add(address)
        page = invite(lead, caller.team, address)
    assert "the mail could not be sent" in page
    assert _LINK.search(page)


def test_leads_see_and_delete_only_invitations_to_their_team(
    lead: Client, stranger: Client, developer: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    address = new_address()
    invite(lead, caller.team, address)
    row = Invite.objects.get(email=address)
    for other in (stranger, developer):
        assert address not in text(other.get(members_page(caller.team)))
        answer = other.post(f"/admin/tenants/team/{caller.team.pk}/members/", {"do": "uninvite", "invite": row.pk})
        assert answer.status_code in {403, 404}
    another = make_caller().team
    assert "no longer open" in submit(member(another, Role.TEAM_LEAD), another, do="uninvite", invite=row.pk)
    assert Invite.objects.filter(pk=row.pk).exists()
    with scope.team(caller.team.pk):
        (line,) = AuditEvent.objects.filter(action="invite.sent", target=row.pk)
    assert line.after["email"] == address
    assert "was deleted" in submit(lead, caller.team, do="uninvite", invite=row.pk)
    assert not Invite.objects.filter(pk=row.pk).exists()
    assert "no longer open" in submit(lead, caller.team, do="uninvite", invite=row.pk)


def test_an_invitation_to_several_teams_is_hidden_from_their_leads(
    lead: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    projects = [ProjectRole(team=team, role="member") for team in (caller.team, make_caller().team)]
    row = invitations.create_invite(email=new_address(), projects=projects, actor="system")
    assert row.email not in text(lead.get(members_page(caller.team)))
    assert row.email not in text(lead.get("/admin/tenants/auditevent/"))


def test_a_lead_cannot_invite_to_another_team(lead: Client, make_caller: MakeCaller) -> None:
    address, other = new_address(), make_caller().team
    form = {"do": "add", "person": address, "role": "developer"}
    assert lead.post(f"/admin/tenants/team/{other.pk}/members/", form).status_code == 404
    assert not Invite.objects.filter(email=address).exists()


def test_a_second_invitation_is_not_sent(lead: Client, caller: Caller) -> None:
    address = new_address()
    invite(lead, caller.team, address)
    assert "is invited already" in invite(lead, caller.team, address.upper())
    assert Invite.objects.filter(email__iexact=address).count() == 1


def test_inactive_accounts_and_other_texts_are_reported_like_unknown_users(lead: Client, caller: Caller) -> None:
    gone = User.objects.create(username=uuid.uuid4().hex, email=new_address(), is_active=False)
    for name in (gone.email, "nobody", "not@an@address"):
        assert "no active user with exactly" in invite(lead, caller.team, name)
    assert not Invite.objects.filter(email=gone.email).exists()


def test_invitations_of_a_day_are_limited(lead: Client, caller: Caller) -> None:
    for _ in range(MAX_A_DAY):
        with scope.team(caller.team.pk):
            audit(team_id=caller.team.pk, actor="user:ada", action="invite.sent", target="invite_1")
    address = new_address()
    assert "Try again tomorrow" in invite(lead, caller.team, address)
    assert not Invite.objects.filter(email=address).exists()


def test_the_list_of_invites_names_teams_and_roles_without_a_query_for_each(
    admin: Client, make_caller: MakeCaller, count_queries: CountQueries
) -> None:
    def add() -> Team:
        team = make_caller().team
        invitations.create_invite(email=new_address(), projects=[ProjectRole(team=team, role="owner")], actor="system")
        return team

    first = add()
    number = count_queries(admin, "/admin/tenants/invite/")
    teams = [first, *(add() for _ in range(5))]
    assert count_queries(admin, "/admin/tenants/invite/") == number
    page = unescape(text(admin.get("/admin/tenants/invite/")))
    for team in teams:
        assert f"{team.name} (Team lead)" in page
        assert team.pk not in page
