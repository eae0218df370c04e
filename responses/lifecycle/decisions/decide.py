"""Make a decision for which a run waits. The last open decision of a run lets the workers continue the run."""

from dataclasses import dataclass

from django.db import transaction

from core.clock import now, shared_now
from core.errors import ApprovalDecided, ApprovalExpired, ApprovalNotAwaited, NotFound
from engine.events.types import Body
from responses.lifecycle import queue
from responses.models import IS_AWAITED, Decision, DecisionState, Response, ToolCall
from responses.runs import access, selectors
from responses.runs.decisions import notices
from responses.runs.decisions.listing import subject_of
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A person's decision about a call. The model reads the reason of a denial."""

    approve: bool
    reason: str = ""


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
        output = selectors.outputs([response]).get(response_id, [])
    return selectors.public_body(response, output)


def decide(
    *,
    team_id: str,
    response_id: str,
    decision_id: str,
    answer: Answer,
    actor: str,
    request: RequestInfo,
) -> None:
    """Approve or deny the call of a waiting response. `actor` is named in the audit log.

    Raises `NotFound` for an unknown id, and `BadRequest` (400) if the decision is not open.
    """
    with scope.team(team_id):
        # The response is locked first, as by the step that suspends its run. So the run is either suspended already, or
        # finds the decision when it is about to wait. Concurrent decisions are made one after the other.
        ended_at = Response.objects.select_for_update(no_key=True).values_list("ended_at", flat=True)
        found = list(ended_at.filter(pk=response_id, team_id=team_id))
        row = Decision.objects.filter(pk=decision_id, response_id=response_id, team_id=team_id).first()
        if row is None or not found:
            raise NotFound(f"Approval request with id '{decision_id}' not found.")
        _check_open(row, has_ended=found != [None])
        reason = answer.reason
        state = DecisionState.GRANTED if answer.approve else DecisionState.DENIED
        Decision.objects.filter(pk=row.pk).update(
            state=state, answered_at=shared_now(), decided_by=actor, reason=reason
        )
        asked = ToolCall.objects.filter(response_id=response_id, call_id=row.call_id, status="asked")
        asked.update(status="approved" if answer.approve else "denied", ended_at=now())
        audit(
            team_id=team_id,
            actor=actor,
            action=f"approval.{state.value}",
            target=row.pk,
            after={"tool": subject_of(row).tool, "response": response_id, "reason": reason},
            request_id=request.request_id,
        )
        notices.announce_decision(row, state)
        if not Decision.objects.filter(IS_AWAITED, response_id=response_id).exists():
            Response.objects.filter(pk=response_id).update(waits_until=None)
            transaction.on_commit(queue.notify_workers)


def _check_open(row: Decision, *, has_ended: bool) -> None:
    match row.state:
        case DecisionState.GRANTED | DecisionState.DENIED:
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
