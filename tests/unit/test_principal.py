"""Scopes of the caller."""

import pytest

from core.errors import Forbidden
from tenants.models import AdminScope, Scope
from tenants.principal import Principal


def principal(*scopes: str, team_id: str = "team_1") -> Principal:
    return Principal(
        team_id=team_id,
        key_id="key_1",
        scopes=frozenset(scopes),
        allowed_models=None,
        tools=frozenset(),
        expires_at=None,
        grace_seconds=None,
    )


def test_a_key_with_all_scopes_has_no_admin_scope() -> None:
    everything = principal("*")
    assert all(everything.has(scope) for scope in Scope)
    with pytest.raises(Forbidden, match=r"admin\.usage\.read"):
        everything.require(AdminScope.USAGE_READ)


def test_a_scope_of_the_admin_api_gives_a_key_of_a_team_nothing() -> None:
    assert not principal("admin.usage.read").has(Scope.USAGE_READ)


def test_an_admin_key_has_the_scopes_of_the_admin_api_only() -> None:
    everything = principal("admin.*", "*", team_id="")
    assert all(everything.has(scope) for scope in AdminScope)
    assert {scope for scope in Scope if everything.has(scope)} == {Scope.USAGE_READ}
    assert not principal("admin.projects.read", team_id="").has(AdminScope.PROJECTS_WRITE)


def test_a_key_of_a_team_has_no_scope_of_the_admin_api() -> None:
    assert not any(principal("*", "admin.*", *AdminScope.values).has(scope) for scope in AdminScope)
