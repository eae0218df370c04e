"""Pivot of usage: any two dimensions, presets, CSV, links, and isolation of teams."""

import csv
import io
from itertools import combinations

import pytest
from django.test import Client

from core.clock import now
from responses.models import Status, ToolCall
from tenants import scope
from tests.admin.rows import add_response, add_usage, member, text
from tests.support.api import Caller, MakeCaller

pytestmark = pytest.mark.usefixtures("rollups")
PIVOT = "/admin/usage/pivot/"
AXES = ("team", "key", "model", "upstream", "user", "tool", "mode", "status", "tag")


def grid(client: Client, **query: str) -> dict[str, dict[str, str]]:
    """Return the CSV file of a query as values by row and column."""
    answer = client.get(PIVOT, {"format": "csv", "range": "24h", **query})
    assert answer["Content-Type"].startswith("text/csv")
    names, _, *rows = csv.reader(io.StringIO(text(answer)))
    return {row[0]: dict(zip(names[2:], row[2:], strict=True)) for row in rows}


def test_cost_is_divided_by_team_and_model_over_all_endpoints(lead: Client, caller: Caller) -> None:
    add_usage(caller, model="a", cost="0.25")
    add_usage(caller, model="a", cost="0.5", endpoint="chat.completions")
    add_usage(caller, model="b", cost="1")
    found = grid(lead, metric="cost", rows="team", columns="model")
    assert found[caller.team.name] == {"a": "0.75", "b": "1", "Total": "1.75"}
    assert found["Total"] == {"a": "0.75", "b": "1", "Total": "1.75"}


def test_a_model_without_a_price_has_no_cost_of_zero(lead: Client, caller: Caller) -> None:
    add_usage(caller, model="a", cost=None)
    assert grid(lead, metric="cost")["Total"]["Total"] == "No price"
    assert "$0.00" not in text(lead.get(PIVOT, {"metric": "cost", "range": "24h"}))


@pytest.mark.parametrize(("rows", "columns"), [*combinations(AXES, 2)])
def test_every_pair_of_dimensions_can_be_shown(lead: Client, caller: Caller, rows: str, columns: str) -> None:
    response = add_response(caller, end_user="ada", metadata={"project": "x"}, tool_calls=1)
    with scope.team(caller.team.pk):
        ToolCall.objects.create(
            team=caller.team, response=response, turn=0, call_id="c", kind="function", name="f", arguments="{}",
            status="completed", started_at=now(),
        )  # fmt: skip
    metric = "tools" if "tool" in (rows, columns) else "requests"
    found = grid(lead, metric=metric, rows=rows, columns=columns, tag="project")
    assert found["Total"]["Total"] == "1"
    assert lead.get(PIVOT, {"rows": rows, "columns": columns, "tag": "project", "range": "24h"}).status_code == 200


def test_responses_are_divided_by_end_user_and_tag(lead: Client, caller: Caller) -> None:
    for user, project in (("ada", "x"), ("ada", "x"), ("ben", "y"), (None, None)):
        add_response(caller, end_user=user, metadata={"project": project} if project else {})
    found = grid(lead, metric="requests", rows="user", columns="tag", tag="project")
    assert found["ada"]["x"] == "2"
    assert found["ben"]["y"] == "1"
    assert found["none"]["none"] == "1"
    assert found["Total"]["Total"] == "4"


def test_the_error_rate_of_a_total_is_not_the_sum_of_its_cells(lead: Client, caller: Caller) -> None:
    add_response(caller, model="a", status=Status.FAILED)
    add_response(caller, model="b")
    found = grid(lead, metric="errors", rows="team", columns="model")
    assert found[caller.team.name] == {"a": "100", "b": "0", "Total": "50"}


def test_a_cell_links_to_the_responses_that_it_counts(lead: Client, caller: Caller) -> None:
    add_response(caller, end_user="ada", model="a")
    page = text(lead.get(PIVOT, {"metric": "requests", "rows": "user", "columns": "model", "range": "24h"}))
    assert "end_user=ada&amp;model=a" in page or "model=a&amp;end_user=ada" in page


def test_filters_restrict_what_is_counted(lead: Client, caller: Caller) -> None:
    add_response(caller, model="a", end_user="ada")
    add_response(caller, model="b", end_user="ada")
    found = grid(lead, metric="requests", rows="user", columns="status", model="a")
    assert found["Total"]["Total"] == "1"


def test_members_see_their_own_teams_only(make_caller: MakeCaller) -> None:
    mine, other = make_caller(), make_caller()
    add_response(mine, end_user="ada")
    add_response(other, end_user="eve")
    client = member(mine.team)
    found = grid(client, metric="requests", rows="user", columns="team")
    assert set(found) == {"ada", "Total"}
    assert set(grid(client, metric="requests", rows="user", columns="team", team=other.team.pk)) == {"Total"}


def test_unsupported_combinations_are_explained(lead: Client) -> None:
    page = text(lead.get(PIVOT, {"metric": "cost", "rows": "tool", "columns": "tool"}))
    assert "Rows and columns must differ" in page
    assert "cannot be divided by tool" in page


def test_presets_and_ranges_are_offered(lead: Client, caller: Caller) -> None:
    add_usage(caller, model="a", cost="0.25")
    page = text(lead.get(PIVOT))
    for title in ("Last week", "This month", "Cost by team and model, this month"):
        assert title in page
