"""The page of an approval: its arguments, who may decide, and the decision."""

import pytest
from django.test import Client
from django.urls import reverse

from responses.models import Decision
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import text
from tests.support.api import Caller
from tests.support.decisions import add_decision, stored, waits


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def test_the_page_shows_the_arguments_as_a_table(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller, arguments='{"title":"<b>Dinner</b>","guests":["A","B"],"api_key":"sk-1"}')
    page = text(lead.get(page_of(decision)))
    assert "box.note" in page
    assert '<th scope="row">title</th><td>&lt;b&gt;Dinner&lt;/b&gt;</td>' in page
    assert "sk-1" not in page
    assert ("Approve</button>" in page, "Deny</button>" in page) == (True, True)


@pytest.mark.parametrize(("answer", "state"), [("yes", "granted"), ("no", "denied")])
def test_a_lead_decides(lead: Client, caller: Caller, answer: str, state: str) -> None:
    decision = add_decision(caller)
    page = text(lead.post(page_of(decision), {"approve": answer, "reason": "Seen."}, follow=True))
    row = stored(decision)
    assert (row.state, row.reason, row.decided_by[:5]) == (state, "Seen.", "user:")
    assert not waits(decision)
    assert ("Approve</button>" in page, row.decided_by in page) == (False, True)
    with scope.team(caller.team.pk):
        line = AuditEvent.objects.get(target=decision.pk)
    assert (line.action, line.actor) == (f"approval.{state}", row.decided_by)
    again = text(lead.post(page_of(decision), {"approve": "no", "reason": ""}, follow=True))
    assert "has already been decided" in again
    assert stored(decision).state == state


def test_an_operator_decides_without_reading_the_arguments(operator: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    assert "Dinner" not in text(operator.get(page_of(decision)))
    operator.post(page_of(decision), {"approve": "yes", "reason": ""})
    assert stored(decision).state == "granted"


def test_others_cannot_decide(
    developer: Client, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller
) -> None:
    decision = add_decision(caller)
    assert "Approve</button>" not in text(developer.get(page_of(decision)))
    for client in (developer, auditor, platform_auditor):
        assert client.post(page_of(decision), {"approve": "yes", "reason": ""}).status_code == 403
    assert stranger.post(page_of(decision), {"approve": "yes", "reason": ""}).status_code == 404
    assert stranger.get(page_of(decision)).status_code == 404
    assert stored(decision).state == "asked"


def test_an_invalid_answer_decides_nothing(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    assert lead.post(page_of(decision), {"approve": "perhaps"}).status_code == 200
    assert stored(decision).state == "asked"
