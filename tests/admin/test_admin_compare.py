"""Comparison of two responses: request, items, timeline and figures, and what it is suggested with."""

import os
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from conversations.models import Section
from core.clock import now
from core.ids import new_id
from responses.models import Response, Status
from tenants import scope
from tenants.models import AuditEvent, Role
from tests.admin.conftest import CountQueries
from tests.admin.rows import (
    add_call,
    add_items,
    add_response,
    add_turns,
    assistant_message,
    function_call_item,
    page_url,
    sign_in,
    text,
    user_message,
)
from tests.support.api import Caller, MakeCaller

COMPARE = "/admin/compare/"
LIST = "/admin/responses/response/"


def stored(caller: Caller, **columns: Any) -> Response:
    """Create a response with parameters of a request."""
    parameters = {"instructions": "Be brief.", "text": {"format": {"type": "text"}}, **columns.pop("parameters", {})}
    sent = [*parameters]
    return add_response(caller, parameters=parameters, options={"sent": sent, "include": []}, **columns)


@pytest.fixture
def pair(caller: Caller) -> tuple[Response, Response]:
    """A good and a failed run of the same question, with different temperatures and arguments."""
    good = stored(caller, parameters={"temperature": 0.2}, input_tokens=100, cost=Decimal("0.02"), duration_ms=1000)
    bad = stored(
        caller,
        parameters={"temperature": 1.5},
        status=Status.FAILED,
        error={"code": "server_error", "message": "The upstream failed."},
        error_code="server_error",
        input_tokens=150,
        cost=Decimal("0.03"),
        duration_ms=2500,
    )
    for response, city in ((good, "Lisbon"), (bad, "Berlin")):
        add_items(response, Section.INPUT, user_message("A SECRET question"))
        add_items(response, Section.OUTPUT, function_call_item("look_up", f'{{"city": "{city}"}}'))
        add_call(response)
        add_turns(response, 1)
    add_items(good, Section.OUTPUT, assistant_message("A SECRET answer"))
    return good, bad


def compared(client: Client, left: Response, right: Response) -> str:
    return text(client.get(COMPARE, {"a": left.pk, "b": right.pk}))


def row(page: str, name: str) -> str:
    """Return the text of a row of values."""
    found = re.search(rf'<tr[^>]*><th scope="row" dir="auto">{re.escape(name)}</th>.*?</tr>', page, re.DOTALL)
    assert found is not None, f"no row {name}"
    return re.sub(r"<[^>]+>", " ", found[0]).strip()


def test_request_parameters_are_compared(lead: Client, pair: tuple[Response, Response]) -> None:
    page = compared(lead, *pair)
    assert row(page, "temperature").split() == ["temperature", "0.2", "1.5", "different"]
    assert row(page, "instructions").split() == ["instructions", "Be", "brief.", "Be", "brief.", "same"]
    assert "2 equal parameters" in page


def test_a_request_without_parameters_has_no_row(lead: Client, caller: Caller) -> None:
    bare = add_response(caller, parameters={}, options={"sent": [], "include": []})
    page = compared(lead, stored(caller), bare)
    assert row(page, "instructions").split() == ["instructions", "Be", "brief.", "not", "set", "only", "in", "A"]
    assert '<th scope="row" dir="auto"></th>' not in page


def test_the_first_different_item_is_marked(lead: Client, pair: tuple[Response, Response]) -> None:
    page = compared(lead, *pair)
    first = page[page.index('id="first-difference"') :]
    first = first[: first.index("</li>")]
    assert "<mark>Lisbon</mark>" in first
    assert "<mark>Berlin</mark>" in first
    assert "Changed" in first
    assert "Function call · look_up" in first
    assert page.count('id="first-difference"') == 1
    rest = page[page.index('id="difference-2"') :]
    assert "Only in A" in rest
    assert "no item here" in rest
    assert "2 items differ" in page


def test_figures_are_compared_with_their_change(lead: Client, pair: tuple[Response, Response]) -> None:
    page = compared(lead, *pair)
    assert "+150 %" in row(page, "Duration")
    assert "+50 %" in row(page, "Input tokens")
    assert "+50 %" in row(page, "Cost")
    assert row(page, "Status").endswith("different")
    assert "server_error" in row(page, "Error").replace(" ", "")
    assert "Model" in page
    assert page.count("c-fall-of-model") == 2


