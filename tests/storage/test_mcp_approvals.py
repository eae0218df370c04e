"""Approvals: only one of several concurrent answers counts, and they are deleted with their response."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

from django.db import connection

from conversations.items import McpApprovalRequest
from core.clock import now
from core.errors import BadRequest
from core.ids import new_id
from engine.calls.outcomes import request_digest
from responses.lifecycle.cancel import cancel_run, delete_response
from responses.models import Decision
from responses.runs.identity import RequestInfo
from responses.tools import approvals
from responses.tools.approvals import ApprovalAnswer
from tenants import directory, scope
from tests.support.api import Caller
from tests.support.stored_runs import Begun, begin, response_of

RIVALS = 4


def pending_call(caller: Caller, begun: Begun) -> McpApprovalRequest:
    """Store a call of this response that waits for approval."""
    item = McpApprovalRequest(id=new_id("mcpr"), server_label="box", name="note", arguments="{}")
    with scope.team(caller.team.pk):
        Decision.objects.create(
            id=item.id or "",
            team=caller.team,
            response_id=begun.who.response_id,
            call_id="call_1",
            request=request_digest(item.wire()),
            definition="d",
        )
    return item


def counted(caller: Caller, item: McpApprovalRequest, together: Barrier, number: int) -> bool:
    """Return whether the answer of this request counted."""
    answer = ApprovalAnswer(request=item, request_id=item.id or "", approve=True)
    together.wait()
    try:
        outcome = approvals.record_answers(
            team_id=caller.team.pk, actor="key:test", response_id=f"resp_{number}", answers=[answer]
        )
    except BadRequest:
        return False
    finally:
        connection.close()
    return len(outcome.granted) == 1


def test_only_one_of_two_concurrent_answers_counts(caller: Caller) -> None:
    item = pending_call(caller, begin(caller, input="Go."))
    with ThreadPoolExecutor(RIVALS) as pool:
        outcomes = list(pool.map(partial(counted, caller, item, Barrier(RIVALS)), range(RIVALS)))
    assert outcomes.count(True) == 1
    with scope.team(caller.team.pk):
        row = Decision.objects.get(pk=item.id)
    assert (row.state, row.answered_in) == ("granted", f"resp_{outcomes.index(True)}")


def test_an_approval_is_deleted_with_its_response(caller: Caller) -> None:
    begun = begin(caller, input="Go.")
    item = pending_call(caller, begun)
    delete_response(
        actor=directory.principal(caller.secret).actor,
        response=response_of(begun),
        request=RequestInfo(request_id="req_1"),
    )
    with scope.team(caller.team.pk):
        assert not Decision.objects.filter(pk=item.id).exists()


def test_only_one_of_two_concurrent_answers_replaces_the_answer_of_a_run_that_failed(caller: Caller) -> None:
    item, failed = pending_call(caller, begin(caller, input="Go.")), begin(caller, input="I agree.")
    with scope.team(caller.team.pk):
        answered = Decision.objects.filter(pk=item.id)
        answered.update(state="granted", answered_in=failed.who.response_id, answered_at=now())
    # The run with the first answer may still make the call.
    assert not counted(caller, item, Barrier(1), 0)
    cancel_run(
        team_id=caller.team.pk,
        actor="key:test",
        response_id=failed.who.response_id,
        request=RequestInfo(request_id="req_1"),
    )
    with ThreadPoolExecutor(RIVALS) as pool:
        outcomes = list(pool.map(partial(counted, caller, item, Barrier(RIVALS)), range(RIVALS)))
    assert outcomes.count(True) == 1


def test_an_approval_of_a_call_that_was_made_is_used_up(caller: Caller) -> None:
    item, ended = pending_call(caller, begin(caller, input="Go.")), begin(caller, input="I agree.")
    with scope.team(caller.team.pk):
        answered = Decision.objects.filter(pk=item.id)
        answered.update(state="granted", answered_in=ended.who.response_id, answered_at=now(), dispatched_at=now())
    cancel_run(
        team_id=caller.team.pk,
        actor="key:test",
        response_id=ended.who.response_id,
        request=RequestInfo(request_id="req_1"),
    )
    assert not counted(caller, item, Barrier(1), 0)
