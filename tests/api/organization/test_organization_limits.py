"""Rate limits, spend limits, spend alerts, models and hosted tools of a project in the admin API."""

import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from openai import ConflictError, NotFoundError, OpenAI

from deliveries.notifications import choices_of
from limits import services
from tenants import members, scope
from tenants.models import AuditEvent, LimitSet, Period, Role, Team, UsageRecord
from tests.support.api import Api, Caller, error, ok
from tests.support.upstream import Script
from tests.support.waiting import eventually

PROJECTS = "/organization/projects"
UNLIMITED = 2_147_483_647
MONEY: dict[str, Any] = {"currency": "USD", "interval": "month"}


def limits_of(team: Team) -> LimitSet:
    found = services.find_limit_set(team=team)
    assert found is not None
    return found


def add_member(team: Team, role: Role) -> User:
    name = uuid.uuid4().hex
    user = User.objects.create_user(name, f"{name}@example.com", is_staff=True)
    members.add_member(team=team, user=user, role=role, actor="system")
    return user


# -- rate limits -----------------------------------------------------------------------------------------------------


def test_the_sdk_sets_rate_limits(admin_client: OpenAI, caller: Caller) -> None:
    limits = admin_client.admin.organization.projects.rate_limits
    (limit,) = limits.list_rate_limits(caller.team.pk)
    assert (limit.model, limit.max_requests_per_1_minute, limit.max_tokens_per_1_minute) == ("*", UNLIMITED, UNLIMITED)
    changed = limits.update_rate_limit(
        limit.id, project_id=caller.team.pk, max_requests_per_1_minute=60, max_requests_per_1_day=1000
    )
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (60, UNLIMITED)
    found = limits_of(caller.team)
    assert (found.requests_per_minute, found.tokens_per_minute, found.requests_per_day) == (60, None, 1000)
    limits.update_rate_limit(limit.id, project_id=caller.team.pk, max_requests_per_1_day=UNLIMITED)
    found = limits_of(caller.team)
    assert (found.requests_per_minute, found.requests_per_day) == (60, None)
    with scope.team(caller.team.pk):
        actors = AuditEvent.objects.filter(action="limits.updated").values_list("actor", flat=True)
        assert [actor.partition("_")[0] for actor in actors] == ["key:adminkey"] * 2


@pytest.mark.parametrize("value", [0, 100_000_001, UNLIMITED + 1, "60"])
def test_an_impossible_rate_limit_is_refused(admin_api: Api, caller: Caller, value: object) -> None:
    path = f"{PROJECTS}/{caller.team.pk}/rate_limits/rl-all-models"
    assert error(admin_api.post(path, {"max_tokens_per_1_minute": value}))[:2] == (400, "max_tokens_per_1_minute")


def test_unsupported_limits_are_refused(admin_api: Api, caller: Caller) -> None:
    path = f"{PROJECTS}/{caller.team.pk}/rate_limits/rl-all-models"
    refused = admin_api.post(path, {"max_images_per_1_minute": 5})
    assert error(refused) == (400, "max_images_per_1_minute", "unknown_parameter")


# -- the spend limit -------------------------------------------------------------------------------------------------


def test_the_sdk_sets_a_spend_limit(admin_client: OpenAI, caller: Caller) -> None:
    limit = admin_client.admin.organization.projects.spend_limit
    with pytest.raises(NotFoundError):
        limit.retrieve(caller.team.pk)
    made = limit.update(caller.team.pk, currency="USD", interval="month", threshold_amount=1050)
    assert (made.threshold_amount, made.enforcement.status) == (1050, "inactive")
    (budget,) = limits_of(caller.team).budgets.all()
    assert (budget.period, budget.amount, budget.is_hard) == (Period.MONTH, Decimal("10.5"), True)
    assert limit.delete(caller.team.pk).deleted
    with pytest.raises(NotFoundError):
        limit.delete(caller.team.pk)


