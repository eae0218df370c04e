"""`create_key` and `set_limits`: limits and budgets of teams, keys and end users, with their lines in the audit log."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from core.ids import new_id
from limits import services
from tenants import directory, scope
from tenants.models import AuditEvent, Budget, LimitSet
from tests.support.api import Caller, MakeCaller

pytestmark = pytest.mark.usefixtures("database")


def run(command: str, *arguments: str) -> Any:
    out = io.StringIO()
    call_command(command, *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def actions(team_id: str) -> list[str]:
    with scope.team(team_id):
        return list(AuditEvent.objects.filter(team=team_id).order_by("pk").values_list("action", flat=True))


def test_a_new_key_has_the_limits_of_its_options() -> None:
    new = run(
        "create_key", "--team", new_id("t"), "--requests-per-minute", "60", "--tokens-per-minute", "1000",
        "--concurrent", "2", "--budget-usd", "12.50", "--budget-period", "week",
    )  # fmt: skip
    (limits,) = directory.principal(new["key"]).limits
    assert limits.kind == "key"
    assert dict(limits.values) == {"requests_per_minute": 60, "tokens_per_minute": 1000, "concurrent_runs": 2}
    (budget,) = limits.hard_budgets
    assert (budget.period, str(budget.amount.normalize())) == ("week", "12.5")
    assert actions(new["team"])[-3:] == ["api_key.created", "limits.updated", "budget.created"]


def test_a_key_is_not_created_with_an_invalid_limit() -> None:
    name = new_id("t")
    with pytest.raises(CommandError, match="--requests-per-minute"):
        run("create_key", "--team", name, "--requests-per-minute", "0")
    with scope.every_team():
        assert not LimitSet.objects.filter(team__name=name).exists()


def test_limits_of_a_team_are_changed_one_by_one(caller: Caller) -> None:
    team = caller.team.name
    run("set_limits", "--team", team, "--requests-per-minute", "10", "--concurrent", "3")
    shown = run("set_limits", "--team", team, "--concurrent", "none", "--files", "5")
    assert shown["limits"] == {"requests_per_minute": 10, "files": 5}


def test_a_hard_and_a_soft_budget_exist_side_by_side(caller: Caller) -> None:
    team = caller.team.pk
    run("set_limits", "--team", team, "--budget-usd", "10", "--budget-period", "day")
    shown = run(
        "set_limits", "--team", team, "--budget-usd", "5", "--budget-period", "day", "--soft", "--alert-at", "90"
    )
    assert [(each["amount"], each["hard"], each["alert_percents"]) for each in shown["budgets"]] == [
        ("10", True, [50, 80, 100]),
        ("5", False, [90]),
    ]
    assert run("set_limits", "--team", team, "--budget-usd", "none", "--budget-period", "day")["budgets"] == [
        {"period": "day", "amount": "5", "hard": False, "alert_percents": [90]}
    ]


def test_end_users_have_limits_of_their_own(caller: Caller) -> None:
    run("set_limits", "--team", caller.team.pk, "--end-user", "*", "--requests-per-day", "100")
    shown = run("set_limits", "--team", caller.team.pk, "--end-user", "ada", "--requests-per-day", "1000")
    assert shown["limits"] == {"requests_per_day": 1000}
    assert run("set_limits", "--team", caller.team.pk, "--end-user", "*")["limits"] == {"requests_per_day": 100}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests-per-minute", "many"], "whole number"),
        (["--budget-usd", "NaN"], "amount"),
        (["--budget-usd", "-1"], "--budget-usd"),
        (["--budget-usd", "1000001"], "--budget-usd"),
        (["--budget-usd", "1", "--alert-at", "0"], "1 to 1000"),
        (["--soft"], "need --budget-usd"),
        (["--max-output-tokens", "1"], "16"),
        (["--key", "key_unknown"], "has no API key"),
    ],
)
def test_invalid_options_are_refused(caller: Caller, arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("set_limits", "--team", caller.team.pk, *arguments)


def test_a_key_of_another_team_is_unknown(caller: Caller, make_caller: MakeCaller) -> None:
    with pytest.raises(CommandError, match="has no API key"):
        run("set_limits", "--team", caller.team.pk, "--key", make_caller().key.pk, "--files", "1")


def test_unchanged_limits_leave_no_line_in_the_audit_log(caller: Caller) -> None:
    services.set_limits(team=caller.team, values={"files": 3}, actor="user:ada")
    before = actions(caller.team.pk)
    services.set_limits(team=caller.team, values={"files": 3}, actor="user:ada")
    assert actions(caller.team.pk) == before
    with scope.team(caller.team.pk):
        assert not Budget.objects.filter(team=caller.team).exists()
