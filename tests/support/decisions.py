"""Rows of decisions for which responses wait, as runs would create them."""

from datetime import timedelta
from typing import Any

from core.clock import now
from core.ids import new_id
from engine.calls.questions import Question
from responses.models import Decision, DecisionKind, Response, Status
from tenants import scope
from tests.admin.rows import add_call, add_response
from tests.support.api import Caller


def add_decision(caller: Caller, *, arguments: str = '{"title":"Dinner"}', **columns: Any) -> Decision:
    """Create a response of a caller that waits for the approval of a call of `note`."""
    until = now() + timedelta(days=7)
    response = add_response(caller, status=Status.IN_PROGRESS, background=True, waits_until=until)
    add_call(response, name="box__note", kind="mcp", status="asked", arguments=arguments, ended_at=None)
    defaults = {"id": new_id("mcpr"), "call_id": "call_1", "request": "d", "definition": "d", "expires_at": until}
    with scope.team(caller.team.pk):
        return Decision.objects.create(team=caller.team, response=response, **{**defaults, **columns})


def add_question(caller: Caller, question: Question, **columns: Any) -> Decision:
    """Create a response of a caller whose call of `note` asks a question."""
    known = {"id": new_id("dec"), "kind": DecisionKind.QUESTION, "question": question.stored(), "turn": 0, "attempt": 1}
    return add_decision(caller, **{**known, **columns})


def stored(decision: Decision) -> Decision:
    """Return the present row of a decision."""
    with scope.team(decision.team_id):
        return Decision.objects.get(pk=decision.pk)


def waits(decision: Decision) -> bool:
    """Return whether the response of a decision waits."""
    with scope.team(decision.team_id):
        return Response.objects.get(pk=decision.response_id).waits_until is not None