def test_equal_responses_have_no_difference(lead: Client, caller: Caller) -> None:
    both = [stored(caller) for _ in range(2)]
    for response in both:
        add_items(response, Section.INPUT, user_message("Hi"))
    page = compared(lead, both[0], both[1])
    assert "No item differs" in page
    assert "All parameters are the same" in page
    assert 'id="first-difference"' not in page


def test_secrets_in_parameters_are_redacted(lead: Client, caller: Caller) -> None:
    tool = {"type": "mcp", "server_label": "box", "server_url": "https://box.example", "headers": {"x": "hunter22"}}
    left = stored(caller, parameters={"tools": [tool]})
    page = compared(lead, left, stored(caller))
    assert "tools[box]" in page
    assert "hunter22" not in page


def test_viewers_without_content_access_compare_kinds_and_figures(
    auditor: Client, operator: Client, pair: tuple[Response, Response]
) -> None:
    for client in (auditor, operator):
        page = compared(client, *pair)
        for content in ("SECRET", "Lisbon", "Be brief", "temperature"):
            assert content not in page
        assert "Only in A" in page
        assert "Content hidden" in page
        assert "+150 %" in row(page, "Duration")


def test_content_of_one_side_is_not_compared_with_hidden_content(
    make_caller: MakeCaller, caller: Caller, pair: tuple[Response, Response]
) -> None:
    stranger = make_caller()
    client = sign_in({caller.team.pk: Role.AUDITOR, stranger.team.pk: Role.TEAM_LEAD})
    own = stored(stranger)
    add_items(own, Section.INPUT, user_message("A SECRET question"))
    page = compared(client, own, pair[0])
    assert "SECRET" not in page
    assert "Content hidden" in page


@pytest.mark.parametrize("side", ["a", "b"])
def test_ids_of_other_teams_are_answered_like_unknown_ones(
    side: str, lead: Client, make_caller: MakeCaller, pair: tuple[Response, Response]
) -> None:
    other = "b" if side == "a" else "a"
    foreign = add_response(make_caller())
    pages = [
        lead.get(COMPARE, {side: key, other: pair[0].pk}) for key in (foreign.pk, new_id("resp"), "\x00", "nothing")
    ]
    assert [page.status_code for page in pages] == [404] * 4
    assert len({re.sub(r"(csrf|nonce|req_)[^\s\"]*", "", text(page)) for page in pages}) == 1


def test_reading_by_a_non_member_is_audited(admin: Client, pair: tuple[Response, Response]) -> None:
    compared(admin, *pair)
    with scope.every_team():
        for response in pair:
            assert AuditEvent.objects.filter(action="content.viewed", target=response.pk).count() == 1


def test_unstored_responses_are_compared_without_content(lead: Client, caller: Caller) -> None:
    left, right = add_response(caller, stored=False, parameters={}), stored(caller)
    page = compared(lead, left, right)
    assert "Content hidden" not in page
    assert "not stored" in page
    assert "Duration" in page


def test_a_response_compared_with_itself_leads_to_the_choice(lead: Client, pair: tuple[Response, Response]) -> None:
    answer = lead.get(COMPARE, {"a": pair[0].pk, "b": pair[0].pk})
    assert answer.status_code == 302
    assert answer["Location"] == f"{COMPARE}?a={pair[0].pk}"


def test_without_a_response_two_ids_can_be_entered(lead: Client) -> None:
    page = text(lead.get(COMPARE))
    assert 'name="a"' in page
    assert 'name="b"' in page


# -- what is suggested -------------------------------------------------------------------------------------------------


def suggested(client: Client, response: Response) -> list[tuple[str, str]]:
    """Return the suggested ids with their reasons."""
    page = text(client.get(COMPARE, {"a": response.pk}))
    links = re.findall(r'href="/admin/compare/\?a=\w+&amp;b=(\w+)#first-difference">([^<]+)<', page)
    return [(key, reason) for key, reason in links]


