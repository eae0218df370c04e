"""The page of a call whose outcome is unknown, and the durations of calls and responses that have waited."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from core.clock import now
from core.ids import new_id
from engine.calls.effects import effect_id
from responses.models import Decision, ToolCall
from tenants import scope
from tenants.models import Role
from tests.admin.rows import add_call, add_response, member, text
from tests.support.api import Caller
from tests.support.decisions import add_decision, stored, waits


@pytest.fixture
def decision(caller: Caller) -> Decision:
    """An open decision about a call that was interrupted."""
    return add_decision(caller, id=new_id("dec"), kind="unknown_outcome", turn=0, attempt=1, request="", definition="")


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def test_the_page_offers_three_choices(lead: Client, decision: Decision) -> None:
    page = text(lead.get(page_of(decision)))
    buttons = [f'name="outcome" value="{value}"' in page for value in ("done", "not_done", "repeat")]
    assert (buttons, 'name="approve"' in page) == ([True] * 3, False)
    assert "may have taken effect" in page
    assert effect_id(decision.response_id, 0, "call_1") in page


@pytest.mark.parametrize(
    ("given", "answer", "shown"),
    [
        ({"outcome": "done", "result": "It is 5."}, {"outcome": "done", "result": "It is 5."}, "Done"),
        ({"outcome": "not_done", "reason": "No."}, {"outcome": "not_done", "reason": "No."}, "Not done"),
        ({"outcome": "repeat"}, {"outcome": "repeat"}, "Repeated"),
    ],
)
def test_a_choice_is_stored_and_shown(
    lead: Client, decision: Decision, given: dict[str, str], answer: dict[str, str], shown: str
) -> None:
    assert lead.post(page_of(decision), given).status_code == 302
    row = stored(decision)
    assert (row.state, row.answer, waits(decision)) == ("answered", answer, False)
    page = text(lead.get(page_of(decision)))
    assert (f">{shown}</b>" in page, 'name="outcome"' in page) == (True, False)
    assert f">{shown}</b>" in text(lead.get("/admin/approvals/?state=decided"))


@pytest.mark.parametrize(
    "given", [{}, {"approve": "yes"}, {"outcome": "perhaps"}, {"outcome": "repeat", "result": "5"}]
)
def test_answers_that_do_not_fit_change_nothing(lead: Client, decision: Decision, given: dict[str, str]) -> None:
    assert lead.post(page_of(decision), given).status_code == 200
    assert (stored(decision).state, waits(decision)) == ("asked", True)


def test_an_approval_has_no_outcome(lead: Client, caller: Caller) -> None:
    approval = add_decision(caller)
    assert lead.post(page_of(approval), {"outcome": "done"}).status_code == 200
    assert stored(approval).state == "asked"


def test_a_result_is_shown_only_to_readers_of_content(caller: Caller, decision: Decision, lead: Client) -> None:
    lead.post(page_of(decision), {"outcome": "done", "result": "A secret receipt."})
    assert "A secret receipt." in text(lead.get(page_of(decision)))
    developer = member(caller.team, Role.DEVELOPER)
    assert developer.post(page_of(decision), {"outcome": "done"}).status_code == 403


def test_the_time_of_a_person_is_not_part_of_the_duration_of_a_call(caller: Caller) -> None:
    began, response = now() - timedelta(hours=2), add_response(caller)
    day = timedelta(hours=1).total_seconds() * 1000
    times = {"started_at": began, "ended_at": began + timedelta(hours=1, seconds=2)}
    add_call(response, name="box__pay", kind="mcp", waited_ms=int(day), **times)
    add_call(response, name="box__pay", kind="mcp", call_id="call_2", status="approved", **times)
    with scope.team(caller.team.pk):
        made, asked = ToolCall.objects.filter(response=response).order_by("call_id")
    assert (made.duration_ms, asked.duration_ms) == (2000, None)
