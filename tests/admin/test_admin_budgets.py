"""Budgets and rejected requests in the console."""

import csv
import io
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from limits import services
from tenants import scope
from tenants.models import Budget, LimitSet, RejectedRequest
from tests.admin.rows import add_rejections, add_response, add_usage, member, text
from tests.support.api import Caller, MakeCaller

pytestmark = pytest.mark.usefixtures("rollups")
BUDGETS = "/admin/budgets/"
REJECTIONS = "/admin/rejections/"


def table(client: Client, url: str, **query: str) -> list[dict[str, str]]:
    answer = client.get(url, {"format": "csv", **query})
    return [*csv.DictReader(io.StringIO(text(answer)))]


def set_budget(caller: Caller, amount: str, **options: Any) -> None:
    services.set_budget(team=caller.team, amount=Decimal(amount), **{"period": "day", **options})


def test_a_budget_shows_its_spending(lead: Client, caller: Caller) -> None:
    set_budget(caller, "10")
    add_usage(caller, cost="2.5")
    add_usage(caller, cost="100", occurred_at=now() - timedelta(days=1, hours=1))
    (row,) = table(lead, BUDGETS)
    assert (row["subject"], row["amount"], Decimal(row["spent"]), row["percent"]) == (
        "Team",
        "10",
        Decimal("2.5"),
        "25",
    )
    page = text(lead.get(BUDGETS))
    assert "$2.50" in page
    assert "$7.50" in page


def test_budgets_of_keys_and_end_users_count_their_own_usage(lead: Client, caller: Caller) -> None:
    set_budget(caller, "10", api_key=caller.key, is_hard=False)
    set_budget(caller, "4", end_user="ada")
    add_usage(caller, cost="1", end_user="ada")
    add_usage(caller, cost="2", end_user="ben")
    found = {row["subject"].partition(" ")[0]: row for row in table(lead, BUDGETS)}
    assert (Decimal(found["Key"]["spent"]), found["Key"]["kind"]) == (Decimal(3), "soft")
    assert (Decimal(found["End"]["spent"]), found["End"]["percent"]) == (Decimal(1), "25")


def test_the_forecast_extrapolates_the_spending_of_the_last_day(lead: Client, caller: Caller) -> None:
    set_budget(caller, "1000")
    for hours in range(24):
        add_usage(caller, cost="1", occurred_at=now() - timedelta(hours=hours, minutes=1))
    (row,) = table(lead, BUDGETS)
    # A dollar per hour. The past and the remaining hours of today make a day.
    assert Decimal(row["forecast"]) == pytest.approx(Decimal(24), abs=Decimal("1.5"))
    assert row["used up"] == ""


def test_a_budget_shows_when_it_will_be_used_up(lead: Client, caller: Caller) -> None:
    set_budget(caller, "31", period="week")
    for hours in range(7 * 24):
        add_usage(caller, cost="1", occurred_at=now() - timedelta(hours=hours, minutes=1))
    (row,) = table(lead, BUDGETS)
    assert row["used up"] or int(row["percent"]) >= 100 or Decimal(row["forecast"]) < 31


def test_budgets_of_the_team_are_listed_on_the_home_of_a_lead(lead: Client, caller: Caller) -> None:
    add_response(caller)
    set_budget(caller, "10")
    assert "0 % of $10 per day" in text(lead.get("/admin/"))
    add_usage(caller, cost="9")
    assert "90 % of $10 per day" in text(lead.get("/admin/"))


def test_budgets_of_other_teams_are_hidden(caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    set_budget(other, "10")
    assert table(member(caller.team), BUDGETS) == []
    assert other.team.name not in text(member(caller.team).get(BUDGETS))


def test_rejected_requests_are_shown_by_limit_and_subject(lead: Client, caller: Caller) -> None:
    add_rejections(caller, "requests_per_minute", 7)
    add_rejections(caller, "budget_month", 2, subject="end_user", end_user="ada")
    rows = table(lead, REJECTIONS)
    assert [(row["limit"], row["subject"], row["end user"], row["count"]) for row in rows] == [
        ("requests per minute", "API key", "", "7"),
        ("budget per month", "end user", "ada", "2"),
    ]
    page = text(lead.get(REJECTIONS))
    assert f"/admin/limits/{caller.team.pk}/?key={caller.key.pk}" in page
    assert f"/admin/limits/{caller.team.pk}/?end_user=ada" in page


def test_the_files_of_rejections_and_budgets_are_complete(lead: Client, caller: Caller) -> None:
    number = 510
    hour = now().replace(minute=0, second=0, microsecond=0)
    with scope.team(caller.team.pk):
        RejectedRequest.objects.bulk_create(
            RejectedRequest(team=caller.team, hour=hour, limit="budget_day", subject="end_user", end_user=f"u{index}")
            for index in range(number)
        )
        sets = LimitSet.objects.bulk_create(LimitSet(team=caller.team, end_user=f"u{index}") for index in range(number))
        Budget.objects.bulk_create(
            Budget(team=caller.team, limit_set=limit_set, period="day", amount=10) for limit_set in sets
        )
    assert len(table(lead, REJECTIONS)) == number
    assert len(table(lead, BUDGETS)) == number


def test_rejections_of_other_teams_are_hidden(caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    add_rejections(other, "requests_per_minute", 1)
    assert table(member(caller.team), REJECTIONS) == []
    assert table(member(caller.team), REJECTIONS, team=other.team.pk) == []
