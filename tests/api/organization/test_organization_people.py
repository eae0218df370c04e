"""Service accounts and users of the admin API (`/v1/organization`)."""

import uuid

import pytest
from django.contrib.auth.models import User
from openai import ConflictError, NotFoundError, OpenAI

from tenants import members, scope
from tenants.models import ApiKey, AuditEvent, Membership, Role, Team
from tests.support.api import Api, Caller, error, ok
from tests.support.waiting import eventually

PROJECTS = "/organization/projects"


def add_user(**options: bool) -> User:
    name = uuid.uuid4().hex
    user = User.objects.create_user(name, f"{name}@example.com", first_name="Ada", last_name="Lovelace")
    for field, value in {"is_staff": True, **options}.items():
        setattr(user, field, value)
    user.save()
    return user


def add_member(team: Team, role: Role = Role.DEVELOPER) -> User:
    user = add_user()
    members.add_member(team=team, user=user, role=role, actor="system")
    return user


# -- service accounts ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sdk_manages_service_accounts(admin_client: OpenAI, api: Api) -> None:
    accounts, team = admin_client.admin.organization.projects.service_accounts, api.caller.team
    made = accounts.create(team.pk, name="nightly", expires_in_seconds=3600)
    assert made.api_key is not None
    assert made.api_key.expires_at is not None
    secret = {"Authorization": f"Bearer {made.api_key.value}"}
    ok(api.request("GET", "/models", headers=secret))
    key = admin_client.admin.organization.projects.api_keys.retrieve(made.api_key.id, project_id=team.pk)
    assert (key.owner.type, key.owner_project_access) == ("service_account", "active")
    assert key.owner.service_account is not None
    assert key.owner.service_account.id == made.id
    assert accounts.update(made.id, project_id=team.pk, name="hourly").name == "hourly"
    assert accounts.retrieve(made.id, project_id=team.pk).name == "hourly"
    assert [one.id for one in accounts.list(team.pk)] == [made.id]
    assert accounts.delete(made.id, project_id=team.pk).deleted
    assert list(accounts.list(team.pk)) == []
    with pytest.raises(NotFoundError):
        accounts.retrieve(made.id, project_id=team.pk)
    eventually(lambda: api.request("GET", "/models", headers=secret).status_code == 401)
    with scope.team(team.pk):
        lines = AuditEvent.objects.filter(target__in=[made.id, made.api_key.id]).order_by("pk")
        assert [line.action for line in lines] == [
            "service_account.created",
            "api_key.created",
            "service_account.updated",
            "api_key.revoked",
            "service_account.deleted",
        ]


def test_a_service_account_gets_further_keys(admin_client: OpenAI, caller: Caller) -> None:
    accounts = admin_client.admin.organization.projects.service_accounts
    made = accounts.create(caller.team.pk, name="nightly")
    key = accounts.api_keys.create(
        made.id, project_id=caller.team.pk, name="second", scopes=["responses.write"], expires_in_seconds=60
    )
    with scope.team(caller.team.pk):
        stored = ApiKey.objects.get(pk=key.id)
    assert (stored.name, stored.scopes, stored.service_account_id) == ("second", ["responses.write"], made.id)
    assert key.value not in str(vars(stored))


def test_a_service_account_without_a_role_has_no_keys(admin_client: OpenAI, caller: Caller) -> None:
    accounts = admin_client.admin.organization.projects.service_accounts
    made = accounts.create(caller.team.pk, name="later", create_service_account_only=True)
    assert (made.role, made.api_key) == ("none", None)
    with pytest.raises(ConflictError):
        accounts.api_keys.create(made.id, project_id=caller.team.pk)
    assert accounts.update(made.id, project_id=caller.team.pk, role="member").role == "member"
    assert accounts.api_keys.create(made.id, project_id=caller.team.pk).name == "Secret Key"


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [
        ("", {"name": "x", "create_service_account_only": True, "expires_in_seconds": 60}, (400, None)),
        ("", {"name": "x", "expires_in_seconds": 0}, (400, "expires_in_seconds")),
        ("", {}, (400, "name")),
        ("/{id}", {"role": "owner"}, (400, "role")),
        ("/{id}/api_keys", {"scopes": ["admin.*"]}, (400, "scopes[0]")),
    ],
)
def test_invalid_service_accounts_are_refused(
    admin_api: Api, caller: Caller, path: str, body: dict[str, object], refused: tuple[int, str | None]
) -> None:
    accounts = f"{PROJECTS}/{caller.team.pk}/service_accounts"
    mine = ok(admin_api.post(accounts, {"name": "nightly"}))["id"]
    assert error(admin_api.post(accounts + path.format(id=mine), body))[:2] == refused


def test_a_service_account_of_another_project_is_not_found(admin_api: Api, api: Api, outsider: Api) -> None:
    theirs = ok(admin_api.post(f"{PROJECTS}/{outsider.caller.team.pk}/service_accounts", {"name": "x"}))["id"]
    mine = f"{PROJECTS}/{api.caller.team.pk}/service_accounts"
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", ""), ("POST", "/api_keys")):
        assert error(admin_api.request(method, f"{mine}/{theirs}{path}")) == (404, None, None)
    assert error(admin_api.get(mine, after=theirs)) == (404, "after", None)


# -- users of the platform -------------------------------------------------------------------------------------------


