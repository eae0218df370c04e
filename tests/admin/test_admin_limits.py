"""Limits in the console: of new keys, of keys, of teams and of end users, and who may change them."""

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from core.ids import new_id
from limits import Demand, reserve_sync, services
from tenants import directory, scope
from tenants.models import AuditEvent, LimitSet
from tests.admin.rows import member, text
from tests.admin.test_admin_keys import make, newest
from tests.support.api import Caller, MakeCaller

TEAMS = "/admin/tenants/team/"


def page_of(caller: Caller, query: str = "") -> str:
    return f"/admin/limits/{caller.team.pk}/{query}"


def limits(caller: Caller, **subject: Any) -> LimitSet:
    found = services.find_limit_set(team=caller.team, **subject)
    assert found is not None
    return found


def budgets(found: LimitSet) -> list[tuple[str, str, bool]]:
    return sorted((one.period, f"{one.amount.normalize():f}", one.is_hard) for one in found.budgets.all())


def test_a_key_is_created_with_limits(lead: Client, caller: Caller) -> None:
    make(lead, caller, requests_per_minute="60", tokens_per_minute="1000", budget="12.5", budget_period="week")
    found = limits(caller, api_key=newest(caller))
    assert (found.requests_per_minute, found.tokens_per_minute, found.concurrent_runs) == (60, 1000, None)
    assert budgets(found) == [("week", "12.5", True)]


def test_a_key_without_limits_has_no_row(lead: Client, caller: Caller) -> None:
    make(lead, caller)
    assert services.find_limit_set(team=caller.team, api_key=newest(caller)) is None


def test_a_lead_changes_the_limits_of_a_key(lead: Client, caller: Caller) -> None:
    url = page_of(caller, f"?key={caller.key.pk}")
    assert lead.get(f"/admin/tenants/apikey/{caller.key.pk}/limits/").headers["Location"] == url
    answer = lead.post(url, {"requests_per_day": "1000", "hard_month": "20", "soft_day": "1", "alert_percents": "90"})
    assert answer.status_code == 302
    found = limits(caller, api_key=caller.key)
    assert found.requests_per_day == 1000
    assert budgets(found) == [("day", "1", False), ("month", "20", True)]
    lead.post(url, {"requests_per_day": "", "hard_month": "", "soft_day": "2", "alert_percents": "90"})
    found = limits(caller, api_key=caller.key)
    assert found.requests_per_day is None
    assert budgets(found) == [("day", "2", False)]
    with scope.team(caller.team.pk):
        actions = list(AuditEvent.objects.filter(target=caller.key.pk).values_list("action", flat=True))
    assert actions.count("limits.updated") == 2
    assert actions.count("budget.deleted") == 1


def test_budgets_keep_their_own_alert_percentages(lead: Client, caller: Caller) -> None:
    for period, percents in (("day", [90]), ("month", [10, 20])):
        services.set_budget(
            team=caller.team, api_key=caller.key, period=period, amount=Decimal(5), alert_percents=percents
        )
    form = {"hard_day": "4", "hard_month": "5", "alert_percents": "90"}
    assert lead.post(page_of(caller, f"?key={caller.key.pk}"), form).status_code == 302
    found = limits(caller, api_key=caller.key)
    assert {one.period: one.alert_percents for one in found.budgets.all()} == {"day": [90], "month": [10, 20]}


def test_a_lead_may_only_lower_the_limits_of_the_team(lead: Client, operator: Client, caller: Caller) -> None:
    url = page_of(caller)
    operator.post(url, {"requests_per_minute": "100", "hard_month": "50"})
    refused = text(lead.post(url, {"requests_per_minute": "200", "hard_month": ""}))
    assert refused.count("You may not raise or remove this limit") == 2
    assert lead.post(url, {"requests_per_minute": "50", "hard_month": "40"}).status_code == 302
    assert limits(caller).requests_per_minute == 50
    assert budgets(limits(caller)) == [("month", "40", True)]
    assert operator.post(url, {"requests_per_minute": "300"}).status_code == 302
    assert limits(caller).requests_per_minute == 300


def test_a_lead_cannot_raise_the_budget_of_the_team(lead: Client, operator: Client, caller: Caller) -> None:
    url, form = page_of(caller), {"hard_month": "50", "allow_unknown_prices": "on"}
    operator.post(url, {"hard_month": "50"})
    assert "You may not allow these models" in text(lead.post(url, form))
    assert [one.allow_unknown_prices for one in limits(caller).budgets.all()] == [False]
    assert operator.post(url, form).status_code == 302
    assert lead.post(url, {**form, "hard_month": "40"}).status_code == 302
    assert [one.allow_unknown_prices for one in limits(caller).budgets.all()] == [True]


def test_developers_cannot_change_the_limits_of_the_team(developer: Client, caller: Caller) -> None:
    assert developer.get(page_of(caller)).status_code == 403
    assert "Change limits" not in text(developer.get(f"{TEAMS}{caller.team.pk}/change/?tab=limits"))


def test_end_users_have_their_own_limits(lead: Client, caller: Caller) -> None:
    for end_user in ("*", "ada"):
        lead.post(page_of(caller, f"?end_user={end_user}"), {"concurrent_runs": "2"})
    assert limits(caller, end_user="ada").concurrent_runs == 2
    shown = text(lead.get(f"{TEAMS}{caller.team.pk}/change/?tab=limits"))
    assert "Every other end user" in shown
    assert "End user ada" in shown


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"requests_per_minute": "0"}, "greater than or equal to 1"),
        ({"requests_per_minute": "many"}, "Enter a whole number"),
        ({"hard_month": "-1"}, "greater than or equal to 0"),
        ({"hard_month": "1000001"}, "less than or equal to 900000"),
        ({"alert_percents": "50, x"}, "whole numbers from 1 to 1000"),
    ],
)
def test_invalid_limits_are_explained(lead: Client, caller: Caller, form: dict[str, str], message: str) -> None:
    assert message in text(lead.post(page_of(caller), form))


def test_limits_of_other_teams_and_their_keys_are_not_found(
    caller: Caller, lead: Client, make_caller: MakeCaller
) -> None:
    other = make_caller()
    assert lead.get(page_of(other)).status_code == 404
    assert lead.get(page_of(caller, f"?key={other.key.pk}")).status_code == 404
    assert member(other.team).get(page_of(caller)).status_code == 404


def test_the_team_page_shows_the_current_usage_of_limits(lead: Client, caller: Caller) -> None:
    services.set_limits(team=caller.team, values={"requests_per_minute": 10, "concurrent_runs": 2})
    services.set_budget(team=caller.team, period="day", amount=Decimal(1))
    services.set_limits(team=caller.team, api_key=caller.key, values={"requests_per_day": 100})
    services.set_limits(team=caller.team, end_user="ada", values={"requests_per_minute": 5})
    principal = directory.principal(caller.secret)
    reserve_sync(principal, Demand(run=True, end_user="ada"), reservation_id=new_id("resp"))
    shown = text(lead.get(f"{TEAMS}{caller.team.pk}/change/?tab=limits"))
    for value in ("1 of 10", "1 of 2", "$0.0000 of $1", "1 of 100", "1 of 5"):
        assert value in shown
    meters = lead.get(page_of(caller, "meters/")).json()["meters"]
    assert {meter["key"]: meter["text"] for meter in meters}[f"key/{caller.key.pk}/requests_per_day"] == "1 of 100"


def test_meters_of_other_teams_are_not_found(caller: Caller, make_caller: MakeCaller) -> None:
    assert member(make_caller().team).get(page_of(caller, "meters/")).status_code == 404
