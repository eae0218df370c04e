"""Writes of callers: creating and cancelling batches. What becomes of them is the workers' business."""

from datetime import timedelta

from conversations.files import storage
from conversations.models import Purpose
from kernel.clock import now
from kernel.errors import Conflict, InvalidValue
from responses.batches.requests import SCOPES, CreateBatch
from responses.batches.selectors import get_batch
from responses.models.batches import Batch, BatchStatus
from responses.runs.ledger import RequestInfo
from tenants import scope
from tenants.audit import audit
from tenants.models import Scope
from tenants.principal import Principal

_WINDOW = timedelta(hours=24)


def create_batch(*, principal: Principal, body: CreateBatch, request: RequestInfo) -> Batch:
    """A batch that waits for a worker. Its lines run with the key that it was created with."""
    principal.require(Scope.BATCHES_WRITE)
    principal.require(SCOPES[body.endpoint])
    at = now()
    with scope.team(principal.team_id):
        _check_input(principal, body.input_file_id)
        batch = Batch.objects.create(
            team_id=principal.team_id,
            api_key_id=principal.key_id,
            created_at=at,
            expires_at=at + _WINDOW,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            metadata=body.metadata,
            input_file_id=body.input_file_id,
            output_seconds=body.output_expires_after.seconds if body.output_expires_after else None,
            request_id=request.request_id,
        )
        _note(batch, principal, "batch.created", request)
    return batch


def _check_input(principal: Principal, file_id: str) -> None:
    file = storage.find_file(team_id=principal.team_id, file_id=file_id)
    if file is None:
        raise storage.unknown_file(file_id, param="input_file_id")
    if file.purpose != Purpose.BATCH:
        message = (
            f"The input of a batch must be a file with the purpose 'batch', but '{file_id}' is for something else."
        )
        raise InvalidValue(message, param="input_file_id")


def cancel_batch(*, principal: Principal, batch_id: str, request: RequestInfo) -> Batch:
    """Begin nothing more of a batch and stop what is under way; what has an answer stays. 409 where it has ended."""
    principal.require(Scope.BATCHES_WRITE)
    with scope.team(principal.team_id):
        batch = get_batch(principal=principal, batch_id=batch_id)
        going_on = Batch.objects.filter(pk=batch.pk, status__in=[BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS])
        cancelled = going_on.update(
            status=BatchStatus.CANCELLING, ending=BatchStatus.CANCELLED, cancelling_at=now(), lease_until=None
        )
        if cancelled:
            _note(batch, principal, "batch.cancelled", request)
        batch = get_batch(principal=principal, batch_id=batch_id)
    if batch.status not in {BatchStatus.CANCELLING, BatchStatus.CANCELLED}:
        raise Conflict(f"Cannot cancel a batch with status '{batch.status}'.")
    return batch


def _note(batch: Batch, principal: Principal, action: str, request: RequestInfo) -> None:
    audit(
        team_id=batch.team_id,
        actor=f"key:{principal.key_id}",
        action=action,
        target=batch.pk,
        request_id=request.request_id,
    )
