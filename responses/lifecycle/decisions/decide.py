"""Make a decision for which a run waits. The last open decision of a run lets the workers continue the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from core.clock import now, shared_now
from core.errors import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalNotAwaited,
    InvalidValue,
    MissingParameter,
    NotFound,
    UnsupportedParameter,
)
from engine.calls.answer_forms import Action, InvalidAnswer, check_answer
from engine.calls.questions import Question
from engine.calls.waits import Outcome
from engine.events.types import Body
from responses.lifecycle import queue
from responses.models import IS_AWAITED, Decision, DecisionKind, DecisionState, Response, ToolCall
from responses.runs import access, selectors
from responses.runs.decisions import notices, waits
from responses.runs.decisions.listing import subject_of
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A person's decision about a call.

    An approval needs `approve`. A call with an unknown outcome needs the `outcome`, and may have a `result` if the
    outcome is "done". The model reads the result, and the reason of a denial or of a call that was not done. A question
    of a tool needs an `action`, and has `content` if the action is "accept" and the question has a form.
    """

    approve: bool | None = None
    outcome: Outcome | None = None
    result: str | None = None
    action: Action | None = None
    content: Mapping[str, Any] | None = None
    reason: str = ""

    def check(self, kind: str) -> None:
        """Raise `BadRequest` (400) if the answer does not suit this kind of decision."""
        needed, allowed = _FIELDS[kind]
        for name in ("approve", "outcome", "result", "action", "content"):
            if name not in allowed and getattr(self, name) is not None:
                raise UnsupportedParameter(f"A decision of the kind '{kind}' has no '{name}'.", param=name)
        if getattr(self, needed) is None:
            raise MissingParameter(needed)
        if self.result is not None and self.outcome is not Outcome.DONE:
            raise InvalidValue("A 'result' requires the outcome 'done'.", param="result")

    @property
    def state(self) -> DecisionState:
        """State of a decision with this answer."""
        if self.approve is None:
            return DecisionState.ANSWERED
        return DecisionState.GRANTED if self.approve else DecisionState.DENIED

    @property
    def word(self) -> str:
        """The decision in one word, for webhooks."""
        return self.action or (self.outcome or self.state).value

    def stored(self, question: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the answer as JSON for the run; None for an approval. Raises `BadRequest` (400).

        `question` is the stored question of a tool, which the answer must match.
        """
        if self.action is not None and question is not None:
            try:
                return check_answer(Question.restored(question), self.action, self.content)
            except InvalidAnswer as invalid:
                param = "content" if invalid.field is None else f"content.{invalid.field}"
                raise InvalidValue(invalid.message, param=param) from invalid
        if self.outcome is None:
            return None
        given = {"outcome": self.outcome.value, "result": self.result or "", "reason": self.reason}
        return {name: value for name, value in given.items() if value}


# The field that each kind of decision needs, and all fields that it may have besides the reason.
_FIELDS = {
    DecisionKind.APPROVAL.value: ("approve", {"approve"}),
    DecisionKind.UNKNOWN_OUTCOME.value: ("outcome", {"outcome", "result"}),
    DecisionKind.QUESTION.value: ("action", {"action", "content"}),
}


def decide_for_client(
    *, principal: Principal, response_id: str, decision_id: str, answer: Answer, request: RequestInfo
) -> Body:
    """Decide on behalf of an API key, and return the body of the response.

    Raises `NotFound` for an unknown id, and `BadRequest` (400) if the decision is not open.
    """
    with scope.team(principal.team_id):
        access.get_response(principal=principal, response_id=response_id)
    decide(
        team_id=principal.team_id,
        response_id=response_id,
        decision_id=decision_id,
        answer=answer,
        actor=principal.actor,
        request=request,
    )
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
        (body,) = selectors.public_bodies([response])
    return body


def decide(
    *,
    team_id: str,
    response_id: str,
    decision_id: str,
    answer: Answer,
    actor: str,
    request: RequestInfo,
) -> None:
    """Make a decision about a call of a waiting response. `actor` is named in the audit log.

    Raises `NotFound` for an unknown id, and `BadRequest` (400) if the decision is not open or of another kind.
    """
    with scope.team(team_id):
        # The response is locked first, as by the step that suspends its run. So the run is either suspended already, or
        # finds the decision when it is about to wait. Concurrent decisions are made one after the other.
        ended_at = Response.objects.select_for_update(no_key=True).values_list("ended_at", flat=True)
        found = list(ended_at.filter(pk=response_id, team_id=team_id))
        row = Decision.objects.filter(pk=decision_id, response_id=response_id, team_id=team_id).first()
        if row is None or not found:
            raise NotFound(f"Approval request with id '{decision_id}' not found.")
        answer.check(row.kind)
        _check_open(row, has_ended=found != [None])
        at, state, reason = shared_now(), answer.state, answer.reason
        Decision.objects.filter(pk=row.pk).update(
            state=state, answered_at=at, decided_by=actor, reason=reason, answer=answer.stored(row.question)
        )
        if answer.approve is not None:
            asked = ToolCall.objects.filter(response_id=response_id, call_id=row.call_id, status="asked")
            asked.update(status="approved" if answer.approve else "denied", ended_at=now())
        outcome = {} if answer.outcome is None else {"outcome": answer.outcome.value}
        # The content of an answer is not in the audit log, as that of calls is not.
        outcome |= {} if answer.action is None else {"action": answer.action}
        audit(
            team_id=team_id,
            actor=actor,
            action=f"approval.{state.value}",
            target=row.pk,
            after={"tool": subject_of(row).tool, "response": response_id, **outcome, "reason": reason},
            request_id=request.request_id,
        )
        notices.announce_decision(row, answer.word)
        if answer.outcome in {Outcome.DONE, Outcome.NOT_DONE}:
            waits.end_wait_of_call(row, at=at)
        if not Decision.objects.filter(IS_AWAITED, response_id=response_id).exists():
            waits.end_wait_of_run(response_id, at=at)
            transaction.on_commit(queue.notify_workers)


def _check_open(row: Decision, *, has_ended: bool) -> None:
    match row.state:
        case DecisionState.GRANTED | DecisionState.DENIED | DecisionState.ANSWERED:
            raise ApprovalDecided(f"Approval request '{row.pk}' has already been decided.")
        case DecisionState.EXPIRED:
            raise ApprovalExpired(f"Approval request '{row.pk}' has expired.")
        case _ if row.expires_at is None:
            raise ApprovalNotAwaited(
                f"No response waits for approval request '{row.pk}'. Send an 'mcp_approval_response' item in the input "
                "of the next response."
            )
        case _ if has_ended:
            raise ApprovalNotAwaited(f"The response of approval request '{row.pk}' has ended.")
        case _ if row.expires_at <= shared_now():
            raise ApprovalExpired(f"Approval request '{row.pk}' has expired.")