def test_a_spent_limit_is_enforced(admin_client: OpenAI, caller: Caller) -> None:
    limit = admin_client.admin.organization.projects.spend_limit
    limit.update(caller.team.pk, currency="USD", interval="month", threshold_amount=100)
    with scope.team(caller.team.pk):
        UsageRecord.objects.create(team=caller.team, api_key=caller.key, endpoint="responses", cost=Decimal(1))
    assert limit.retrieve(caller.team.pk).enforcement.status == "enforcing"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"currency": "EUR"}, "currency"),
        ({"interval": "day"}, "interval"),
        ({"threshold_amount": 0}, "threshold_amount"),
        ({"threshold_amount": 90_000_001}, "threshold_amount"),
    ],
)
def test_an_invalid_spend_limit_is_refused(
    admin_api: Api, caller: Caller, changed: dict[str, object], param: str
) -> None:
    body = {**MONEY, "threshold_amount": 100, **changed}
    assert error(admin_api.post(f"{PROJECTS}/{caller.team.pk}/spend_limit", body))[:2] == (400, param)


# -- the spend alert -------------------------------------------------------------------------------------------------


def test_the_sdk_manages_a_spend_alert(admin_client: OpenAI, caller: Caller) -> None:
    alerts, team = admin_client.admin.organization.projects.spend_alerts, caller.team
    lead, developer = add_member(team, Role.TEAM_LEAD), add_member(team, Role.DEVELOPER)
    assert list(alerts.list(team.pk)) == []
    made = alerts.create(
        team.pk,
        currency="USD",
        interval="month",
        threshold_amount=5000,
        notification_channel={"type": "email", "recipients": [developer.email]},
    )
    assert (made.threshold_amount, made.notification_channel.recipients) == (5000, [developer.email])
    assert [one.by_mail for user in (lead, developer) for one in choices_of(user) if one.kind == "budget.alert"] == [
        False,
        True,
    ]
    (budget,) = limits_of(team).budgets.all()
    assert (budget.amount, budget.is_hard, budget.alert_percents) == (Decimal(50), False, [100])
    assert [one.id for one in alerts.list(team.pk)] == [made.id]
    with pytest.raises(ConflictError):
        alerts.create(
            team.pk,
            currency="USD",
            interval="month",
            threshold_amount=1,
            notification_channel={"type": "email", "recipients": [lead.email]},
        )
    changed = alerts.update(
        made.id,
        project_id=team.pk,
        currency="USD",
        interval="month",
        threshold_amount=7000,
        notification_channel={"type": "email", "recipients": [lead.email.upper(), developer.email]},
    )
    assert (changed.threshold_amount, len(changed.notification_channel.recipients)) == (7000, 2)
    assert alerts.retrieve(made.id, project_id=team.pk).threshold_amount == 7000
    assert alerts.delete(made.id, project_id=team.pk).deleted
    with pytest.raises(NotFoundError):
        alerts.retrieve(made.id, project_id=team.pk)


def test_only_users_of_the_project_are_alerted(admin_api: Api, caller: Caller, outsider: Api) -> None:
    stranger = add_member(outsider.caller.team, Role.TEAM_LEAD)
    for address in (stranger.email, "nobody"):
        channel = {"type": "email", "recipients": [address]}
        body = {**MONEY, "threshold_amount": 100, "notification_channel": channel}
        refused = admin_api.post(f"{PROJECTS}/{caller.team.pk}/spend_alerts", body)
        assert error(refused) == (400, "notification_channel.recipients[0]", "invalid_value")


# -- models ----------------------------------------------------------------------------------------------------------


def refusal(api: Api, model: str) -> str | None:
    """Return the code with which a request for a model is refused, without reaching the upstream."""
    return error(api.post("/responses", {"model": model, "input": "Hi", "conversation": "conv_unknown"}))[2]


@pytest.mark.slow
def test_a_project_may_use_only_the_models_of_its_list(
    admin_client: OpenAI, api: Api, script: Script, other_script: Script
) -> None:
    permissions, team = admin_client.admin.organization.projects.model_permissions, api.caller.team
    assert (permissions.retrieve(team.pk).mode, permissions.retrieve(team.pk).api_model_ids) == ("deny_list", [])
    made = permissions.update(team.pk, mode="allow_list", model_ids=[script.model])
    assert (made.mode, made.api_model_ids) == ("allow_list", [script.model])
    eventually(lambda: refusal(api, other_script.model) == "model_not_found")
    script.say("Hello")
    assert api.create(model=script.model, input="Hi")["status"] == "completed"
    assert permissions.delete(team.pk).deleted
    eventually(lambda: refusal(api, other_script.model) != "model_not_found")


