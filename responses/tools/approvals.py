"""Answers to MCP approval requests: find them in the input of a request, and record them.

An approval belongs to its call. As long as the call was not made, another request may contain the answer again if the
response of the first one has ended. Of several concurrent answers, only one makes the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from conversations.items import McpApprovalRequest, McpApprovalResponse, McpCall, StoredItem
from core.clock import now, shared_now
from core.errors import ApprovalAwaited, InvalidValue, NotFound
from engine.calls.client_tools import upstream_name
from engine.calls.outcomes import request_digest
from engine.turn import Call
from responses.models import Decision, DecisionKind, DecisionState, Response, ToolCall
from responses.runs.store import CallUpdate
from responses.schema import CreateResponse
from tenants import scope
from tenants.audit import audit


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """An approval request and the client's answer to it."""

    request: McpApprovalRequest
    request_id: str
    approve: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedApproval:
    """A decision about a call. `definition` is the digest of the tool's definition at the time of the request.

    `has_waited`: the run has waited for the decision, so its history must contain the decision. `turn` is then the
    number of the turn that asked.
    """

    request: McpApprovalRequest
    request_id: str
    definition: str
    approve: bool = True
    reason: str = ""
    has_waited: bool = False
    turn: int = 0

    @property
    def call(self) -> Call:
        """The call to make if it was approved. Its call id is the id of the request, so that no run makes it twice."""
        name = upstream_name(self.request.server_label, self.request.name)
        return Call(item_id="", call_id=self.request_id, name=name, arguments=self.request.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOutcome:
    """Result of recording answers: the approved calls, and updates of the calls that waited for the answers."""

    granted: Sequence[DecidedApproval] = ()
    calls: Sequence[CallUpdate] = ()


def approval_answers(given: Sequence[object], items: Sequence[StoredItem]) -> list[ApprovalAnswer]:
    """Return the approval responses in `given`, each with its request from `items`.

    An answer whose call is already in `items` is skipped, because clients that manage the context themselves send old
    answers again.
    """
    responses = [item for item in given if isinstance(item, McpApprovalResponse)]
    if not responses:
        return []
    requests = {item.id: item for item in items if isinstance(item, McpApprovalRequest)}
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)}
    return [
        ApprovalAnswer(
            request=requests[answer.approval_request_id],
            request_id=answer.approval_request_id,
            approve=answer.approve,
            reason=answer.reason or "",
        )
        for answer in responses
        if answer.approval_request_id not in made
    ]


def check_labels(answers: Sequence[ApprovalAnswer], labels: Sequence[str]) -> None:
    """Raise InvalidValue if the server of an approved call is not in the request's `tools`."""
    for answer in answers:
        # The credentials of servers are not stored, so every request must contain the server again.
        label = answer.request.server_label
        if answer.approve and label not in labels:
            raise InvalidValue(
                f"The MCP server '{label}' of approval request '{answer.request_id}' is not in 'tools'.", param="tools"
            )


def record_answers(
    *, team_id: str, actor: str, response_id: str, answers: Sequence[ApprovalAnswer], request_id: str = ""
) -> ApprovalOutcome:
    """Record the answers of a request; call it in a database thread.

    Of two requests that answer the same approval request, the second is rejected with a 400 unless the first one has
    failed before the call was made.
    """
    ids = [answer.request_id for answer in answers]
    if len(set(ids)) < len(ids):
        raise InvalidValue("An approval request can only be answered once.", param="input")
    with scope.team(team_id), transaction.atomic():
        # One transaction: either all answers of a request count or none.
        rows = {row.pk: row for row in Decision.objects.filter(team_id=team_id, pk__in=ids)}
        fresh = []
        for answer in answers:
            row = rows.get(answer.request_id)
            if row is None:
                raise NotFound(f"Approval request with id '{answer.request_id}' not found.", param="input")
            # A client may change the item that it sends back. Only the call that was shown to the user may be approved.
            if row.request != request_digest(answer.request.wire()):
                raise InvalidValue(
                    f"Approval request '{answer.request_id}' does not match the one that was issued.", param="input"
                )
            # Sending a denial again changes nothing, so clients may keep it in their context.
            if answer.approve or row.state != DecisionState.DENIED:
                fresh.append((answer, row))
        for answer, row in fresh:
            _check_open(row)
            state = DecisionState.GRANTED if answer.approve else DecisionState.DENIED
            # The filter decides races: only one of two concurrent answers updates the row.
            same = Decision.objects.filter(
                pk=row.pk, state=row.state, answered_in=row.answered_in, dispatched_at__isnull=True
            )
            answered = {"answered_in": response_id, "answered_at": shared_now()}
            if same.update(state=state, decided_by=actor, reason=answer.reason, **answered) != 1:
                raise _already_answered(row)
            audit(
                team_id=team_id,
                actor=actor,
                action=f"approval.{state.value}",
                target=row.pk,
                after={"response": row.response_id, "reason": answer.reason},
                request_id=request_id,
            )
    return ApprovalOutcome(
        granted=[
            DecidedApproval(request=answer.request, request_id=row.pk, definition=row.definition)
            for answer, row in fresh
            if answer.approve
        ],
        calls=[
            CallUpdate(
                response_id=row.response_id,
                call_id=row.call_id,
                status="approved" if answer.approve else "denied",
                ended_at=now(),
            )
            for answer, row in fresh
        ],
    )


