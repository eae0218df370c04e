"""The audit log and admin keys in the admin API."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now
from openai import NotFoundError, OpenAI

from limits.services import set_limits
from tenants import members, scope, services
from tenants.audit import audit
from tenants.models import AdminKey, AuditEvent, Role
from tests.support.api import Api, Caller, error, ok
from tests.support.waiting import eventually

LOGS = "/organization/audit_logs"


def add_user() -> User:
    name = uuid.uuid4().hex
    return User.objects.create_user(name, f"{name}@example.com", is_staff=True)


def note(caller: Caller, action: str, *, actor: str = "system", **changes: Any) -> None:
    with scope.every_team():
        audit(team_id=caller.team.pk, actor=actor, action=action, target="thing_1", **changes)


def types(admin: OpenAI, caller: Caller, **filters: Any) -> list[str]:
    """Return the types of the events of a team, oldest first."""
    logs = admin.admin.organization.audit_logs.list(project_ids=[caller.team.pk], **filters)
    return [str(one.type) for one in logs][::-1]


def test_events_have_openais_types(admin_client: OpenAI, caller: Caller) -> None:
    user, team = add_user(), caller.team
    members.add_member(team=team, user=user, role=Role.TEAM_LEAD, actor="system")
    set_limits(team=team, values={"requests_per_minute": 60})
    services.suspend_team(team=team, suspended=True)
    services.revoke_key(key=caller.key)
    logs: dict[str, Any] = {
        one.type: one for one in admin_client.admin.organization.audit_logs.list(project_ids=[team.pk])
    }
    assert logs.keys() == {
        "project.created",
        "api_key.created",
        "user.added",
        "rate_limit.updated",
        "project.archived",
        "api_key.deleted",
    }
    project, key, limit = logs["project.created"], logs["api_key.created"], logs["rate_limit.updated"]
    assert project.project is not None
    assert (project.project.id, project.project.name) == (team.pk, team.name)
    assert project.project_created is not None
    assert project.project_created.data is not None
    assert project.project_created.data.name == team.name
    assert key.api_key_created is not None
    assert key.api_key_created.data is not None
    assert (key.api_key_created.id, key.api_key_created.data.scopes) == (caller.key.pk, ["*"])
    assert limit.rate_limit_updated is not None
    assert limit.rate_limit_updated.changes_requested is not None
    assert limit.rate_limit_updated.changes_requested.max_requests_per_1_minute == 60


def test_other_events_keep_their_names(admin_api: Api, caller: Caller) -> None:
    note(caller, "webhook_endpoint.created", after={"url": "https://example.com"})
    answer = ok(admin_api.request("GET", LOGS, params={"event_types[]": "webhook_endpoint.created", "limit": 1}))
    (line,) = answer["data"]
    assert (line["type"], line["details"]["after"]) == ("webhook_endpoint.created", {"url": "https://example.com"})


def test_actors_are_users_and_keys(admin_client: OpenAI, caller: Caller) -> None:
    user = add_user()
    account, new = services.create_service_account(team=caller.team, name="x", with_key=True, actor="system")
    assert new is not None
    note(caller, "a.user", actor=f"user:{user.username}")
    note(caller, "a.key", actor=f"key:{caller.key.pk}")
    note(caller, "a.service", actor=f"key:{new.key.pk}")
    logs: dict[str, Any] = {
        one.type: one.actor for one in admin_client.admin.organization.audit_logs.list(project_ids=[caller.team.pk])
    }
    session, key, service = logs["a.user"], logs["a.key"], logs["a.service"]
    assert session is not None
    assert session.session is not None
    assert session.session.user is not None
    assert (session.session.user.id, session.session.user.email) == (f"user-{user.pk}", user.email)
    assert key is not None
    assert key.api_key is not None
    assert key.api_key.id == caller.key.pk
    assert service is not None
    assert service.api_key is not None
    assert service.api_key.service_account is not None
    assert service.api_key.service_account.id == account.pk
    assert types(admin_client, caller, actor_ids=[f"user-{user.pk}"]) == ["a.user"]
    assert types(admin_client, caller, actor_emails=[user.email]) == ["a.user"]
    assert types(admin_client, caller, actor_ids=[caller.key.pk]) == ["a.key"]
    assert types(admin_client, caller, actor_ids=[account.pk]) == ["a.service"]


def test_events_are_filtered(admin_client: OpenAI, caller: Caller, outsider: Api) -> None:
    note(caller, "a.thing")
    assert types(admin_client, caller, event_types=["api_key.created", "a.thing"]) == ["api_key.created", "a.thing"]
    assert types(admin_client, caller, event_types=["team.created"]) == []
    assert types(admin_client, caller, resource_ids=[caller.key.pk]) == ["api_key.created"]
    both = admin_client.admin.organization.audit_logs.list(
        project_ids=[caller.team.pk, outsider.caller.team.pk], event_types=["project.created"]
    )
    assert {one.project.id for one in both if one.project} == {caller.team.pk, outsider.caller.team.pk}


def test_events_are_filtered_by_time(admin_client: OpenAI, caller: Caller) -> None:
    at = int((now() - timedelta(days=3)).timestamp())
    with scope.every_team():
        moment = now() - timedelta(days=3)
        AuditEvent.objects.create(team=caller.team, actor="system", action="a.old", target="x", occurred_at=moment)
    for comparison in ({"lt": at + 60}, {"lte": at + 60, "gt": at - 60}, {"gte": at - 60, "lt": at + 60}):
        assert types(admin_client, caller, effective_at=comparison) == ["a.old"]
    assert types(admin_client, caller, effective_at={"gte": at + 60}) == ["project.created", "api_key.created"]


def test_events_are_listed_in_pages_in_both_directions(admin_client: OpenAI, caller: Caller) -> None:
    logs = admin_client.admin.organization.audit_logs
    for number in range(3):
        note(caller, f"a.{number}")
    options: dict[str, Any] = {"project_ids": [caller.team.pk], "limit": 2}
    first = logs.list(**options)
    assert [one.type for one in first.data] == ["a.2", "a.1"]
    second = first.get_next_page()
    assert [one.type for one in second.data] == ["a.0", "api_key.created"]
    back = logs.list(**options, before=second.data[0].id)
    assert [one.type for one in back.data] == ["a.2", "a.1"]
    for unknown in ("audit_log-0", "audit_log-x", "7", "audit_log-" + "9" * 30):
        with pytest.raises(NotFoundError):
            logs.list(after=unknown)


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        ({"effective_at[gt]": "yesterday"}, (400, "effective_at[gt]")),
        ({"effective_at": "1"}, (400, "effective_at")),
        ({"effective_at[after]": "1"}, (400, "effective_at[after]")),
        ({"tenant_only": "true"}, (400, "tenant_only")),
        ({"project_ids[]": ["x"] * 101}, (400, "project_ids")),
    ],
)
def test_invalid_filters_are_refused(admin_api: Api, query: dict[str, Any], refused: tuple[int, str]) -> None:
    assert error(admin_api.request("GET", LOGS, params=query))[:2] == refused


def test_the_audit_log_needs_its_scope(make_admin: Callable[..., Api], api: Api) -> None:
    for client in (api, make_admin("admin.projects.read")):
        assert error(client.get(LOGS)) == (403, None, "insufficient_scope")
    assert make_admin("admin.audit_logs.read").get(LOGS, limit=1).status_code == 200


# -- admin keys --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sdk_lists_and_deletes_admin_keys(admin_client: OpenAI, admin_api: Api) -> None:
    keys, boss = admin_client.admin.organization.admin_api_keys, add_user()
    new = services.create_admin_key(name="sync", scopes=["admin.projects.read"], created_by=boss.pk)
    found = keys.retrieve(new.key.pk)
    assert (found.name, found.redacted_value) == ("sync", f"{new.key.prefix}…{new.key.last_four}")
    assert (found.owner.id, found.owner.role) == (f"user-{boss.pk}", "owner")
    assert new.key.pk in [one.id for one in keys.list(limit=100)]
    first = keys.list(limit=1, order="asc")
    assert first.get_next_page().data[0].id != first.data[0].id
    secret = {"Authorization": f"Bearer {new.secret}"}
    ok(admin_api.request("GET", "/organization/projects", headers=secret))
    assert keys.delete(new.key.pk).deleted
    eventually(
        lambda: admin_api.request("GET", "/organization/projects", headers=secret).status_code == 401, seconds=10
    )
    with pytest.raises(NotFoundError):
        keys.retrieve(new.key.pk)
    with pytest.raises(NotFoundError):
        keys.list(after=new.key.pk)


def test_admin_keys_are_not_created_with_admin_keys(admin_api: Api) -> None:
    before = AdminKey.objects.count()
    refused = admin_api.post("/organization/admin_api_keys", {"name": "more"})
    assert error(refused) == (405, None, "method_not_supported")
    assert AdminKey.objects.count() == before


def test_admin_keys_need_their_scope(make_admin: Callable[..., Api], api: Api) -> None:
    key = services.create_admin_key(name="x", scopes=["admin.*"]).key
    for client in (api, make_admin("admin.keys.read", "admin.keys.write")):
        assert error(client.get("/organization/admin_api_keys")) == (403, None, "insufficient_scope")
        refused = client.delete(f"/organization/admin_api_keys/{key.pk}")
        assert error(refused) == (403, None, "insufficient_scope")
