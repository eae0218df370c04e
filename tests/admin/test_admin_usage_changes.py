"""Comparison of a period with the one before on the usage page, and its largest contributors."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_response, add_usage, text
from tests.support.api import Caller, MakeCaller

pytestmark = pytest.mark.usefixtures("rollups")
CHANGES = "/admin/usage/changes/"


def spend(caller: Caller, cost: str, *, days_ago: int, **columns: Any) -> None:
    """Add a call that cost this much at noon of a day (UTC)."""
    day = (now() - timedelta(days=days_ago)).replace(hour=12, minute=0, second=0, microsecond=0)
    add_usage(caller, occurred_at=day, cost=Decimal(cost), **columns)


def rows(page: str, title: str) -> list[tuple[str, ...]]:
    """Return the rows of a table: name, before, now and change."""
    found = re.search(rf'aria-label="Change by {title}">(.*?)</table>', page, re.DOTALL)
    assert found is not None, title
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in found[1].split("<tr>")[2:]]
    return [tuple(re.sub(r"<[^>]+>", "", cell).strip() for cell in row) for row in cells]


def test_yesterday_is_compared_with_the_day_before(lead: Client, caller: Caller) -> None:
    spend(caller, "1", days_ago=2, model="small")
    spend(caller, "1", days_ago=1, model="small")
    spend(caller, "4", days_ago=1, model="large", end_user="ann")
    page = text(lead.get(CHANGES, {"metric": "cost", "range": "yesterday"}))
    words = re.sub(r"<[^>]+>", "", page)
    assert "$5.00 now, $1.00 before: +$4.00 (+400 %)" in words
    assert [(row[0], row[2], row[3]) for row in rows(page, "Model")] == [("large", "$4.00", "+$4.00")]
    assert [row[0] for row in rows(page, "End user")] == ["ann"]
    assert rows(page, "API key")[0][3] == "+$4.00"


def test_the_largest_changes_come_first_whether_more_or_less(lead: Client, caller: Caller) -> None:
    for model, before, after in (("grown", "1", "2"), ("shrunk", "9", "1"), ("same", "3", "3")):
        spend(caller, before, days_ago=2, model=model)
        spend(caller, after, days_ago=1, model=model)
    page = text(lead.get(CHANGES, {"metric": "cost", "range": "yesterday"}))
    assert [(row[0], row[3]) for row in rows(page, "Model")] == [("shrunk", "−$8.00"), ("grown", "+$1.00")]


def test_tools_are_compared_by_calls(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    yesterday = (now() - timedelta(days=1)).replace(hour=12)
    for number in range(3):
        add_call(response, name="search", kind="function", call_id=f"c{number}", started_at=yesterday)
    page = text(lead.get(CHANGES, {"metric": "cost", "range": "yesterday"}))
    assert rows(page, "Tool, by calls") == [("search", "0", "3", "+3")]


def test_another_team_is_not_counted(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    spend(caller, "1", days_ago=1)
    other = make_caller()
    spend(other, "7", days_ago=1, model="secret-model", end_user="eve")
    page = text(lead.get(CHANGES, {"metric": "cost", "range": "yesterday", "team": other.team.pk}))
    assert not any(word in page for word in ("secret-model", "eve", "$7.00"))
    assert "$1.00" in text(lead.get(CHANGES, {"metric": "cost", "range": "yesterday"}))


@pytest.mark.parametrize("span", ["24h", "today", "7d", "30d", "last_week", "this_month", "last_month", "custom"])
def test_every_range_has_a_period_before(lead: Client, caller: Caller, span: str) -> None:
    spend(caller, "1", days_ago=1)
    assert "Compared with the period before" in text(lead.get(CHANGES, {"metric": "cost", "range": span}))


def test_percentiles_have_no_contributors(lead: Client) -> None:
    assert "do not add up" in text(lead.get(CHANGES, {"metric": "p95"}))


def test_the_queries_do_not_depend_on_the_number_of_rows(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    url = f"{CHANGES}?metric=cost&range=yesterday"
    spend(caller, "1", days_ago=1)
    few = count_queries(lead, url)
    for number in range(10):
        spend(caller, "1", days_ago=1, model=f"m{number}", end_user=f"user{number}")
    assert count_queries(lead, url) == few
