"""Expire decisions that nobody has made in time. The runs that wait for them fail."""

import logging
from collections.abc import Set as AbstractSet

from core.clock import shared_now
from core.errors import ApprovalExpired, Failure, ServerError
from engine.events.response_body import failed
from responses.lifecycle import cancel
from responses.models import IS_AWAITED, Decision, DecisionKind, DecisionState, Response
from responses.runs.decisions import notices, waits
from responses.runs.decisions.listing import subject_of
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.audit import audit

logger = logging.getLogger(__name__)
ACTOR = "system:approvals"
_BATCH_SIZE = 100
EXPIRED = Failure.of(ApprovalExpired("Nobody has decided about the approval request of the response in time."))
_UNKNOWN = Failure.of(
    ServerError(
        "A call of the response was interrupted, and nobody has decided in time what its outcome was. The output "
        "contains the call."
    )
)
_UNANSWERED = Failure.of(ApprovalExpired("Nobody has answered the question of a tool in time."))


def expire_decisions() -> int:
    """Expire the decisions whose time is over, and end the runs that wait for them. Return the number of responses."""
    expired = 0
    with scope.every_team():
        due = Decision.objects.filter(IS_AWAITED, expires_at__lte=shared_now()).order_by("expires_at")
        found = dict(due.values_list("response_id", "team_id")[:_BATCH_SIZE])
    for response_id, team_id in found.items():
        try:
            expired += _expire(response_id, team_id)
        except Exception:
            # One broken run must not stop the others. It is tried again by the next call.
            logger.exception("a decision could not be expired", extra={"response": response_id})
    return expired


def _expire(response_id: str, team_id: str) -> bool:
    with scope.team(team_id):
        # Locked first, as by a decision.
        running = Response.objects.select_for_update(no_key=True).filter(pk=response_id, ended_at=None)
        has_ended = not running.values_list("pk", flat=True)
        rows = list(Decision.objects.filter(IS_AWAITED, response_id=response_id, expires_at__lte=shared_now()))
        at = shared_now()
        Decision.objects.filter(pk__in=[row.pk for row in rows]).update(
            state=DecisionState.EXPIRED, answered_at=at, decided_by=ACTOR
        )
        for row in rows:
            waits.end_wait_of_call(row, at=at)
            audit(
                team_id=team_id,
                actor=ACTOR,
                action="approval.expired",
                target=row.pk,
                after={"tool": subject_of(row).tool, "response": response_id},
            )
            notices.announce_decision(row, DecisionState.EXPIRED.value)
        if not rows or has_ended:
            # A run may fail before it is suspended. Then its decisions are only marked.
            return False
        return cancel.end_run(
            team_id,
            response_id,
            failed(_failure({row.kind for row in rows})),
            actor=ACTOR,
            action="response.failed",
            request=RequestInfo(request_id=""),
        )


def _failure(kinds: AbstractSet[str]) -> Failure:
    """Return the failure of a response whose decisions of these kinds have expired."""
    if kinds == {DecisionKind.UNKNOWN_OUTCOME}:
        return _UNKNOWN
    return EXPIRED if DecisionKind.APPROVAL in kinds else _UNANSWERED
