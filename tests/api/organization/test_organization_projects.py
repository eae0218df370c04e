"""`/v1/organization/projects` and the API keys in them; permissions of admin keys."""

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now
from openai import NotFoundError, OpenAI

from tenants import members, scope, services
from tenants.models import AdminScope, ApiKey, AuditEvent, Membership, Role, Team
from tests.support.api import Api, Caller, MakeApi, MakeCaller, error, ok
from tests.support.upstream import Script
from tests.support.waiting import eventually

MakeAdmin = Callable[..., Api]
PROJECTS = "/organization/projects"


def new_name() -> str:
    return f"project {uuid.uuid4().hex}"


def audited(target: str) -> list[tuple[str, str]]:
    """Return action and kind of actor of the audit lines about an object."""
    with scope.every_team():
        lines = AuditEvent.objects.filter(target=target).order_by("pk")
        return [(line.action, line.actor.partition("_")[0]) for line in lines]


# -- admin keys ------------------------------------------------------------------------------------------------------


def test_a_key_with_all_scopes_of_its_team_is_not_an_admin_key(api: Api) -> None:
    for method, path in (("GET", PROJECTS), ("POST", PROJECTS), ("GET", f"{PROJECTS}/{api.caller.team.pk}")):
        assert error(api.request(method, path)) == (403, None, "insufficient_scope")


def test_admin_scopes_in_a_teams_key_have_no_effect(make_api: MakeApi) -> None:
    assert error(make_api(scopes=["*", "admin.*"]).get(PROJECTS)) == (403, None, "insufficient_scope")


def test_an_admin_key_cannot_call_models(admin_api: Api, script: Script) -> None:
    body = {"model": script.model, "input": "Hi"}
    for streamed in (False, True):
        answer = admin_api.post("/responses", {**body, "stream": streamed})
        assert error(answer) == (403, None, "insufficient_scope")
    assert error(admin_api.get("/models")) == (403, None, "insufficient_scope")


def test_an_admin_key_needs_the_scope_of_each_request(make_admin: MakeAdmin, caller: Caller) -> None:
    reader = make_admin("admin.projects.read")
    assert ok(reader.get(f"{PROJECTS}/{caller.team.pk}"))["id"] == caller.team.pk
    assert error(reader.post(f"{PROJECTS}/{caller.team.pk}", {"name": "x"})) == (403, None, "insufficient_scope")
    assert error(reader.get(f"{PROJECTS}/{caller.team.pk}/api_keys")) == (403, None, "insufficient_scope")


def test_a_revoked_or_expired_admin_key_is_rejected(make_admin: MakeAdmin) -> None:
    new = services.create_admin_key(name="gone", scopes=["admin.*"])
    services.revoke_admin_key(key=new.key)
    old = services.create_admin_key(name="old", scopes=["admin.*"], expires_at=now() - timedelta(seconds=1))
    for secret, code in ((new.secret, "api_key_revoked"), (old.secret, "api_key_expired")):
        answer = make_admin().request("GET", PROJECTS, headers={"Authorization": f"Bearer {secret}"})
        assert error(answer) == (401, None, code)


def test_an_admin_key_is_bound_to_its_addresses(make_admin: MakeAdmin) -> None:
    new = services.create_admin_key(name="office", scopes=["admin.*"], allowed_addresses=["203.0.113.0/24"])
    answer = make_admin().request("GET", PROJECTS, headers={"Authorization": f"Bearer {new.secret}"})
    assert error(answer) == (403, None, "ip_not_allowed")


def test_the_last_use_of_an_admin_key_is_recorded(admin_api: Api) -> None:
    new = services.create_admin_key(name="used", scopes=["admin.*"])
    ok(admin_api.request("GET", PROJECTS, headers={"Authorization": f"Bearer {new.secret}"}))

    def is_used() -> bool:
        new.key.refresh_from_db()
        return new.key.last_used_at is not None

    eventually(is_used)


