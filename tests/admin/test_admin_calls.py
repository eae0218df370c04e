"""The table of tool calls on the page of a response: also of those that stand in no item."""

from django.test import Client

from tests.admin.rows import add_call, add_response, page_of, text
from tests.support.api import Caller


def test_a_call_shows_what_went_in_and_what_came_of_it(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    call = {"call_id": "call_9", "kind": "mcp", "name": "box__add", "arguments": '{"a":2}', "output": "the sum"}
    add_call(response, **call, attempt=3, status="failed", error="http_error")
    table = text(lead.get(page_of(response))).partition('aria-label="Tool calls"')[2]
    row = ["box__add", "mcp", "failed", "http_error", "<td>3</td>", "250 ms", "call_9", "&quot;a&quot;: 2", "the sum"]
    assert [word for word in row if word not in table] == []


def test_calls_of_one_id_in_two_turns_are_both_there(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    for turn, name in enumerate(["box__first", "box__second"]):
        add_call(response, turn=turn, name=name, kind="mcp")
    page = text(lead.get(page_of(response)))
    assert [name in page for name in ("box__first", "box__second")] == [True, True]


def test_the_calls_of_the_response_before_are_its_own(lead: Client, caller: Caller) -> None:
    before = add_response(caller)
    add_call(before, name="box__before", kind="mcp")
    after = add_response(caller, previous_response_id=before.pk)
    assert 'aria-label="Tool calls"' not in text(lead.get(page_of(after)))
