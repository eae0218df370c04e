"""Page of a response: transcript, turns and details of its run."""

from datetime import timedelta

import pytest
from django.test import Client

from conversations.models import Section
from core.clock import now
from responses.models import Response, Status
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.conftest import CountQueries
from tests.admin.rows import (
    add_call,
    add_items,
    add_response,
    add_turns,
    assistant_message,
    function_call_item,
    page_url,
    text,
    user_message,
)
from tests.support.api import Caller


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response without items."""
    return add_response(caller)


def missing(page: str, *words: str) -> list[str]:
    """Return the words that a page lacks."""
    return [word for word in words if word not in page]


def test_messages_appear_in_order(lead: Client, response: Response) -> None:
    add_items(response, Section.INPUT, user_message("first words"), user_message("second words"))
    add_items(response, Section.OUTPUT, assistant_message("third words"))
    page = text(lead.get(page_url(response)))
    places = [page.index(f"{words} words") for words in ("first", "second", "third")]
    assert places == sorted(places)


def test_line_breaks_and_markup_are_kept_as_text(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, assistant_message("one\n<b>two</b> ![x](http://evil/x.png)"))
    page = text(lead.get(page_url(response)))
    assert "one\n&lt;b&gt;two&lt;/b&gt; ![x](http://evil/x.png)" in page


def test_a_call_shows_arguments_output_status_and_duration(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, function_call_item("get_weather", '{"city":"Paris"}'))
    add_call(response, name="get_weather", output='{"sky":"blue"}')
    page = text(lead.get(page_url(response)))
    assert missing(page, "get_weather", "call_1", "&quot;city&quot;: &quot;Paris&quot;", "completed", "250 ms") == []
    assert "&quot;sky&quot;: &quot;blue&quot;" in page


def test_an_mcp_call_shows_its_output_or_error(lead: Client, response: Response) -> None:
    call = {"type": "mcp_call", "status": "completed", "server_label": "box", "name": "add", "arguments": '{"a":2}'}
    failed = {"type": "http_error", "code": 502, "message": "The connection to it failed."}
    add_items(response, Section.OUTPUT, {**call, "output": "the sum"}, {**call, "status": "failed", "error": failed})
    page = text(lead.get(page_url(response)))
    expected = ["box", "<b>add</b>", "&quot;a&quot;: 2", "the sum", "c-state-failed", "The connection to it failed."]
    assert missing(page, *expected) == []


def test_a_waiting_call_shows_its_status(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, function_call_item("get_weather", "not json"))
    add_call(response, status="waiting", ended_at=None)
    assert missing(text(lead.get(page_url(response))), "c-state-waiting", "not json") == []


def test_a_tool_output_is_named_after_the_call_of_the_previous_response(lead: Client, caller: Caller) -> None:
    before = add_response(caller)
    add_call(before, name="look_up_order")
    after = add_response(caller, previous_response_id=before.pk)
    add_items(after, Section.INPUT, {"type": "function_call_output", "call_id": "call_1", "output": "shipped"})
    assert missing(text(lead.get(page_url(after))), "<b>look_up_order</b> returned", "shipped") == []


def test_reasoning_is_collapsed(lead: Client, response: Response) -> None:
    thinking = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I ponder"}]}
    add_items(response, Section.OUTPUT, thinking)
    page = text(lead.get(page_url(response)))
    assert page.index('<details class="c-entry c-thinking"') < page.index("I ponder")


def test_images_are_described_and_never_loaded(lead: Client, response: Response) -> None:
    parts = [
        {"type": "input_image", "image_url": "https://elsewhere.example/cat.png"},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 8000},
    ]
    add_items(response, Section.INPUT, {"type": "message", "role": "user", "content": parts})
    page = text(lead.get(page_url(response)))
    assert missing(page, "https://elsewhere.example/cat.png", "data image, image/png, 6.0 KB") == []
    assert 'src="https://elsewhere' not in page
    assert "AAAA" not in page


def test_files_are_named_and_never_shown(lead: Client, response: Response) -> None:
    parts = [
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://elsewhere.example/a.pdf"},
        {"type": "input_file", "filename": "b.pdf", "file_data": "A" * 8000},
    ]
    add_items(response, Section.INPUT, {"type": "message", "role": "user", "content": parts})
    page = text(lead.get(page_url(response)))
    named = ("file-1", "https://elsewhere.example/a.pdf", "b.pdf, data file, unknown type, 6.0 KB")
    assert missing(page, *named) == []
    assert "AAAA" not in page


def test_long_payloads_are_truncated_with_a_note(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, assistant_message("a" * 65536 + "BEYOND"))
    page = text(lead.get(page_url(response)))
    assert 'Truncated: <span data-left="6">6</span> more characters' in page
    assert "BEYOND" not in page


def test_an_item_outside_the_context_is_marked(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, assistant_message("half a sen"), in_context=False)
    assert "partial, not in context" in text(lead.get(page_url(response)))


def test_earlier_items_of_the_chain_are_counted_and_linked(lead: Client, caller: Caller) -> None:
    first = add_response(caller)
    add_items(first, Section.INPUT, user_message("hello"))
    add_items(first, Section.OUTPUT, assistant_message("hi"))
    second = add_response(caller, previous_response_id=first.pk)
    add_items(second, Section.INPUT, user_message("more"))
    third = add_response(caller, previous_response_id=second.pk)
    page = text(lead.get(page_url(third)))
    assert missing(page, "3 earlier items in the chain", page_url(second)) == []


def test_the_next_response_is_linked(lead: Client, caller: Caller) -> None:
    first = add_response(caller)
    second = add_response(caller, previous_response_id=first.pk)
    assert missing(text(lead.get(page_url(first))), "Next responses", page_url(second)) == []


def test_a_failed_response_shows_its_error_as_text(lead: Client, caller: Caller) -> None:
    error = {"code": "server_error", "message": "The upstream <b>broke</b>."}
    response = add_response(caller, status=Status.FAILED, error=error, error_code="server_error")
    page = text(lead.get(page_url(response)))
    assert missing(page, 'role="alert"', "server_error", "The upstream &lt;b&gt;broke&lt;/b&gt;.") == []


def test_turns_are_listed(lead: Client, response: Response) -> None:
    add_turns(response, 2)
    page = text(lead.get(page_url(response, tab="attempts")))
    assert missing(page, "1.00 s", "first token 120 ms", "1,234", "<td>2</td>") == []


def test_details_show_metadata_ids_and_instructions(lead: Client, caller: Caller) -> None:
    columns = {"metadata": {"ticket": "T-1"}, "end_user": "customer-81", "client_request_id": "mine-7"}
    response = add_response(caller, parameters={"instructions": "Be kind."}, **columns)
    page = text(lead.get(page_url(response)))
    assert missing(page, "T-1", "customer-81", "mine-7", response.request_id, "Be kind.") == []


def test_an_unstored_response_has_usage_but_no_content(lead: Client, caller: Caller) -> None:
    response = add_response(caller, stored=False, parameters={}, input_tokens=77)
    page = text(lead.get(page_url(response)))
    assert missing(page, "request set <code>store</code> to false", "77") == []


def test_the_links_of_the_list_open_it(lead: Client, response: Response) -> None:
    quoted = response.pk.replace("_", "_5F")
    assert lead.get(f"/admin/responses/response/{quoted}/change/").status_code == 200


def test_an_unknown_id_is_unknown(lead: Client) -> None:
    assert lead.get("/admin/responses/response/resp_unknown/change/").status_code == 404


def test_query_count_is_independent_of_the_number_of_items(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    def full(size: int) -> Response:
        response = add_response(caller, created_at=now() - timedelta(minutes=1))
        add_items(response, Section.INPUT, *[user_message("in")] * size)
        add_items(response, Section.OUTPUT, *[assistant_message("out")] * size)
        add_turns(response, size)
        return response

    assert count_queries(lead, page_url(full(9))) == count_queries(lead, page_url(full(1))) <= 20


def test_a_tab_is_a_page_without_htmx_and_a_fragment_with_it(lead: Client, response: Response) -> None:
    whole = text(lead.get(page_url(response, tab="attempts")))
    assert missing(whole, "<html", 'role="tablist"', 'href="?tab=timeline"', "No completed turns.") == []
    piece = text(lead.get(page_url(response, tab="attempts"), headers={"HX-Request": "true"}))
    assert missing(piece, "No completed turns.") == []
    assert "<html" not in piece


def test_exactly_one_tab_is_selected(lead: Client, response: Response) -> None:
    for query, name in (("", "transcript"), ("timeline", "timeline"), ("nonsense", "transcript")):
        page = text(lead.get(page_url(response, tab=query)))
        assert page.count('aria-selected="true"') == 1
        assert f'id="tab-{name}" aria-controls="panel" aria-selected="true" tabindex="0"' in page


def test_content_is_hidden_until_it_is_revealed(operator: Client, response: Response) -> None:
    add_items(response, Section.INPUT, user_message("SECRET words"))
    hidden = text(operator.get(page_url(response)))
    assert "SECRET" not in hidden
    form = {"team": response.team_id, "reason": "a customer asks", "next": page_url(response)}
    assert "SECRET words" in text(operator.post("/admin/content/reveal/", form, follow=True))


def test_reading_by_a_non_member_is_audited_once(admin: Client, lead: Client, response: Response) -> None:
    for client in (admin, admin, lead):
        client.get(page_url(response))
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=response.pk).count() == 1