def test_an_admin_key_needs_scopes_of_the_admin_api(database: None) -> None:
    for scopes in ([], ["*"], ["admin.*", "responses.read"]):
        with pytest.raises(ValueError, match="needs scopes of the admin API"):
            services.create_admin_key(name="x", scopes=scopes)


# -- projects --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sdk_manages_projects(admin_client: OpenAI) -> None:
    projects = admin_client.admin.organization.projects
    name, renamed = new_name(), new_name()
    made = projects.create(name=name)
    assert (made.name, made.status, made.archived_at) == (name, "active", None)
    assert projects.update(made.id, name=renamed).name == renamed
    assert projects.retrieve(made.id).name == renamed
    assert made.id in [one.id for one in projects.list(limit=100)]
    archived = projects.archive(made.id)
    assert archived.status == "archived"
    assert archived.archived_at is not None
    assert made.id not in [one.id for one in projects.list(limit=100)]
    assert made.id in [one.id for one in projects.list(limit=100, include_archived=True)]
    actions = ["team.created", "team.updated", "team.suspended"]
    assert audited(made.id) == [(action, "key:adminkey") for action in actions]


def test_projects_are_listed_in_pages(admin_client: OpenAI) -> None:
    projects = admin_client.admin.organization.projects
    made = [projects.create(name=new_name()).id for _ in range(3)]
    first = projects.list(limit=2)
    assert ([one.id for one in first.data], first.has_more) == ([made[2], made[1]], True)
    assert first.get_next_page().data[0].id == made[0]
    with pytest.raises(NotFoundError):
        projects.list(after="team_unknown")


def test_project_names_are_unique(admin_api: Api, caller: Caller) -> None:
    other = ok(admin_api.post(PROJECTS, {"name": new_name()}))
    assert error(admin_api.post(PROJECTS, {"name": caller.team.name})) == (409, "name", None)
    assert error(admin_api.post(f"{PROJECTS}/{other['id']}", {"name": caller.team.name})) == (409, "name", None)
    assert error(admin_api.post(PROJECTS, {"name": ""})) == (400, "name", "empty_string")
    assert error(admin_api.post(PROJECTS, {"name": "x", "residency": "eu"})) == (400, "residency", "unknown_parameter")


def test_an_unknown_project_is_not_found(admin_api: Api) -> None:
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("POST", "/archive"),
        ("GET", "/api_keys"),
        ("GET", "/api_keys/key_1"),
        ("POST", "/api_keys/key_1"),
        ("DELETE", "/api_keys/key_1"),
    ):
        assert error(admin_api.request(method, f"{PROJECTS}/team_unknown{path}"))[0] == 404


def test_keys_of_an_archived_project_are_refused(admin_client: OpenAI, api: Api) -> None:
    admin_client.admin.organization.projects.archive(api.caller.team.pk)
    eventually(lambda: api.get("/models").status_code == 403)
    assert error(api.get("/models")) == (403, None, "team_suspended")


# -- API keys --------------------------------------------------------------------------------------------------------


def test_the_sdk_manages_keys_of_a_project(admin_client: OpenAI, api: Api) -> None:
    keys, team = admin_client.admin.organization.projects.api_keys, api.caller.team
    (key,) = keys.list(team.pk)
    assert (key.id, key.redacted_value) == (
        api.caller.key.pk,
        f"{api.caller.key.prefix}…{api.caller.key.last_four}",
    )
    assert api.caller.secret not in key.to_json()
    changed = keys.update(key.id, project_id=team.pk, scopes=["models.read"], expires_in_seconds=3600)
    assert changed.expires_at is not None
    assert abs(changed.expires_at - now().timestamp() - 3600) < 60
    with scope.team(team.pk):
        assert ApiKey.objects.get(pk=key.id).scopes == ["models.read"]
    assert keys.delete(key.id, project_id=team.pk).deleted
    assert list(keys.list(team.pk)) == []
    with pytest.raises(NotFoundError):
        keys.retrieve(key.id, project_id=team.pk)
    assert [action for action, _ in audited(key.id)] == ["api_key.created", "api_key.updated", "api_key.revoked"]
    eventually(lambda: api.get("/models").status_code == 401)


