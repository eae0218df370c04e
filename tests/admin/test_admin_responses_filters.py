"""Filters of the response list, their scan limit, the histogram and expanded rows."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import Q
from django.test import Client

from console.scans import ScanPlan
from conversations.models import Section
from core.clock import now
from responses.models import Mode, Response, Status
from responses.rollups import aggregate
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_items, add_response, assistant_message, page_url, text, user_message
from tests.support.api import Caller

SqlOf = Callable[..., str]
LIST = "/admin/responses/response/"


def listed(client: Client, rows: list[Response], **query: Any) -> list[bool]:
    """Return for each response whether the list shows it."""
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [f"{row.pk}/change/" in text(answer) for row in rows]


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ({"mode": "sync"}, {"mode": Mode.JSON}),
        ({"mode": "background"}, {"mode": Mode.STREAM, "background": True}),
        ({"conversation": "conv_wanted"}, {"conversation_id": "conv_wanted"}),
        ({"in_conversation": "yes"}, {"conversation_id": "conv_any"}),
        ({"end_user": "user-7"}, {"end_user": "user-7"}),
        ({"metadata": "tier=gold"}, {"metadata": {"tier": "gold", "other": "x"}}),
        ({"metadata": "tier"}, {"metadata": {"tier": "any"}}),
        ({"least_ms": "3000"}, {"duration_ms": 3000}),
        ({"least_input": "10000"}, {"input_tokens": 10_000}),
        ({"least_output": "1000"}, {"output_tokens": 1_000}),
        ({"least_cost": "0.01"}, {"cost": Decimal("0.01")}),
    ],
)
def test_the_list_can_be_filtered_by_column(
    query: dict[str, str], columns: dict[str, Any], lead: Client, caller: Caller
) -> None:
    others = add_response(caller, mode=Mode.STREAM, metadata={"kind": "gold"}, duration_ms=2999, cost=Decimal("0.0099"))
    assert listed(lead, [add_response(caller, **{"mode": Mode.STREAM, **columns}), others], **query) == [True, False]


@pytest.mark.parametrize("query", [{"tool": "look_up"}, {"tool_type": "mcp_call"}])
def test_the_list_can_be_filtered_by_tool(query: dict[str, str], lead: Client, caller: Caller) -> None:
    rows = [add_response(caller), add_response(caller)]
    add_call(rows[0], name="look_up", kind="mcp_call")
    add_call(rows[1], name="other", kind="function")
    assert listed(lead, rows, **query) == [True, False]


def test_filters_are_combined(lead: Client, caller: Caller) -> None:
    bad: dict[str, Any] = {"status": Status.FAILED, "error": {"message": "x"}}
    rows = [
        add_response(caller, model="a", error_code="boom", duration_ms=5000, **bad),
        add_response(caller, model="b", error_code="boom", duration_ms=5000, **bad),
        add_response(caller, model="a", error_code="boom", duration_ms=10, **bad),
        add_response(caller, model="a", duration_ms=5000),
    ]
    query = {"model": "a", "error_code": "boom", "least_ms": "3000", "status__exact": "failed"}
    assert listed(lead, rows, **query) == [True, False, False, False]


def test_the_list_can_be_filtered_by_request_id(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller), add_response(caller)]
    assert listed(lead, rows, request=rows[0].request_id) == [True, False]
    assert listed(lead, rows, request="req_nonsense") == [False, False]


@pytest.mark.parametrize("lookup", ["input_preview__contains", "output_preview__startswith", "parameters__icontains"])
def test_lookups_on_other_columns_are_rejected(lookup: str, operator: Client, caller: Caller) -> None:
    add_response(caller, input_preview="a secret")
    assert operator.get(LIST, {lookup: "a"}).status_code == 400


def test_previews_are_masked_without_content_access(
    auditor: Client, operator: Client, lead: Client, caller: Caller
) -> None:
    add_response(caller, input_preview="the question", output_preview="the answer")
    for hidden_from in (auditor, operator):
        page = text(hidden_from.get(LIST, {"team__id__exact": caller.team.pk}))
        assert ("•••" in page, "the question" in page, "the answer" in page) == (True, False, False)
    assert "the question" in text(lead.get(LIST))


def test_reading_a_team_by_an_administrator_is_audited_once(admin: Client, caller: Caller) -> None:
    add_response(caller, input_preview="the question")
    for _ in range(2):
        admin.get(LIST, {"team__id__exact": caller.team.pk})
    with scope.team(caller.team.pk):
        assert AuditEvent.objects.filter(action="content.viewed").count() == 1


def test_reading_by_a_member_is_not_audited(lead: Client, caller: Caller) -> None:
    add_response(caller, input_preview="the question")
    lead.get(LIST)
    with scope.team(caller.team.pk):
        assert not AuditEvent.objects.filter(action="content.viewed").exists()


def newest(caller: Caller, condition: Q | None, **options: int) -> tuple[int, bool]:
    """Return the number of matches, and whether the scan stopped at its limit."""
    with scope.team(caller.team.pk):
        plan = ScanPlan(indexed=Response.objects.filter(team=caller.team), condition=condition)
        ids, stopped_at = plan.scan(**options)
    return len(ids), stopped_at is not None


def test_a_scan_stops_at_its_limit_and_reports_it(caller: Caller) -> None:
    for number in range(6):
        add_response(caller, created_at=now() - timedelta(minutes=number), duration_ms=number)
    assert newest(caller, None, limit=10, max_rows=4) == (4, True)
    assert newest(caller, Q(duration_ms__gte=3), limit=10, max_rows=4) == (1, True)
    assert newest(caller, Q(duration_ms__gte=5), limit=10, max_rows=4) == (0, True)
    assert newest(caller, Q(duration_ms__gte=5), limit=10, max_rows=100) == (1, False)
    assert newest(caller, None, limit=2, max_rows=4) == (2, False)


def test_the_last_page_has_no_next_link(lead: Client, caller: Caller) -> None:
    for number in range(51):
        add_response(caller, created_at=now() - timedelta(seconds=number))
    assert 'rel="next"' in text(lead.get(LIST))
    last = text(lead.get(LIST, {"p": 2}))
    assert ('rel="next"' in last, 'rel="prev"' in last) == (False, True)


# -- histogram and rows -----------------------------------------------------------------------------------------------


def test_the_histogram_counts_what_the_list_shows(lead: Client, caller: Caller) -> None:
    for model in ("a", "a", "b"):
        add_response(caller, model=model)
    add_response(caller, model="a", created_at=now() - timedelta(hours=30))
    assert "<b>3</b> responses" in text(lead.get(f"{LIST}histogram/"))
    assert "<b>2</b> responses" in text(lead.get(f"{LIST}histogram/", {"model": "a"}))
    assert "<b>3</b> responses" in text(lead.get(f"{LIST}histogram/", {"model": "a", "period": "7d"}))


@pytest.mark.parametrize(
    ("period", "interval"),
    [("1h", "every 2 minutes"), ("24h", "each hour"), ("7d", "every 6 hours"), ("30d", "each day")],
)
def test_the_histogram_names_the_interval_of_a_bar(lead: Client, period: str, interval: str) -> None:
    assert f"one bar {interval}" in text(lead.get(f"{LIST}histogram/", {"period": period}))


def test_a_long_histogram_reads_hourly_sums(admin: Client, caller: Caller, sql_of: SqlOf, rollups: None) -> None:
    add_response(caller, model="a", created_at=now() - timedelta(days=20))
    team = {"period": "30d", "team__id__exact": caller.team.pk}
    aggregate.roll_up()
    assert "<b>1</b> responses" in text(admin.get(f"{LIST}histogram/", team))
    assert "responses_responsehour" in sql_of(admin, f"{LIST}histogram/", **team)
    assert "responses_responsehour" not in sql_of(admin, f"{LIST}histogram/", **team, least_ms="1000")
    assert "responses_responsehour" not in sql_of(admin, f"{LIST}histogram/", **team, model="a")


def test_histogram_and_export_use_the_filters_of_the_page(lead: Client, caller: Caller) -> None:
    page = text(lead.get(LIST, {"model": "a", "period": "7d"}))
    assert f'hx-get="{LIST}histogram/?model=a&amp;period=7d"' in page
    assert f'href="{LIST}export/?model=a&amp;period=7d"' in page


def test_the_histogram_does_not_read_the_rows_of_the_list(lead: Client, caller: Caller, sql_of: SqlOf) -> None:
    add_response(caller, model="a")
    assert "row_number()" in sql_of(lead, LIST, model="a")
    assert "row_number()" not in sql_of(lead, f"{LIST}histogram/", model="a")


def test_a_bar_links_to_its_responses(lead: Client, caller: Caller) -> None:
    add_response(caller, model="a", status=Status.FAILED, error_code="x", error={"message": "x"})
    page = text(lead.get(f"{LIST}histogram/", {"model": "a"}))
    assert "c-bar-failed" in page
    assert "model=a&amp;created_at_from_0=" in page


def test_a_search_by_id_has_no_histogram(lead: Client, caller: Caller) -> None:
    assert "<svg" not in text(lead.get(f"{LIST}histogram/", {"q": add_response(caller).pk}))


def test_an_expanded_row_shows_its_items(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.INPUT, user_message("Where is <b>my</b> parcel?"))
    add_items(response, Section.OUTPUT, assistant_message("On its way."))
    add_call(response, name="track")
    page = text(lead.get(page_url(response).replace("change", "summary")))
    for words in ("Where is &lt;b&gt;my", "On its way.", "track", "250 ms"):
        assert words in page


def test_an_expanded_row_is_masked_without_content_access(operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.INPUT, user_message("secret words"))
    page = text(operator.get(page_url(response).replace("change", "summary")))
    assert ("•••" in page, "secret words" in page) == (True, False)


def test_another_team_gets_no_histogram_and_no_row(stranger: Client, caller: Caller) -> None:
    response = add_response(caller, model="a")
    assert stranger.get(page_url(response).replace("change", "summary")).status_code == 404
    assert "<b>0</b> responses" in text(stranger.get(f"{LIST}histogram/", {"team__id__exact": caller.team.pk}))


def test_histogram_and_row_take_few_queries(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    response = add_response(caller)
    assert count_queries(lead, f"{LIST}histogram/") <= 14
    assert count_queries(lead, page_url(response).replace("change", "summary")) <= 16


def test_filters_run_a_limited_scan_without_count(admin: Client, caller: Caller, sql_of: SqlOf) -> None:
    add_response(caller)
    sql = sql_of(admin, LIST, tool="x", model="m", metadata="a=b", least_ms="1000").upper()
    assert "COUNT(" not in sql
    assert "LIMIT 30000" in sql
