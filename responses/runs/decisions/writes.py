"""Writes of steps that concern decisions: request one, wait for one, and use up an approval."""

from collections.abc import Iterable, Sequence

from conversations.items import McpApprovalRequest
from core.db.statement_pipeline import Statement
from engine.calls.outcomes import request_digest
from engine.state import PendingCall
from engine.steps import CallRecord
from responses.models import SUSPENDED, Decision, DecisionState
from responses.runs.identity import RunIdentity
from responses.runs.rows import Row, new_row
from responses.runs.store import GUARDED, ExtraWrite

_APPROVED = f"{McpApprovalRequest.prefix}_"
# The guard of the change has locked the row of the response, and a decision locks it first as well. So a decision is
# either seen here, or finds the run suspended. If nothing is left to decide, the run can be claimed at once.
#
# The attempt does not count, because the run has not failed.
_SUSPEND = Statement(f"""
    WITH suspended AS (SELECT id FROM json_to_recordset($1::json) AS given (id text, guard text) WHERE {GUARDED})
    UPDATE responses_response AS response SET
        lease_owner = NULL, lease_until = NULL, isolation = {SUSPENDED}, attempt = greatest(attempt - 1, 0),
        (waits_until, waits_since) = (
            SELECT min(expires_at), CASE WHEN count(*) > 0 THEN now() END FROM responses_approval
            WHERE response_id = response.id AND state = '{DecisionState.ASKED}' AND expires_at IS NOT NULL
        )
    WHERE id = ANY (ARRAY(SELECT id FROM suspended))
""")  # noqa: S608 - constants only
# From this moment on, the approval is used up.
_DISPATCH = Statement(f"""
    WITH made AS (SELECT id FROM json_to_recordset($1::json) AS given (id text, guard text) WHERE {GUARDED})
    UPDATE responses_approval SET dispatched_at = now()
    WHERE id = ANY (ARRAY(SELECT id FROM made)) AND dispatched_at IS NULL
""")  # noqa: S608 - constants only


def decision_rows(identity: RunIdentity, calls: Iterable[CallRecord]) -> list[Row]:
    """Return the rows of the decisions that these calls need.

    Unstored responses have them, too: they contain digests, but no content.
    """
    return [
        new_row(
            Decision,
            id=call.ask.item["id"],
            team_id=identity.team_id,
            response_id=identity.response_id,
            call_id=call.call.call_id,
            turn=call.turn,
            request=request_digest(call.ask.item),
            definition=call.ask.definition,
            expires_at=call.expires_at,
        )
        for call in calls
        if call.ask is not None
    ]


def waiting_rows(identity: RunIdentity, calls: Iterable[PendingCall]) -> list[Row]:
    """Return the rows of the decisions for which these calls wait."""
    return [
        new_row(
            Decision,
            id=call.decision.id,
            kind=call.decision.kind.value,
            team_id=identity.team_id,
            response_id=identity.response_id,
            call_id=call.call.call_id,
            turn=call.turn,
            attempt=call.attempt,
            request="",
            definition="",
            question=call.decision.question,
            expires_at=call.decision.expires_at,
        )
        for call in calls
        if call.decision is not None
    ]


def suspension(response_id: str) -> ExtraWrite:
    """Return the write that releases a run until the decisions for which it waits are made."""
    return ExtraWrite(_SUSPEND, {"id": response_id})


def dispatches(calls: Sequence[PendingCall]) -> list[ExtraWrite]:
    """Return the writes that use up the approvals of calls that are about to be made."""
    # The call id of an approved call is the id of its approval request.
    ids = [pending.call.call_id for pending in calls if pending.call.call_id.startswith(_APPROVED)]
    return [ExtraWrite(_DISPATCH, {"id": call_id}) for call_id in ids]