def test_a_key_of_another_project_is_not_found(admin_api: Api, api: Api, outsider: Api) -> None:
    path = f"{PROJECTS}/{api.caller.team.pk}/api_keys/{outsider.caller.key.pk}"
    for method in ("GET", "POST", "DELETE"):
        assert error(admin_api.request(method, path)) == (404, None, None)
    cursor = admin_api.get(f"{PROJECTS}/{api.caller.team.pk}/api_keys", after=outsider.caller.key.pk)
    assert error(cursor) == (404, "after", None)
    assert outsider.get("/models").status_code == 200


@pytest.mark.parametrize(
    ("scopes", "stored"),
    [
        ([], ["*"]),
        (["*", "models.read"], ["*"]),
        (["files.read", "files.read"], ["files.read"]),
    ],
)
def test_scopes_of_a_key_are_replaced(admin_api: Api, caller: Caller, scopes: list[str], stored: list[str]) -> None:
    ok(admin_api.post(f"{PROJECTS}/{caller.team.pk}/api_keys/{caller.key.pk}", {"scopes": scopes}))
    with scope.team(caller.team.pk):
        assert ApiKey.objects.get(pk=caller.key.pk).scopes == stored


def test_a_key_can_be_limited_to_reading(admin_api: Api, caller: Caller) -> None:
    ok(admin_api.post(f"{PROJECTS}/{caller.team.pk}/api_keys/{caller.key.pk}", {"scopes": ["api.all.read"]}))
    with scope.team(caller.team.pk):
        scopes = ApiKey.objects.get(pk=caller.key.pk).scopes
    assert "responses.read" in scopes
    assert all(one.endswith(".read") and not one.startswith("admin.") for one in scopes)


@pytest.mark.parametrize(
    "name", ["responses.everything", "admin.*", AdminScope.PROJECTS_READ.value, AdminScope.USAGE_READ.value]
)
def test_a_key_of_a_project_gets_no_other_scopes(admin_api: Api, caller: Caller, name: str) -> None:
    path = f"{PROJECTS}/{caller.team.pk}/api_keys/{caller.key.pk}"
    assert error(admin_api.post(path, {"scopes": ["models.read", name]})) == (400, "scopes[1]", "invalid_value")


def test_an_expired_key_cannot_be_changed(admin_api: Api, make_caller: MakeCaller) -> None:
    caller = make_caller(expires_at=now() - timedelta(seconds=1))
    path = f"{PROJECTS}/{caller.team.pk}/api_keys/{caller.key.pk}"
    assert error(admin_api.post(path, {"expires_in_seconds": 60})) == (409, None, None)


def add_user(team: Team) -> User:
    name = uuid.uuid4().hex
    user = User.objects.create_user(name, f"{name}@example.com", is_staff=True)
    members.add_member(team=team, user=user, role=Role.DEVELOPER, actor="system")
    return user


def test_the_owner_of_a_key_and_its_access_are_shown(admin_client: OpenAI, caller: Caller) -> None:
    keys, team = admin_client.admin.organization.projects.api_keys, caller.team
    user = add_user(team)
    key = services.create_key(team=team, spec=services.KeySpec(name="own", created_by=user.pk)).key
    found = keys.retrieve(key.pk, project_id=team.pk)
    assert found.owner.user is not None
    assert (found.owner.type, found.owner.user.id, found.owner.user.email) == ("user", f"user-{user.pk}", user.email)
    assert (found.owner.user.role, found.owner_project_access) == ("member", "active")
    with scope.team(team.pk):
        Membership.objects.filter(user=user).delete()
    assert [one.id for one in keys.list(team.pk, owner_project_access="inactive")] == [key.pk]
    assert [one.id for one in keys.list(team.pk, owner_project_access="active")] == [caller.key.pk]
    assert {one.id for one in keys.list(team.pk, owner_project_access="any")} == {key.pk, caller.key.pk}
