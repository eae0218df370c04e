"""Admin pages of admin keys: only administrators create, see and revoke them."""

import re

import pytest
from django.test import Client

from core.crypto import keyed_digest
from tenants import scope, services
from tenants.models import AdminKey, AuditEvent
from tests.admin.rows import text

LIST = "/admin/tenants/adminkey/"
FORM = {"name": "provisioning", "scopes": ["admin.projects.read", "admin.projects.write"], "allowed_addresses": ""}


@pytest.mark.slow
def test_an_administrator_creates_a_key_and_sees_its_secret_once(admin: Client) -> None:
    assert "Give the key only what its program needs." in text(admin.get(f"{LIST}add/"))
    page = text(admin.post(f"{LIST}add/", {**FORM, "expires_at_0": "2099-01-02", "expires_at_1": "03:04:00"}))
    secret = re.findall(r"sk-admin-\w+-\w+", page)[0]
    key = AdminKey.objects.get(digest=keyed_digest(secret))
    assert (key.name, key.scopes, key.expires_at is not None) == ("provisioning", FORM["scopes"], True)
    assert str(key.created_by_id) == admin.session["_auth_user_id"]
    with scope.every_team():
        (line,) = AuditEvent.objects.filter(target=key.pk)
    assert (line.action, line.actor.partition(":")[0], secret in str(line.after)) == (
        "admin_key.created",
        "user",
        False,
    )
    shown = text(admin.get(f"{LIST}{key.pk}/change/"))
    assert "admin.projects.write" in shown
    assert secret not in shown
    assert f"{key.prefix}…{key.last_four}" in text(admin.get(LIST))


@pytest.mark.parametrize(
    "changed", [{"scopes": []}, {"scopes": ["responses.read"]}, {"name": ""}, {"allowed_addresses": "nowhere"}]
)
def test_an_invalid_key_is_not_created(admin: Client, changed: dict[str, object]) -> None:
    before = AdminKey.objects.count()
    assert "sk-admin-" not in text(admin.post(f"{LIST}add/", {**FORM, **changed}))
    assert AdminKey.objects.count() == before


def test_an_administrator_revokes_a_key(admin: Client) -> None:
    key = services.create_admin_key(name="gone", scopes=["admin.*"]).key
    assert "Revoke this admin key?" in text(admin.get(f"{LIST}{key.pk}/revoke/"))
    assert admin.post(f"{LIST}{key.pk}/revoke/").status_code == 302
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert "revoked" in text(admin.get(f"{LIST}{key.pk}/change/"))


@pytest.mark.parametrize("name", ["lead", "operator", "auditor"])
def test_only_administrators_open_admin_keys(request: pytest.FixtureRequest, name: str) -> None:
    browser: Client = request.getfixturevalue(name)
    key = services.create_admin_key(name="secret", scopes=["admin.*"]).key
    before = AdminKey.objects.count()
    for path in ("", "add/", f"{key.pk}/change/"):
        assert browser.get(LIST + path).status_code == 403
    assert browser.post(f"{LIST}add/", FORM).status_code == 403
    assert browser.get(f"{LIST}{key.pk}/revoke/").status_code == 404
    assert browser.post(f"{LIST}{key.pk}/revoke/").status_code == 404
    key.refresh_from_db()
    assert (key.revoked_at, AdminKey.objects.count()) == (None, before)
    assert "Admin keys" not in text(browser.get("/admin/"))
