"""The page of a question: its form, its link, who may answer, and the answer."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from core.clock import now
from engine.calls.questions import Question
from responses.models import Decision
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import text
from tests.support.api import Caller
from tests.support.decisions import add_question, stored, waits

COLORS = [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]
PROPERTIES: dict[str, Any] = {
    "guests": {"type": "integer", "title": "Number of guests", "minimum": 1, "maximum": 9},
    "mail": {"type": "string", "format": "email"},
    "color": {"type": "string", "oneOf": COLORS},
}
FORM = Question(message="Which <table>?", schema={"type": "object", "properties": PROPERTIES, "required": ["guests"]})
PAGE = Question(message="Please pay.", url="https://shop.example/pay?id=1")


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def test_a_lead_answers_a_question(lead: Client, caller: Caller) -> None:
    decision = add_question(caller, FORM)
    assert "Question of a tool" in text(lead.get(reverse("console:approvals")))
    page = text(lead.get(page_of(decision)))
    assert ("Which &lt;table&gt;?" in page, "Number of guests" in page, "Approve</button>" in page) == (
        True,
        True,
        False,
    )
    entries = {"action": "accept", "field_0": "4", "field_1": "ada@mail.example", "field_2": "#00f"}
    page = text(lead.post(page_of(decision), entries, follow=True))
    assert "The answer is sent to the tool." in page
    row = stored(decision)
    content = {"guests": 4, "mail": "ada@mail.example", "color": "#00f"}
    assert (row.state, row.answer) == ("answered", {"action": "accept", "content": content})
    assert not waits(decision)
    page = text(lead.get(page_of(decision)))
    assert ("Answered" in page, "ada@mail.example" in page, row.decided_by in page) == (True, True, True)
    assert "</form>" not in page.partition('id="approval-question"')[2].partition("</section>")[0]
    with scope.team(caller.team.pk):
        line = AuditEvent.objects.get(target=decision.pk)
    assert (line.action, line.actor, "ada@mail.example" in str(line.after)) == (
        "approval.answered",
        row.decided_by,
        False,
    )


def test_fields_with_wrong_values_are_marked(lead: Client, caller: Caller) -> None:
    decision = add_question(caller, FORM)
    page = text(lead.post(page_of(decision), {"action": "accept", "field_0": "12", "field_1": "ada"}))
    assert "The value must be at most 9." in page
    assert "The value must be an email address." in page
    assert ('value="12"' in page, page.count('aria-invalid="true"')) == (True, 2)
    assert stored(decision).state == "asked"


@pytest.mark.parametrize(("action", "label"), [("decline", "Declined"), ("cancel", "Cancelled")])
@pytest.mark.parametrize("question", [FORM, PAGE], ids=["form", "page"])
def test_a_question_can_be_declined(lead: Client, caller: Caller, question: Question, action: str, label: str) -> None:
    decision = add_question(caller, question)
    lead.post(page_of(decision), {"action": action})
    assert stored(decision).answer == {"action": action}
    assert label in text(lead.get(page_of(decision)))
    assert label in text(lead.get(reverse("console:approvals"), {"state": "decided"}))


def test_the_page_to_visit_opens_in_a_new_tab(lead: Client, caller: Caller) -> None:
    decision = add_question(caller, PAGE)
    page = text(lead.get(page_of(decision)))
    assert 'href="https://shop.example/pay?id=1" target="_blank" rel="noopener noreferrer">Open shop.example<' in page
    assert "Done</button>" in page
    lead.post(page_of(decision), {"action": "accept"})
    assert stored(decision).answer == {"action": "accept"}


def test_operators_decline_without_reading_but_do_not_answer(operator: Client, caller: Caller) -> None:
    for question in (FORM, PAGE):
        decision = add_question(caller, question)
        page = text(operator.get(page_of(decision)))
        assert ("table" in page.partition('id="approval-question"')[2], "shop.example" in page) == (False, False)
        assert ("Answer</button>" in page, "Done</button>" in page, "Decline</button>" in page) == (False, False, True)
        assert operator.post(page_of(decision), {"action": "accept", "field_0": "4"}).status_code == 403
        operator.post(page_of(decision), {"action": "decline"})
        assert stored(decision).answer == {"action": "decline"}


def test_others_cannot_answer(developer: Client, auditor: Client, stranger: Client, caller: Caller) -> None:
    decision = add_question(caller, FORM)
    page = text(developer.get(page_of(decision)))
    assert ("Which &lt;table&gt;?" in page, "Decline</button>" in page) == (True, False)
    for client in (developer, auditor):
        assert client.post(page_of(decision), {"action": "decline"}).status_code == 403
    assert stranger.post(page_of(decision), {"action": "decline"}).status_code == 404
    assert stored(decision).state == "asked"


def test_the_answer_is_hidden_from_viewers_without_content(auditor: Client, caller: Caller) -> None:
    answer = {"action": "accept", "content": {"mail": "ada@mail.example"}}
    decision = add_question(caller, FORM, state="answered", answer=answer, answered_at=now(), decided_by="key:1")
    page = text(auditor.get(page_of(decision)))
    assert ("Answered" in page, "ada@mail.example" in page, "Which" in page) == (True, False, False)


def test_secrets_in_an_answer_are_not_shown(lead: Client, caller: Caller) -> None:
    schema = {"type": "object", "properties": {"api_key": {"type": "string"}}}
    answer = {"action": "accept", "content": {"api_key": "sk-secret"}}
    decision = add_question(caller, Question(message="Key?", schema=schema), state="answered", answer=answer)
    assert "sk-secret" not in text(lead.get(page_of(decision)))
