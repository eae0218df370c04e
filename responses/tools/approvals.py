"""Answers to MCP approval requests: find them in the input of a request, and record each answer once."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from conversations.items import McpApprovalRequest, McpApprovalResponse, McpCall, StoredItem
from core.clock import now
from core.errors import InvalidValue, NotFound
from engine.calls.client_tools import upstream_name
from engine.calls.outcomes import request_digest
from engine.turn import Call
from responses.models import Approval, ApprovalState
from responses.runs.store import CallUpdate
from tenants import scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """An approval request and the client's answer to it."""

    request: McpApprovalRequest
    request_id: str
    approve: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedApproval:
    """A call that was approved. `definition` is the digest of the tool's definition at the time of the approval."""

    request: McpApprovalRequest
    request_id: str
    definition: str

    @property
    def call(self) -> Call:
        """The approved call. Its call id is the id of the approval request, so that no run makes the call twice."""
        name = upstream_name(self.request.server_label, self.request.name)
        return Call(item_id="", call_id=self.request_id, name=name, arguments=self.request.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOutcome:
    """Result of recording answers: the approved calls, and updates of the calls that waited for the answers."""

    granted: Sequence[GrantedApproval] = ()
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


def record_answers(*, team_id: str, response_id: str, answers: Sequence[ApprovalAnswer]) -> ApprovalOutcome:
    """Record the answers of a request; call it in a database thread.

    Of two requests that answer the same approval request, the second is rejected with a 400.
    """
    ids = [answer.request_id for answer in answers]
    if len(set(ids)) < len(ids):
        raise InvalidValue("An approval request can only be answered once.", param="input")
    with scope.team(team_id), transaction.atomic():
        # One transaction: either all answers of a request count or none.
        rows = {row.pk: row for row in Approval.objects.filter(team_id=team_id, pk__in=ids)}
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
            if answer.approve or row.state != ApprovalState.DENIED:
                fresh.append((answer, row))
        for answer, row in fresh:
            state = ApprovalState.GRANTED if answer.approve else ApprovalState.DENIED
            asked = Approval.objects.filter(pk=row.pk, state=ApprovalState.ASKED)
            # The filter on the state decides races: only one of two concurrent answers updates the row.
            if asked.update(state=state, answered_at=now(), answered_in=response_id) != 1:
                raise InvalidValue(f"Approval request '{row.pk}' has already been answered.", param="input")
    return ApprovalOutcome(
        granted=[
            GrantedApproval(request=answer.request, request_id=row.pk, definition=row.definition)
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


def granted_approvals(response_id: str, items: Sequence[StoredItem]) -> list[GrantedApproval]:
    """Return the approvals that the request of a response has granted, to resume the response's run."""
    requests = {item.id: item for item in items if isinstance(item, McpApprovalRequest)}
    rows = Approval.objects.filter(answered_in=response_id, state=ApprovalState.GRANTED).order_by("asked_at", "pk")
    return [
        GrantedApproval(request=requests[row.pk], request_id=row.pk, definition=row.definition)
        for row in rows
        if row.pk in requests
    ]