def test_a_project_may_not_use_denied_models(
    admin_client: OpenAI, api: Api, script: Script, other_script: Script
) -> None:
    permissions = admin_client.admin.organization.projects.model_permissions
    permissions.update(api.caller.team.pk, mode="deny_list", model_ids=[script.model])
    eventually(lambda: refusal(api, script.model) == "model_not_found")
    assert refusal(api, other_script.model) != "model_not_found"


def test_an_empty_list_of_allowed_models_allows_none(admin_client: OpenAI, api: Api, script: Script) -> None:
    permissions = admin_client.admin.organization.projects.model_permissions
    permissions.update(api.caller.team.pk, mode="allow_list", model_ids=[])
    eventually(lambda: refusal(api, script.model) == "model_not_found")


# -- hosted tools ----------------------------------------------------------------------------------------------------


def test_the_sdk_changes_hosted_tools(admin_client: OpenAI, caller: Caller) -> None:
    tools, team = admin_client.admin.organization.projects.hosted_tool_permissions, caller.team
    assert tools.retrieve(team.pk).web_search.enabled
    tools.update(team.pk, web_search={"enabled": True})
    with scope.team(team.pk):
        assert Team.objects.get(pk=team.pk).tools == ["*"]
    changed = tools.update(team.pk, web_search={"enabled": False}, mcp={"enabled": True})
    assert (changed.web_search.enabled, changed.mcp.enabled, changed.file_search.enabled) == (False, True, True)
    with scope.team(team.pk):
        stored = Team.objects.get(pk=team.pk).tools
    assert "shell" in stored
    assert not {"*", "web_search"} & {*stored}
    assert tools.update(team.pk, web_search={"enabled": True}).web_search.enabled


# -- who may -----------------------------------------------------------------------------------------------------------

PATHS = [
    ("GET", "/rate_limits"),
    ("POST", "/rate_limits/rl-all-models"),
    ("GET", "/spend_limit"),
    ("POST", "/spend_limit"),
    ("DELETE", "/spend_limit"),
    ("GET", "/spend_alerts"),
    ("POST", "/spend_alerts"),
    ("GET", "/spend_alerts/alert_1"),
    ("POST", "/spend_alerts/alert_1"),
    ("DELETE", "/spend_alerts/alert_1"),
    ("GET", "/model_permissions"),
    ("POST", "/model_permissions"),
    ("DELETE", "/model_permissions"),
    ("GET", "/hosted_tool_permissions"),
    ("POST", "/hosted_tool_permissions"),
]
CHANNEL = {"type": "email", "recipients": ["a@example.com"]}
BODIES: dict[str, dict[str, Any]] = {
    "/spend_limit": {**MONEY, "threshold_amount": 1},
    "/spend_alerts": {**MONEY, "threshold_amount": 1, "notification_channel": CHANNEL},
    "/spend_alerts/alert_1": {**MONEY, "threshold_amount": 1, "notification_channel": CHANNEL},
    "/model_permissions": {"mode": "allow_list", "model_ids": []},
}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_unknown_projects_and_keys_of_teams_are_refused(admin_api: Api, api: Api, method: str, path: str) -> None:
    options = {"json": BODIES.get(path, {})} if method == "POST" else {}
    assert error(admin_api.request(method, f"{PROJECTS}/team_unknown{path}", **options))[0] == 404
    mine = api.request(method, f"{PROJECTS}/{api.caller.team.pk}{path}", **options)
    assert error(mine) == (403, None, "insufficient_scope")


def test_an_alert_of_another_project_is_not_found(admin_api: Api, api: Api, outsider: Api) -> None:
    lead = add_member(outsider.caller.team, Role.TEAM_LEAD)
    body = {**MONEY, "threshold_amount": 1, "notification_channel": {"type": "email", "recipients": [lead.email]}}
    theirs = ok(admin_api.post(f"{PROJECTS}/{outsider.caller.team.pk}/spend_alerts", body))["id"]
    path = f"{PROJECTS}/{api.caller.team.pk}/spend_alerts/{theirs}"
    assert error(admin_api.get(path)) == (404, None, None)
    assert error(admin_api.delete(path)) == (404, None, None)
    assert error(admin_api.post(path, body)) == (404, None, None)
