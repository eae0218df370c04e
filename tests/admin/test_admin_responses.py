"""Response list: columns, periods, filters and search."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from responses.models import Mode, Response, Status
from tenants import services
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, page_url, text
from tests.support.api import Caller

LIST = "/admin/responses/response/"


def listed(client: Client, rows: list[Response], **query: Any) -> list[bool]:
    """Return for each response whether the list shows it."""
    page = text(client.get(LIST, query))
    return [row.pk in page for row in rows]


def test_a_row_shows_previews_tokens_and_latency(lead: Client, caller: Caller) -> None:
    add_response(
        caller,
        model="support-bot",
        upstream_model="big-model",
        input_preview="Where is my parcel?",
        output_preview="On its way.",
        input_tokens=12345,
        cached_tokens=512,
        output_tokens=67,
        first_token_ms=340,
        duration_ms=1240,
        tool_calls=3,
    )
    page = text(lead.get(LIST))
    expected = [
        "Where is my parcel?",
        "On its way.",
        "→ big-model",
        "12,345 / 67",
        "512 cached",
        "1.24 s",
        "340 ms",
    ]
    assert [words for words in [*expected, f"{caller.key.prefix}…{caller.key.last_four}"] if words not in page] == []


def columns_of(client: Client) -> list[str]:
    """Return the titles of the columns."""
    return re.findall(r'<th scope="col" class="c-list-\w+">([^<]+)</th>', text(client.get(LIST)))


def test_columns_are_chosen_per_user(lead: Client, developer: Client, caller: Caller) -> None:
    row = add_response(caller, turns=7)
    default = ["Time", "Status", "Input", "Output", "Team", "Model", "Tokens", "Cost", "Duration", "First token"]
    assert columns_of(lead) == default
    answer = lead.post(f"{LIST}columns/", {"column": ["id", "turns", "cost", "unknown"], "back": f"{LIST}?period=1h"})
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}?period=1h")
    assert columns_of(lead) == ["Time", "Cost", "ID", "Turns"]
    assert f'<td class="c-list-id">{row.pk}</td>' in text(lead.get(LIST))
    assert columns_of(developer) == default
    lead.post(f"{LIST}columns/", {"reset": "", "back": "https://elsewhere.example/"})
    assert columns_of(lead) == default


def test_choosing_columns_leads_back_to_this_site_only(lead: Client, caller: Caller) -> None:
    answer = lead.post(f"{LIST}columns/", {"column": ["cost"], "back": "https://elsewhere.example/"})
    assert answer["Location"] == LIST
    assert lead.get(f"{LIST}columns/").status_code == 405


def test_a_full_page_is_at_most_155_kb(admin: Client, caller: Caller) -> None:
    for _ in range(100):
        add_response(
            caller, input_preview="Où est mon colis ? " * 6, output_preview="荷物は明日届きます。" * 12, tool_calls=3,
            cached_tokens=512, output_tokens=67, first_token_ms=340, upstream_model="the-upstreams-name",
            input_tokens=12345,
        )  # fmt: skip
    page = admin.get(LIST, {"team__id__exact": caller.team.pk, "period": "1h"}).content
    assert page.count(b'class="c-list-input"') == 1 + 50
    assert len(page) <= 155_000


def test_text_of_users_and_models_has_its_own_direction(lead: Client, caller: Caller) -> None:
    add_response(caller, input_preview="أين طردي؟", output_preview="غدا")
    page = text(lead.get(LIST))
    assert '<span dir="auto">أين طردي؟</span>' in page
    assert '<span dir="auto">غدا</span>' in page


def test_the_default_period_is_24_hours(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(hours=hours)) for hours in (1, 25)]
    assert listed(lead, rows) == [True, False]


@pytest.mark.parametrize(("period", "seen"), [("1h", [True, False, False]), ("7d", [True, True, False])])
def test_the_period_can_be_changed(period: str, seen: list[bool], lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(hours=hours)) for hours in (0, 48, 240)]
    assert listed(lead, rows, period=period) == seen


def test_a_range_of_days_can_be_chosen(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(days=days)) for days in (3, 5, 7)]
    day = now() - timedelta(days=5)
    query = {"created_at_from_0": f"{day:%Y-%m-%d}", "created_at_to_0": f"{day:%Y-%m-%d}"}
    assert listed(lead, rows, **query) == [False, True, False]


def test_a_range_without_a_start_covers_30_days(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(days=days)) for days in (1, 28, 40)]
    assert listed(lead, rows, created_at_to_0=f"{now():%Y-%m-%d}") == [True, True, False]


@pytest.mark.parametrize("query", [{"period": "ever"}, {"created_at_from_0": "yesterday"}, {"created_at_to_1": "soon"}])
def test_an_invalid_time_falls_back_to_24_hours(query: dict[str, str], lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(hours=hours)) for hours in (1, 25)]
    assert listed(lead, rows, **query) == [True, False]


@pytest.mark.parametrize(
    "query",
    [
        {"status__exact": "failed"},
        {"model": "chosen"},
        {"mode": "stream"},
        {"error_code": "server_error"},
    ],
)
def test_the_list_can_be_filtered(query: dict[str, str], lead: Client, caller: Caller) -> None:
    chosen = add_response(
        caller,
        status=Status.FAILED,
        model="chosen",
        mode=Mode.STREAM,
        error_code="server_error",
        error={"message": "x"},
    )
    assert listed(lead, [chosen, add_response(caller)], **query) == [True, False]


def test_the_list_can_be_filtered_by_several_statuses(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, status=status) for status in (Status.FAILED, Status.CANCELLED, Status.COMPLETED)]
    assert listed(lead, rows, status__exact=["failed", "cancelled"]) == [True, True, False]


def test_the_list_can_be_filtered_by_team_and_key(admin: Client, caller: Caller) -> None:
    other = services.create_key(team=caller.team, spec=services.KeySpec(name="other"))
    rows = [add_response(caller), add_response(Caller(team=caller.team, key=other.key, secret=""))]
    assert listed(admin, rows, team__id__exact=caller.team.pk) == [True, True]
    assert listed(admin, rows, api_key__id__exact=other.key.pk) == [False, True]


def test_an_id_finds_an_old_response_and_its_successors(lead: Client, caller: Caller) -> None:
    first = add_response(caller, created_at=now() - timedelta(days=100))
    second = add_response(caller, created_at=now() - timedelta(days=90), previous_response_id=first.pk)
    assert listed(lead, [first, second, add_response(caller)], q=f" {first.pk} ") == [True, True, False]


def test_a_request_id_finds_its_response(lead: Client, caller: Caller) -> None:
    wanted, other = add_response(caller), add_response(caller)
    assert listed(lead, [wanted, other], q=wanted.request_id) == [True, False]


@pytest.mark.parametrize("term", ["resp_unknown", "req_zz", "parcel", "req_" + "f" * 36, "'; --"])
def test_an_unknown_search_term_finds_nothing(term: str, lead: Client, caller: Caller) -> None:
    assert listed(lead, [add_response(caller, input_preview="parcel")], q=term) == [False]


def test_previews_are_escaped(lead: Client, caller: Caller) -> None:
    add_response(caller, input_preview="<script>alert(1)</script>", output_preview='"><img src=x onerror=alert(2)>')
    page = text(lead.get(LIST))
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page


def test_query_count_is_independent_of_the_rows(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    add_response(caller)
    few = count_queries(lead, LIST)
    for _ in range(9):
        add_response(caller)
    assert count_queries(lead, LIST) == few <= 19


def test_the_list_runs_no_count_query(admin: Client, caller: Caller, sql_of: Callable[..., str]) -> None:
    add_response(caller)
    assert "COUNT(" not in sql_of(admin, LIST).upper()
    assert "COUNT(" not in sql_of(admin, LIST, q=new_pk(caller), period="7d").upper()


def new_pk(caller: Caller) -> str:
    """Create a response and return its id."""
    return str(add_response(caller).pk)


def test_the_list_does_not_read_request_bodies(admin: Client, caller: Caller, sql_of: Callable[..., str]) -> None:
    add_response(caller)
    assert '"parameters"' not in sql_of(admin, LIST)


def test_pagination_works_without_a_total(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(seconds=seconds)) for seconds in range(51)]
    assert listed(lead, rows[:1] + rows[-1:]) == [True, False]
    assert listed(lead, rows[:1] + rows[-1:], p=2) == [False, True]


def test_responses_cannot_be_edited(admin: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert admin.post(page_url(response), {"model": "other"}).status_code == 405
    assert admin.get(page_url(response)).status_code == 200


def test_the_list_names_the_endpoint_of_messages(lead: Client, caller: Caller) -> None:
    add_response(caller, mode=Mode.STREAM, endpoint="messages", stored=False)
    assert "Stream · messages" in text(lead.get(LIST))


REASONS = [("content_filter", "Content filter"), ("max_output_tokens", "Max output tokens")]


@pytest.mark.parametrize(("reason", "words"), REASONS)
def test_the_reason_of_an_incomplete_response_is_spelled_like_a_status(
    reason: str, words: str, lead: Client, caller: Caller
) -> None:
    response = add_response(caller, status=Status.INCOMPLETE, incomplete_reason=reason)
    other = add_response(caller)
    for url in (LIST, page_url(response), f"/admin/compare/?a={response.pk}&b={other.pk}"):
        page = text(lead.get(url))
        assert (words in page, reason in page) == (True, False), url


def test_the_code_of_an_error_is_spelled_as_in_the_api(lead: Client, caller: Caller) -> None:
    response = add_response(caller, status=Status.FAILED, error_code="rate_limit_exceeded", error={"message": "Busy."})
    for url in (LIST, page_url(response)):
        assert "rate_limit_exceeded" in text(lead.get(url)), url
