"""Life cycle of an API key in the admin: presets, rotation, disabling, cloning, and permissions for each."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from core.errors import Forbidden, Unauthorized
from core.origin import Origin, use_origin
from tenants import directory, scope, services
from tenants.models import ApiKey, AuditEvent, KeySource
from tests.admin.rows import text
from tests.admin.test_admin_keys import ADD, change_page, make, newest, secret_on
from tests.support.api import Caller

LIST = "/admin/tenants/apikey/"
ACTIONS = ("revoke", "disable", "rotate")


def act(client: Client, caller: Caller, verb: str, **form: Any) -> Any:
    """Submit a confirmed action."""
    return client.post(f"{LIST}{newest(caller).pk}/{verb}/", form)


def own(developer: Client, caller: Caller) -> str:
    """Return the secret of a key that the developer created."""
    return secret_on(make(developer, caller, name="mine"))


@pytest.mark.parametrize(
    ("preset", "scope_of"), [("full", "*"), ("responses", "responses.write"), ("read", "files.read")]
)
def test_a_preset_selects_scopes(preset: str, scope_of: str, lead: Client, caller: Caller) -> None:
    make(lead, caller, preset=preset, scopes=[])
    key = newest(caller)
    assert scope_of in key.scopes
    assert preset != "read" or all(each.endswith(".read") for each in key.scopes)


def test_a_key_of_a_team_cannot_have_scopes_of_the_admin_api(lead: Client, caller: Caller) -> None:
    for name in ("admin.usage.read", "admin.*"):
        assert "Select a valid choice" in make(lead, caller, preset="custom", scopes=[name])


def test_custom_scopes_must_not_be_empty(lead: Client, caller: Caller) -> None:
    assert "Select at least one scope." in make(lead, caller, preset="custom", scopes=[])
    assert newest(caller).pk == caller.key.pk


@pytest.mark.slow
def test_a_custom_expiry_is_the_end_of_that_day(lead: Client, caller: Caller) -> None:
    day = (now() + timedelta(days=10)).date()
    make(lead, caller, lifetime="custom", expires_on=day.isoformat())
    expires_at = newest(caller).expires_at
    assert expires_at is not None
    assert expires_at.isoformat() == f"{day + timedelta(days=1)}T00:00:00+00:00"
    assert "Enter today or a later date." in make(lead, caller, lifetime="custom", expires_on="2020-01-01")


def test_a_key_is_limited_to_networks(lead: Client, caller: Caller) -> None:
    secret = secret_on(make(lead, caller, allowed_addresses="10.1.2.3/16\n2001:DB8::1, 192.0.2.7"))
    assert newest(caller).allowed_addresses == ["10.1.0.0/16", "2001:db8::1/128", "192.0.2.7/32"]
    with use_origin(Origin(address="10.2.0.1")), pytest.raises(Forbidden, match="address"):
        directory.principal(secret)
    assert "is not an IP address or network" in make(lead, caller, allowed_addresses="10.1.2.3/99")


def test_a_rotated_key_shows_its_new_secret_once(lead: Client, caller: Caller) -> None:
    answer = act(lead, caller, "rotate", grace="24")
    secret = secret_on(text(answer))
    assert "no-store" in answer["Cache-Control"]
    assert [directory.principal(each).key_id for each in (secret, caller.secret)] == [caller.key.pk] * 2
    page = text(lead.get(change_page(caller.key)))
    assert secret not in page
    assert "grace" in page.lower()
    assert f"{caller.key.prefix}…{caller.key.last_four} works until" in page


def test_rotation_needs_confirmation_and_a_known_grace_period(lead: Client, caller: Caller) -> None:
    assert "Rotate this key?" in text(lead.get(f"{LIST}{caller.key.pk}/rotate/"))
    assert 'id="secret"' not in text(act(lead, caller, "rotate", grace="9999"))
    assert newest(caller).digest == caller.key.digest


def test_a_key_is_disabled_and_enabled(lead: Client, caller: Caller) -> None:
    assert "Disable this key?" in text(lead.get(f"{LIST}{caller.key.pk}/disable/"))
    act(lead, caller, "disable")
    with pytest.raises(Unauthorized, match="disabled"):
        directory.principal(caller.secret)
    act(lead, caller, "enable")
    assert newest(caller).disabled_at is None


def test_a_clone_starts_with_the_permissions_of_the_key(lead: Client, caller: Caller) -> None:
    made = services.create_key(
        team=caller.team, spec=services.KeySpec(name="shop", scopes=["files.read"], allowed_models=["m-17"])
    )
    answer = lead.get(f"{LIST}{made.key.pk}/clone/", follow=True)
    page = text(answer)
    assert 'value="shop (copy)"' in page
    assert 'value="m-17"' in page
    assert re.search(r'value="files.read"[^>]*checked', page)


def test_a_key_of_another_team_cannot_be_cloned(stranger: Client, caller: Caller) -> None:
    page = text(stranger.get(ADD, {"clone": caller.key.pk}))
    assert "(copy)" not in page
    assert caller.team.pk not in page


def test_a_developer_may_rotate_and_revoke_their_own_keys(developer: Client, caller: Caller) -> None:
    first = own(developer, caller)
    second = secret_on(text(act(developer, caller, "rotate", grace="0")))
    assert directory.principal(second).key_id == newest(caller).pk
    with pytest.raises(Unauthorized):
        directory.principal(first)
    assert act(developer, caller, "revoke").status_code == 302
    assert newest(caller).revoked_at is not None


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_developer_may_not_change_keys_of_others(verb: str, developer: Client, caller: Caller) -> None:
    assert act(developer, caller, verb, grace="0").status_code == 403
    key = newest(caller)
    assert (key.revoked_at, key.disabled_at, key.digest) == (None, None, caller.key.digest)
    assert developer.post(change_page(caller.key), {"name": "mine"}).status_code == 403


def test_an_operator_may_disable_and_revoke_but_not_create_keys(operator: Client, caller: Caller) -> None:
    tried = [operator.get(ADD), operator.post(ADD), act(operator, caller, "rotate", grace="0")]
    assert [answer.status_code for answer in tried] == [403] * 3
    assert [act(operator, caller, verb).status_code for verb in ("disable", "enable", "revoke")] == [302] * 3
    assert newest(caller).revoked_at is not None


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_platform_auditor_may_only_view_keys(verb: str, platform_auditor: Client, caller: Caller) -> None:
    assert act(platform_auditor, caller, verb, grace="0").status_code == 403
    assert caller.key.prefix in text(platform_auditor.get(change_page(caller.key)))


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_key_of_another_team_looks_like_an_unknown_key(verb: str, stranger: Client, caller: Caller) -> None:
    unknown = stranger.post(f"{LIST}key_unknown/{verb}/", {"grace": "0"})
    found = act(stranger, caller, verb, grace="0")
    assert (found.status_code, found.content) == (unknown.status_code, unknown.content)
    assert found.status_code == 404
    assert newest(caller).digest == caller.key.digest


def test_the_list_hides_playground_keys(lead: Client, caller: Caller) -> None:
    services.create_key(team=caller.team, spec=services.KeySpec(name="for-play", source=KeySource.PLAYGROUND))
    shown = ["for-play" in text(lead.get(LIST, query)) for query in ({}, {"source": "playground"}, {"source": "all"})]
    assert shown == [False, True, True]


@pytest.mark.parametrize(("status", "columns"), [("grace", {"old_until": 1}), ("disabled", {"disabled_at": -1})])
def test_the_list_is_filtered_by_grace_and_disabled(status: str, columns: Any, lead: Client, caller: Caller) -> None:
    with scope.every_team():
        moments = {name: now() + timedelta(hours=hours) for name, hours in columns.items()}
        ApiKey.objects.filter(pk=caller.key.pk).update(name="odd one", **moments)
    services.create_key(team=caller.team, spec=services.KeySpec(name="plain one"))
    page = text(lead.get(LIST, {"status": status}))
    assert ("odd one" in page, "plain one" in page) == (True, False)


def test_actions_are_audited_without_secrets(lead: Client, caller: Caller) -> None:
    secret = secret_on(text(act(lead, caller, "rotate", grace="1")))
    act(lead, caller, "disable")
    with scope.every_team():
        lines = list(AuditEvent.objects.filter(target=caller.key.pk, actor__startswith="user:").order_by("id"))
    assert [line.action for line in lines] == ["api_key.rotated", "api_key.disabled"]
    assert secret not in str([(line.before, line.after) for line in lines])
