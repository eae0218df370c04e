"""Sign-in: passwords, second factors, OpenID Connect, and closed sign-up."""

import re
import time
import uuid
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client

from tenants import invitations, scope
from tenants.invitations import ProjectRole
from tenants.models import AuditEvent, Membership
from tests.admin.rows import sign_in, text
from tests.support.api import Caller
from tests.support.identity_provider import CLIENT, SECRET, IdentityProvider, running_identity_provider
from tests.support.site_client import SiteClient

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def quick_hashes(settings: LazySettings) -> None:
    """Use a fast password hasher: the default spends most of the test time on hashing."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def person(database: None) -> User:
    """An administrator with a password."""
    name = f"person-{uuid.uuid4().hex}"
    return User.objects.create_superuser(name, f"{name}@example.com", PASSWORD)


@pytest.fixture
def provider(settings: LazySettings, database: None) -> Iterator[IdentityProvider]:
    """The OpenID Connect provider in the platform's configuration."""
    with running_identity_provider() as running:
        app = {"provider_id": "sso", "name": "Example Corp", "client_id": CLIENT, "secret": SECRET}
        settings.SOCIALACCOUNT_PROVIDERS = {
            "openid_connect": {
                "APPS": [{**app, "settings": {"server_url": running.issuer, "oauth_pkce_enabled": True}}],
            },
        }
        yield running


def log_in(person: User, password: str = PASSWORD, client: Client | None = None) -> Client:
    """Try to sign in, and return the browser."""
    client = client or SiteClient()
    client.post("/account/login/", {"login": person.username, "password": password})
    return client


def is_signed_in(client: Client) -> bool:
    """Return whether the admin opens."""
    return client.get("/admin/").status_code == 200


def audit_actions(person: User) -> list[str]:
    """Return the audit actions about a user's sign-in, oldest first."""
    with scope.every_team():
        rows = AuditEvent.objects.filter(target=f"user:{person.username}").order_by("id")
        return [row.action for row in rows]


def sign_in_through(provider: IdentityProvider, **claims: object) -> Client:
    """Sign in through the provider with these claims, and return the browser."""
    provider.person = {"sub": uuid.uuid4().hex, **claims}
    client = SiteClient()
    gone = client.post("/account/oidc/sso/login/?next=/admin/")
    asked = parse_qs(urlsplit(gone["Location"]).query)
    assert gone["Location"].startswith(f"{provider.issuer}/authorization")
    assert asked["code_challenge"]
    client.get("/account/oidc/sso/login/callback/", {"code": "the-code", "state": asked["state"][0]})
    return client


def code_of(secret: str, *, steps: int = 0) -> str:
    """Return the code that an authenticator app shows."""
    return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps)))


def add_app(client: Client) -> str:
    """Set up an authenticator app and return its secret. This requires entering the password again."""
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    page = text(client.get("/account/2fa/totp/activate/"))
    found = re.search(r'id="authenticator_secret"[^>]*value="([A-Z2-7]+)"', page)
    assert found
    client.post("/account/2fa/totp/activate/", {"code": code_of(found[1])})
    return found[1]


def test_signing_in_returns_to_the_requested_page(person: User) -> None:
    client = SiteClient()
    first = client.get("/admin/tenants/team/", follow=True)
    assert first.redirect_chain[-1][0] == "/account/login/?next=%2Fadmin%2Ftenants%2Fteam%2F"
    done = client.post(first.redirect_chain[-1][0], {"login": person.username, "password": PASSWORD})
    form = {"login": person.username, "password": PASSWORD, "next": "/admin/tenants/team/"}
    assert done.status_code == 302
    assert SiteClient().post("/account/login/", form)["Location"] == "/admin/tenants/team/"
    assert audit_actions(person) == ["session.started"] * 2


def test_wrong_passwords_are_audited_and_rate_limited(person: User) -> None:
    client = SiteClient(REMOTE_ADDR=f"198.51.100.{uuid.uuid4().int % 250}")
    for _ in range(6):
        log_in(person, "wrong", client)
    assert not is_signed_in(log_in(person, client=client))
    assert set(audit_actions(person)) == {"session.refused"}
    assert len(audit_actions(person)) == 5


def test_sign_up_is_closed(database: None) -> None:
    name = f"new-{uuid.uuid4().hex}"
    form = {"username": name, "password1": PASSWORD, "password2": PASSWORD, "email": f"{name}@example.com"}
    assert "closed" in text(SiteClient().get("/account/signup/")).lower()
    SiteClient().post("/account/signup/", form)
    assert not User.objects.filter(username=name).exists()


def test_a_user_without_admin_access_gets_403_instead_of_a_redirect_loop(person: User) -> None:
    User.objects.filter(pk=person.pk).update(is_staff=False, is_superuser=False)
    assert log_in(person).get("/admin/", follow=True).status_code == 403


def test_signing_out_is_audited(person: User) -> None:
    client = log_in(person)
    client.post("/account/logout/")
    assert not is_signed_in(client)
    assert audit_actions(person) == ["session.started", "session.ended"]


@pytest.mark.slow
def test_a_sign_in_with_an_authenticator_app_requires_its_code(person: User) -> None:
    secret = add_app(log_in(person))
    assert secret not in Authenticator.objects.get(user=person, type="totp").data["secret"]
    client = log_in(person)
    assert not is_signed_in(client)
    client.post("/account/2fa/authenticate/", {"code": "000000"})
    assert not is_signed_in(client)
    client.post("/account/2fa/authenticate/", {"code": code_of(secret, steps=1)})
    assert is_signed_in(client)
    assert "second_factor.added" in audit_actions(person)


