"""Invitations: in the admin API, in the console, and on the page where invited people create their accounts."""

import re
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client
from openai import ConflictError, NotFoundError, OpenAI

import server.urls  # noqa: F401 - registers the pages
from core.clock import now
from tenants import invitations, scope
from tenants.invitations import ProjectRole
from tenants.models import AuditEvent, Invite, Membership, Role, StaffRole
from tests.admin.rows import sign_in, text
from tests.support.api import Api, Caller, error, ok
from tests.support.site_client import SiteClient

INVITES = "/organization/invites"
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def quick_hashes(settings: LazySettings) -> None:
    """Use a fast password hasher: the default spends most of the test time on hashing."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def new_address() -> str:
    return f"{uuid.uuid4().hex}@example.com"


def form(name: str) -> dict[str, str]:
    return {"username": name, "first_name": "Ada", "last_name": "", "password1": PASSWORD, "password2": PASSWORD}


def make_invite(*projects: ProjectRole) -> Invite:
    return invitations.create_invite(email=new_address(), projects=projects, actor="system")


def test_the_sdk_manages_invites(admin_client: OpenAI, caller: Caller) -> None:
    invites, address = admin_client.admin.organization.invites, new_address()
    made = invites.create(email=address, role="reader", projects=[{"id": caller.team.pk, "role": "owner"}])
    assert (made.email, made.status, made.accepted_at) == (address, "pending", None)
    assert [(one.id, one.role) for one in made.projects] == [(caller.team.pk, "owner")]
    assert made.expires_at == made.created_at + 7 * 24 * 3600
    assert invites.retrieve(made.id).email == address
    other = invites.create(email=new_address(), role="reader")
    first = invites.list(limit=1)
    assert [one.id for one in first.data] == [other.id]
    assert first.get_next_page().data[0].id == made.id
    assert invites.delete(made.id).deleted
    with pytest.raises(NotFoundError):
        invites.retrieve(made.id)
    with scope.every_team():
        lines = AuditEvent.objects.filter(target=made.id).order_by("pk")
        assert [line.action for line in lines] == ["invite.sent", "invite.deleted"]


def test_no_answer_contains_the_link(admin_api: Api) -> None:
    answer = admin_api.post(INVITES, {"email": new_address(), "role": "reader"})
    invite = Invite.objects.get(pk=ok(answer)["id"])
    signature = invitations.path_of(invite).partition("~")[2].rstrip("/")
    assert len(signature) > 20
    assert signature not in answer.text


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"email": "nobody"}, (400, "email")),
        ({"role": "owner"}, (400, "role")),
        ({"projects": [{"id": "team_unknown", "role": "member"}]}, (404, "projects[0].id")),
        ({"projects": [{"id": "team_unknown", "role": "boss"}]}, (400, "projects[0].role")),
    ],
)
def test_invalid_invites_are_refused(admin_api: Api, changed: dict[str, object], refused: tuple[int, str]) -> None:
    body = {"email": new_address(), "role": "reader", **changed}
    assert error(admin_api.post(INVITES, body))[:2] == refused


def test_an_existing_user_cannot_be_invited(admin_client: OpenAI) -> None:
    user = User.objects.create_user(uuid.uuid4().hex, new_address())
    with pytest.raises(ConflictError):
        admin_client.admin.organization.invites.create(email=user.email.upper(), role="reader")


def test_invites_need_their_scope(make_admin: Callable[..., Api], api: Api) -> None:
    invite = make_invite()
    for client in (api, make_admin("admin.users.read", "admin.users.write")):
        for method, path in (("GET", ""), ("POST", ""), ("GET", f"/{invite.pk}"), ("DELETE", f"/{invite.pk}")):
            assert error(client.request(method, INVITES + path)) == (403, None, "insufficient_scope")
    assert ok(make_admin("admin.invites.read").get(f"{INVITES}/{invite.pk}"))["status"] == "pending"


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_link_creates_an_account_once(caller: Caller, admin_client: OpenAI) -> None:
    invite = make_invite(ProjectRole(team=caller.team, role="member"))
    path, browser = invitations.path_of(invite), SiteClient()
    assert invite.email in text(browser.get(path))
    answer = browser.post(path, form(invite.email))
    assert (answer.status_code, answer["Location"]) == (302, "/account/login/")
    user = User.objects.get(username=invite.email)
    assert (user.email, user.first_name, user.is_staff, user.is_superuser) == (invite.email, "Ada", True, False)
    with scope.team(caller.team.pk):
        assert [one.role for one in Membership.objects.filter(user=user)] == ["developer"]
    browser.post("/account/login/", {"login": user.username, "password": PASSWORD})
    assert browser.get("/admin/").status_code == 200
    assert SiteClient().get(path).status_code == 404
    assert SiteClient().post(path, form("second")).status_code == 404
    found = admin_client.admin.organization.invites.retrieve(invite.pk)
    assert (found.status, found.accepted_at is not None) == ("accepted", True)
    with pytest.raises(ConflictError):
        admin_client.admin.organization.invites.delete(invite.pk)


def test_an_accepted_invite_invalidates_others_for_its_address(caller: Caller) -> None:
    accepted, other = (make_invite(ProjectRole(team=caller.team, role=role)) for role in ("member", "owner"))
    Invite.objects.filter(pk=other.pk).update(email=accepted.email.upper())
    assert SiteClient().post(invitations.path_of(accepted), form(accepted.email)).status_code == 302
    assert SiteClient().post(invitations.path_of(other), form(uuid.uuid4().hex)).status_code == 404
    with scope.every_team():
        (line,) = AuditEvent.objects.filter(action="invite.deleted", target=other.pk)
        (member,) = Membership.objects.filter(user__username=accepted.email)
    assert (line.actor, member.role) == (f"user:{accepted.email}", "developer")


def test_a_weak_password_or_a_known_name_creates_nothing(caller: Caller) -> None:
    invite, known = make_invite(), User.objects.create_user(uuid.uuid4().hex)
    path = invitations.path_of(invite)
    for changed in ({"password1": "12345", "password2": "12345"}, {"password2": "other"}, {"username": known.username}):
        assert SiteClient().post(path, {**form("someone-new"), **changed}).status_code == 200
    assert not User.objects.filter(username="someone-new").exists()
    invite.refresh_from_db()
    assert invitations.status_of(invite) == "pending"


def test_an_account_cannot_take_the_name_of_another(database: None) -> None:
    invite, known = make_invite(), User.objects.create_user(f"Name{uuid.uuid4().hex}", email=new_address())
    for name in (known.email, known.username.upper()):
        assert SiteClient().post(invitations.path_of(invite), form(name)).status_code == 200
        assert not User.objects.filter(username=name).exists()
    assert SiteClient().post(invitations.path_of(invite), form(invite.email)).status_code == 302


def test_only_the_signed_link_of_a_pending_invite_opens(database: None) -> None:
    invite, expired = make_invite(), make_invite()
    Invite.objects.filter(pk=expired.pk).update(expires_at=now() - timedelta(seconds=1))
    path = invitations.path_of(invite)
    wrong = [
        path.replace(invite.pk, expired.pk),
        path[:-3] + "xx/",
        f"/account/invitations/{invite.pk}/",
        invitations.path_of(expired),
    ]
    for one in wrong:
        assert SiteClient().get(one).status_code == 404
        assert SiteClient().post(one, form(uuid.uuid4().hex)).status_code == 404
    invitations.delete_invite(invite=invite, actor="system")
    assert SiteClient().get(path).status_code == 404


# -- the console -----------------------------------------------------------------------------------------------------


def test_an_administrator_invites_and_sees_the_link(caller: Caller) -> None:
    admin, address = sign_in(superuser=True), new_address()
    answer = admin.post("/admin/tenants/invite/add/", {"email": address, "team": caller.team.pk, "role": "auditor"})
    invite = Invite.objects.get(email=address)
    assert (answer.status_code, invite.projects) == (302, [{"id": caller.team.pk, "role": "auditor"}])
    page = text(admin.get(answer["Location"]))
    assert invitations.path_of(invite) in page
    assert address in text(admin.get("/admin/tenants/invite/"))
    assert admin.post(f"/admin/tenants/invite/{invite.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Invite.objects.filter(pk=invite.pk).exists()


def test_the_console_invites_no_user(database: None) -> None:
    user = User.objects.create_user(uuid.uuid4().hex, new_address())
    page = sign_in(superuser=True).post("/admin/tenants/invite/add/", {"email": user.email, "role": "developer"})
    assert re.search("A user has this e-mail address already", text(page))


def test_only_administrators_see_invites(caller: Caller) -> None:
    invite = make_invite()
    browsers: list[Client] = [sign_in({caller.team.pk: Role.TEAM_LEAD}), sign_in(staff=StaffRole.OPERATOR)]
    for browser in browsers:
        for path in ("", "add/", f"{invite.pk}/change/", f"{invite.pk}/delete/"):
            assert browser.get(f"/admin/tenants/invite/{path}").status_code in {403, 404}
