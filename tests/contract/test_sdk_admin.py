"""`client.admin.organization` of the unmodified SDK: each method works, or the manual explains why it is missing."""

import inspect
import re
import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import httpx2
import pytest
from django.contrib.auth.models import User
from openai import OpenAI
from openai._resource import SyncAPIResource

from server.api_urls import ENDPOINTS
from server.reference.sdk_decisions import DECISIONS
from tenants import members, services
from tenants.models import AdminScope, Role
from tests.support.api import Caller
from tests.support.sdk import checking_client
from tests.support.web import ROOT, WebProcess

_SENT = re.compile(r"self\._(get|post|delete|put|patch|get_api_list)\(\s*(?:path_template\(\s*)?f?\"([^\"]+)\"")
_LIST_METHOD = re.compile(r"^ +method=\"(\w+)\"", re.MULTILINE)


def methods(resource: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and operation, such as ``GET /organization/users``, of the methods of a resource and its children."""
    for key, member in inspect.getmembers(type(resource)):
        if isinstance(member, cached_property) and isinstance(inner := getattr(resource, key), SyncAPIResource):
            yield from methods(inner, f"{name}.{key}")
        elif inspect.isfunction(member) and not key.startswith("_"):
            source = inspect.getsource(member)
            if (sent := _SENT.search(source)) is not None:
                kind = sent[1]
                if kind == "get_api_list":
                    kind = named[1] if (named := _LIST_METHOD.search(source)) else "get"
                yield f"{name}.{key}", f"{kind.upper()} {sent[2]}"


METHODS = dict(methods(OpenAI(api_key="-").admin.organization, "organization"))
_OFFERED = {(one.method, re.sub(r"{\w+}", "{}", one.template)) for one in ENDPOINTS}


def is_offered(operation: str) -> bool:
    method, path = operation.split()
    return (method, re.sub(r"{\w+}", "{}", path)) in _OFFERED


OFFERED = {name: operation for name, operation in METHODS.items() if is_offered(operation)}


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_method_has_a_reason_in_the_manual(name: str) -> None:
    reasons = [one.reason for one in DECISIONS if one.covers(METHODS[name])]
    if name in OFFERED:
        assert reasons == []
    else:
        assert len(reasons) == 1
        assert reasons[0] in (ROOT / "docs/reference/api-coverage.md").read_text()


def test_every_method_of_the_sdk_is_compared() -> None:
    assert len(METHODS) == 143, "the SDK has other methods: decide about them, and change this number"


@pytest.fixture
def sent() -> list[httpx2.Request]:
    """The requests that `recording_client` has sent."""
    return []


@pytest.fixture
def recording_client(web: WebProcess, database: None, sent: list[httpx2.Request]) -> Iterator[OpenAI]:
    """The SDK with an admin key; its answers are validated, and its requests recorded."""
    http = checking_client()
    http.event_hooks = {**http.event_hooks, "request": [sent.append]}
    secret = services.create_admin_key(name="test", scopes=[AdminScope.ALL.value]).secret
    with OpenAI(base_url=f"{web.url}/v1", admin_api_key=secret, max_retries=0, http_client=http) as client:
        yield client


def add_user() -> User:
    name = uuid.uuid4().hex
    return User.objects.create_user(name, f"{name}@example.com", is_staff=True)


def call_everything(client: OpenAI, caller: Caller) -> None:
    """Call each offered method at least once."""
    organization, team = client.admin.organization, caller.team.pk
    projects = organization.projects
    made = projects.create(name=uuid.uuid4().hex)
    projects.update(made.id, name=uuid.uuid4().hex)
    assert projects.list(limit=1).data[0].id == made.id
    assert projects.archive(made.id).status == projects.retrieve(made.id).status == "archived"

    projects.api_keys.update(caller.key.pk, project_id=team, expires_in_seconds=60)
    assert projects.api_keys.retrieve(caller.key.pk, project_id=team).expires_at
    assert [one.id for one in projects.api_keys.list(team)] == [caller.key.pk]
    assert projects.api_keys.delete(caller.key.pk, project_id=team).deleted

    account = projects.service_accounts.create(team, name="nightly")
    projects.service_accounts.update(account.id, project_id=team, name="hourly")
    assert projects.service_accounts.retrieve(account.id, project_id=team).name == "hourly"
    assert projects.service_accounts.api_keys.create(account.id, project_id=team).value
    assert [one.id for one in projects.service_accounts.list(team)] == [account.id]
    assert projects.service_accounts.delete(account.id, project_id=team).deleted

    lead, user = add_user(), add_user()
    members.add_member(team=caller.team, user=lead, role=Role.TEAM_LEAD, actor="system")
    member = projects.users.create(team, user_id=f"user-{user.pk}", role="member")
    projects.users.update(member.id, project_id=team, role="owner")
    assert projects.users.retrieve(member.id, project_id=team).role == "owner"
    assert len(projects.users.list(team).data) == 2
    assert projects.users.delete(member.id, project_id=team).deleted
    assert organization.users.retrieve(member.id).email == user.email
    assert [one.id for one in organization.users.list(emails=[user.email])] == [member.id]
    assert organization.users.delete(member.id).deleted

    (limit,) = projects.rate_limits.list_rate_limits(team)
    projects.rate_limits.update_rate_limit(limit.id, project_id=team, max_requests_per_1_minute=60)
    projects.spend_limit.update(team, currency="USD", interval="month", threshold_amount=100)
    assert projects.spend_limit.retrieve(team).threshold_amount == 100
    assert projects.spend_limit.delete(team).deleted
    amount: dict[str, Any] = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    amount["notification_channel"] = {"type": "email", "recipients": [lead.email]}
    alert = projects.spend_alerts.create(team, **amount)
    projects.spend_alerts.update(alert.id, project_id=team, **amount)
    assert projects.spend_alerts.retrieve(alert.id, project_id=team).id == projects.spend_alerts.list(team).data[0].id
    assert projects.spend_alerts.delete(alert.id, project_id=team).deleted
    projects.model_permissions.update(team, mode="deny_list", model_ids=["m"])
    assert projects.model_permissions.retrieve(team).api_model_ids == ["m"]
    assert projects.model_permissions.delete(team).deleted
    projects.hosted_tool_permissions.update(team, mcp={"enabled": False})
    assert not projects.hosted_tool_permissions.retrieve(team).mcp.enabled

    invite = organization.invites.create(email=f"{uuid.uuid4().hex}@example.com", role="reader")
    assert organization.invites.retrieve(invite.id).status == "pending"
    assert organization.invites.list(limit=1).data[0].id == invite.id
    assert organization.invites.delete(invite.id).deleted

    assert organization.audit_logs.list(project_ids=[team]).data
    key = services.create_admin_key(name="other", scopes=[AdminScope.ALL.value]).key
    assert organization.admin_api_keys.retrieve(key.pk).name == "other"
    assert organization.admin_api_keys.list(limit=1).data
    assert organization.admin_api_keys.delete(key.pk).deleted
    # Other tests check the answers; this one only that the SDK gets one.
    for name in OFFERED:
        if name.startswith("organization.usage."):
            getattr(organization.usage, name.rpartition(".")[2])(start_time=1_700_000_000, project_ids=[team])


@pytest.mark.slow
def test_each_offered_method_works(recording_client: OpenAI, sent: list[httpx2.Request], caller: Caller) -> None:
    call_everything(recording_client, caller)
    called = {
        (one.method, one.template)
        for request in sent
        for one in ENDPOINTS
        if one.matches(request.method, request.url.path)
    }
    assert {(one.method, one.template) for one in ENDPOINTS if one.path.startswith("organization/")} <= called