@pytest.mark.slow
def test_a_recovery_code_works_once(person: User) -> None:
    owner = log_in(person)
    add_app(owner)
    owner.post("/account/2fa/recovery-codes/generate/")
    code = text(owner.get("/account/2fa/recovery-codes/download/")).split()[0]
    for works in (True, False):
        client = log_in(person)
        client.post("/account/2fa/authenticate/", {"code": code})
        assert is_signed_in(client) is works


def test_a_second_factor_can_be_required(person: User, settings: LazySettings) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    client = log_in(person)
    assert client.get("/admin/")["Location"] == "/account/2fa/"
    add_app(client)
    assert is_signed_in(client)


@pytest.mark.slow
def test_changing_a_password_requires_the_old_one(person: User) -> None:
    client = log_in(person)
    new = {"oldpassword": PASSWORD, "password1": PASSWORD * 2, "password2": PASSWORD * 2}
    client.post("/account/password/change/", {**new, "oldpassword": "wrong"})
    assert "user.password_changed" not in audit_actions(person)
    client.post("/account/password/change/", new)
    assert "user.password_changed" in audit_actions(person)
    assert is_signed_in(log_in(person, PASSWORD * 2))


def test_other_sessions_can_be_ended(person: User) -> None:
    here, elsewhere = log_in(person), log_in(person)
    assert "Sign Out Other Sessions" in text(here.get("/account/sessions/"))
    here.post("/account/sessions/")
    assert is_signed_in(here)
    assert not is_signed_in(elsewhere)


@pytest.mark.parametrize("path", ["2fa/", "2fa/webauthn/", "2fa/webauthn/add/", "password/change/", "sessions/"])
def test_account_pages_show_the_admin_navigation(path: str, person: User) -> None:
    client = log_in(person)
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    page = client.get(f"/account/{path}")
    assert page.status_code == 200
    assert "/admin/responses/response/" in text(page)


def test_a_provider_sign_in_matches_a_user_by_verified_address(provider: IdentityProvider, person: User) -> None:
    client = sign_in_through(provider, email=person.email, email_verified=True)
    assert client.session["_auth_user_id"] == str(person.pk)
    assert is_signed_in(client)


def test_an_unverified_address_does_not_sign_in(provider: IdentityProvider, person: User) -> None:
    assert not is_signed_in(sign_in_through(provider, email=person.email, email_verified=False))


def test_an_unknown_provider_user_is_created_only_with_sign_up_enabled(
    provider: IdentityProvider, settings: LazySettings
) -> None:
    email = f"{uuid.uuid4().hex}@example.com"
    assert not is_signed_in(sign_in_through(provider, email=email, email_verified=True))
    assert not User.objects.filter(email=email).exists()
    settings.OIDC_SIGNUP = True
    client = sign_in_through(provider, email=email, email_verified=True)
    assert is_signed_in(client)
    assert client.get("/admin/tenants/team/").status_code == 403
    assert not User.objects.get(email=email).is_superuser


def test_an_invited_provider_user_is_created_and_joins_the_team(provider: IdentityProvider, caller: Caller) -> None:
    email = f"{uuid.uuid4().hex}@example.com"
    project = ProjectRole(team=caller.team, role="member")
    invite = invitations.create_invite(email=email, projects=[project], actor="system")
    assert not is_signed_in(sign_in_through(provider, email=email, email_verified=False))
    assert is_signed_in(sign_in_through(provider, email=email.upper(), email_verified=True))
    invite.refresh_from_db()
    assert invitations.status_of(invite) == "accepted"
    with scope.team(caller.team.pk):
        assert Membership.objects.filter(user=invite.accepted_by, role="developer").exists()


def test_the_sign_in_page_offers_the_provider(provider: IdentityProvider) -> None:
    assert "Continue with Example Corp" in text(SiteClient().get("/account/login/"))


def test_a_required_second_factor_does_not_apply_to_provider_sign_ins(
    provider: IdentityProvider, person: User, settings: LazySettings
) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    assert is_signed_in(sign_in_through(provider, email=person.email, email_verified=True))


def test_the_content_security_policy_forbids_external_resources_and_inline_scripts(database: None) -> None:
    policy = sign_in(superuser=True).get("/admin/")["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["img-src"] == "'self' data:"
    assert rules["script-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"


@pytest.mark.slow
def test_an_administrator_ends_sessions_and_removes_second_factors(person: User, admin: Client) -> None:
    client = log_in(person)
    add_app(client)
    page = f"/admin/auth/user/{person.pk}/sign-out/"
    assert "app" in text(admin.get("/admin/auth/user/", {"q": person.username}))
    assert "Sign out" in text(admin.get(page))
    assert is_signed_in(client)
    admin.post(page, {"factors": "on"})
    assert not is_signed_in(client)
    assert not Authenticator.objects.filter(user=person).exists()


def test_only_administrators_can_sign_users_out(person: User, operator: Client, lead: Client) -> None:
    # The lead sees no users at all.
    for client, status in ((operator, 403), (lead, 404)):
        assert client.post(f"/admin/auth/user/{person.pk}/sign-out/").status_code == status