def _check_open(row: Decision) -> None:
    """Raise an API error unless a request may answer."""
    if row.state == DecisionState.ASKED and row.expires_at is None:
        return
    owner = row.answered_in or row.response_id
    ended = Response.objects.filter(pk=owner).values_list("ended_at", flat=True).first()
    is_stored = ended is not None or Response.objects.filter(pk=owner).exists()
    if row.state == DecisionState.ASKED and is_stored and ended is None:
        raise ApprovalAwaited(row.pk, response_id=row.response_id, param="input")
    # A response that was never stored counts as being created for a while, like the owner of a conversation lock.
    long_ago = shared_now() - timedelta(seconds=10 * settings.LEASE_SECONDS)
    has_failed = ended is not None if is_stored else row.answered_at is not None and row.answered_at < long_ago
    is_usable = row.state in {DecisionState.ASKED, DecisionState.GRANTED} and row.dispatched_at is None
    if not is_usable or not has_failed:
        raise _already_answered(row)


def _already_answered(row: Decision) -> InvalidValue:
    return InvalidValue(f"Approval request '{row.pk}' has already been answered.", param="input")


def has_answers(body: CreateResponse) -> bool:
    """Return true if the input of a request contains answers."""
    return not isinstance(body.input, str) and any(isinstance(item, McpApprovalResponse) for item in body.input)


def withdraw_answers(*, team_id: str, response_id: str) -> None:
    """Make the approval requests usable again that the request of a response has answered, if it was not stored.

    Call it in a database thread.
    """
    with scope.team(team_id):
        if not Response.objects.filter(pk=response_id).exists():
            answered = Decision.objects.filter(answered_in=response_id, dispatched_at__isnull=True)
            answered.update(state=DecisionState.ASKED, answered_in=None, answered_at=None, decided_by="", reason="")


def decided_approvals(
    response_id: str, items: Sequence[StoredItem], *, output: Sequence[StoredItem]
) -> list[DecidedApproval]:
    """Return the decisions on which the run of a response depends, to resume the run.

    They are the approvals in its request, whose approval requests are in `items`, and the decisions for which the run
    has waited, whose approval requests are in its `output`.
    """
    requests = {item.id: item for item in (*items, *output) if isinstance(item, McpApprovalRequest)}
    granted = Q(answered_in=response_id, state=DecisionState.GRANTED)
    waited = Q(
        response_id=response_id,
        answered_in=None,
        expires_at__isnull=False,
        kind=DecisionKind.APPROVAL,
        state__in=[DecisionState.GRANTED, DecisionState.DENIED],
    )
    rows = list(Decision.objects.filter(granted | waited).order_by("asked_at", "pk"))
    turns: dict[str, int] = {}
    if any(row.response_id == response_id for row in rows):
        turns = dict(ToolCall.objects.filter(response_id=response_id).values_list("call_id", "turn"))
    return [
        DecidedApproval(
            request=requests[row.pk],
            request_id=row.pk,
            definition=row.definition,
            approve=row.state == DecisionState.GRANTED,
            reason=row.reason,
            has_waited=row.response_id == response_id,
            turn=turns.get(row.call_id, 0),
        )
        for row in rows
        if row.pk in requests
    ]