def test_good_runs_of_conversation_prompt_input_and_model_are_suggested(lead: Client, caller: Caller) -> None:
    at = now() - timedelta(hours=5)

    def add(minutes: int, **columns: Any) -> Response:
        return stored(caller, created_at=at + timedelta(minutes=minutes), **columns)

    conversation, prompt = new_id("conv"), {"prompt": {"id": "pmpt_1", "version": "1"}}
    of_conversation = add(1, conversation_id=conversation, model="x")
    of_prompt = add(2, parameters=prompt, model="x")
    of_input = add(3, input_preview="Where?", model="x")
    of_model = add(4)
    add(5, status=Status.FAILED)
    failed = add(6, conversation_id=conversation, parameters=prompt, input_preview="Where?", status=Status.FAILED)
    later = add(7)
    assert suggested(lead, failed) == [
        (of_conversation.pk, "Previous good run of the conversation"),
        (of_prompt.pk, "Previous good run of the prompt"),
        (of_input.pk, "Good run with the same input"),
        (of_model.pk, "Previous good run of the model"),
        (later.pk, "Next good run of the model"),
    ]


def test_previews_of_suggestions_are_hidden_without_content_access(auditor: Client, caller: Caller) -> None:
    stored(caller, input_preview="A SECRET question", created_at=now() - timedelta(minutes=5))
    failed = stored(caller, input_preview="A SECRET question", status=Status.FAILED)
    page = text(auditor.get(COMPARE, {"a": failed.pk}))
    assert "Previous good run of the model" in page
    assert "SECRET" not in page
    assert "same input" not in page


def test_a_response_without_anything_similar_says_so(lead: Client, caller: Caller) -> None:
    assert "Enter the ID" in text(lead.get(COMPARE, {"a": stored(caller).pk}))


# -- from the response and from the list -------------------------------------------------------------------------------


def test_the_page_of_a_response_offers_the_comparison(auditor: Client, pair: tuple[Response, Response]) -> None:
    page = text(auditor.get(page_url(pair[1])))
    (url,) = set(re.findall(r'href="(/admin/responses/response/[^"]*compare[^"]*)"', page))
    assert auditor.get(url)["Location"] == f"{COMPARE}?a={pair[1].pk}"


def test_two_selected_responses_are_compared_older_first(lead: Client, pair: tuple[Response, Response]) -> None:
    chosen = {"action": "compare_selected", "_selected_action": [pair[1].pk, pair[0].pk]}
    answer = lead.post(LIST, chosen)
    assert answer["Location"] == f"{COMPARE}?a={pair[0].pk}&b={pair[1].pk}#first-difference"


@pytest.mark.parametrize("count", [1, 3])
def test_any_other_number_of_selected_responses_is_refused(count: int, lead: Client, caller: Caller) -> None:
    keys = [stored(caller).pk for _ in range(count)]
    page = text(lead.post(LIST, {"action": "compare_selected", "_selected_action": keys}, follow=True))
    assert "Select exactly two responses" in page


# -- large runs --------------------------------------------------------------------------------------------------------


def test_large_runs_are_bounded(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    left, right = stored(caller), stored(caller)
    for response, name in ((left, "x"), (right, "y")):
        add_items(response, Section.INPUT, *(user_message(f"{name} {number}") for number in range(300)))
        add_items(response, Section.OUTPUT, assistant_message("word " * 300_000 + name))
    page = compared(lead, left, right)
    assert len(page) < 300_000
    assert "further items of A were not compared" in page
    assert "more rows are not listed" in page
    assert "<mark>y</mark>" in page
    assert count_queries(lead, f"{COMPARE}?a={left.pk}&b={right.pk}") < 60


def test_items_beyond_the_limit_of_bytes_are_not_read(lead: Client, caller: Caller) -> None:
    left, right = stored(caller), stored(caller)
    noise = os.urandom(1_500_000).hex()
    add_items(left, Section.INPUT, user_message(noise), user_message(noise), user_message(noise), user_message("end"))
    page = compared(lead, left, right)
    assert "further items of A were not compared" in page
    assert len(page) < 200_000