def test_the_sdk_lists_users_with_their_projects(admin_client: OpenAI, caller: Caller) -> None:
    users, user, boss = admin_client.admin.organization.users, add_member(caller.team), add_user(is_superuser=True)
    found = users.retrieve(f"user-{user.pk}")
    assert (found.email, found.name, found.role) == (user.email, "Ada Lovelace", "reader")
    assert found.projects is not None
    assert [(one.id, one.role) for one in found.projects.data] == [(caller.team.pk, "member")]
    listed = users.list(emails=[user.email, boss.email])
    assert [(one.email, one.role) for one in listed] == [(boss.email, "owner"), (user.email, "reader")]
    first = users.list(emails=[user.email, boss.email], limit=1)
    assert [one.email for one in first.get_next_page()] == [user.email]


def test_a_deleted_user_cannot_sign_in_and_is_in_no_project(admin_client: OpenAI, caller: Caller) -> None:
    users, user = admin_client.admin.organization.users, add_member(caller.team)
    assert users.delete(f"user-{user.pk}").deleted
    user.refresh_from_db()
    assert not user.is_active
    with scope.every_team():
        assert not Membership.objects.filter(user=user).exists()
        actions = list(AuditEvent.objects.filter(target=f"user:{user.username}").values_list("action", flat=True))
    assert actions == ["user.deactivated"]
    with pytest.raises(NotFoundError):
        users.retrieve(f"user-{user.pk}")


def test_administrators_and_last_owners_are_not_deleted(admin_api: Api, caller: Caller) -> None:
    lead, boss = add_member(caller.team, Role.TEAM_LEAD), add_user(is_superuser=True)
    for user in (lead, boss):
        assert error(admin_api.delete(f"/organization/users/user-{user.pk}")) == (409, None, None)
        user.refresh_from_db()
        assert user.is_active


@pytest.mark.parametrize("unknown", ["user-0", "user-99999999999999", "12", "user-", "user-²", "root"])
def test_an_unknown_user_is_not_found(admin_api: Api, caller: Caller, unknown: str) -> None:
    for path in ("/organization/users", f"{PROJECTS}/{caller.team.pk}/users"):
        for method in ("GET", "DELETE"):
            assert error(admin_api.request(method, f"{path}/{unknown}"))[0] == 404
        assert error(admin_api.get(path, after=unknown)) == (404, "after", None)


# -- users of a project ----------------------------------------------------------------------------------------------


def test_the_sdk_manages_users_of_a_project(admin_client: OpenAI, caller: Caller) -> None:
    people, team = admin_client.admin.organization.projects.users, caller.team
    lead, other = add_user(), add_user()
    made = people.create(team.pk, user_id=f"user-{lead.pk}", role="owner")
    assert (made.id, made.email, made.role) == (f"user-{lead.pk}", lead.email, "owner")
    assert people.create(team.pk, email=other.email, role="auditor").role == "auditor"
    assert people.update(f"user-{other.pk}", project_id=team.pk, role="member").role == "member"
    assert people.retrieve(f"user-{other.pk}", project_id=team.pk).role == "member"
    assert [one.id for one in people.list(team.pk)] == [f"user-{other.pk}", f"user-{lead.pk}"]
    assert people.delete(f"user-{other.pk}", project_id=team.pk).deleted
    assert [one.id for one in people.list(team.pk)] == [f"user-{lead.pk}"]
    with scope.team(team.pk):
        lines = AuditEvent.objects.filter(action__startswith="membership.").order_by("pk")
        assert [line.action for line in lines] == [
            "membership.created",
            "membership.created",
            "membership.updated",
            "membership.deleted",
        ]


def test_a_project_keeps_its_last_owner(admin_api: Api, caller: Caller) -> None:
    lead = add_member(caller.team, Role.TEAM_LEAD)
    path = f"{PROJECTS}/{caller.team.pk}/users/user-{lead.pk}"
    assert error(admin_api.post(path, {"role": "member"})) == (409, None, None)
    assert error(admin_api.delete(path)) == (409, None, None)
    assert ok(admin_api.get(path))["role"] == "owner"


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"role": "member"}, (400, "user_id")),
        ({"role": "member", "user_id": "user-1", "email": "a@example.com"}, (400, None)),
        ({"role": "member", "email": "nobody@example.com"}, (400, "email")),
        ({"role": "member", "user_id": "user-0"}, (404, "user_id")),
        ({"role": "reader", "user_id": "user-1"}, (400, "role")),
    ],
)
def test_invalid_members_are_refused(
    admin_api: Api, caller: Caller, body: dict[str, str], refused: tuple[int, str | None]
) -> None:
    assert error(admin_api.post(f"{PROJECTS}/{caller.team.pk}/users", body))[:2] == refused


def test_a_user_is_added_once(admin_api: Api, caller: Caller) -> None:
    user = add_member(caller.team)
    body = {"role": "member", "user_id": f"user-{user.pk}"}
    assert error(admin_api.post(f"{PROJECTS}/{caller.team.pk}/users", body)) == (409, None, None)


def test_a_user_of_another_project_is_not_found(admin_api: Api, api: Api, outsider: Api) -> None:
    theirs = add_member(outsider.caller.team)
    path = f"{PROJECTS}/{api.caller.team.pk}/users/user-{theirs.pk}"
    for method in ("GET", "POST", "DELETE"):
        assert error(admin_api.request(method, path)) == (404, None, None)


def test_a_teams_key_reads_no_users(api: Api) -> None:
    for path in ("/organization/users", f"{PROJECTS}/{api.caller.team.pk}/users"):
        assert error(api.get(path)) == (403, None, "insufficient_scope")
