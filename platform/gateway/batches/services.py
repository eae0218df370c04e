"""Creation and cancellation of batches for clients. Workers make all other changes."""

from datetime import timedelta
from functools import partial

from conversations.files import storage
from conversations.models import Purpose
from core.clock import now, shared_now
from core.errors import Conflict, InvalidValue
from gateway.batches.queue import UNCOUNTED_AFTER
from gateway.batches.requests import SCOPES, CreateBatch
from gateway.batches.selectors import get_batch
from responses.models.batches import OPEN_BATCHES, Batch, BatchStatus
from responses.runs.identity import RequestInfo
from tenants import quotas, scope
from tenants.audit import audit_call
from tenants.principal import Principal

_WINDOW = timedelta(hours=24)


def create_batch(*, principal: Principal, body: CreateBatch, request: RequestInfo) -> Batch:
    """Create a batch, which waits for a worker. Its lines are executed with the caller's API key."""
    # Each line is checked again. The check here prevents batches in which all 50,000 lines would fail.
    principal.require(SCOPES[body.endpoint])
    at = shared_now()
    with scope.team(principal.team_id):
        file_id = body.input_file_id
        file = storage.find_file(team_id=principal.team_id, file_id=file_id)
        if file is None:
            raise storage.unknown_file(file_id, param="input_file_id")
        if file.purpose != Purpose.BATCH:
            raise InvalidValue(
                f"The input file of a batch must have the purpose 'batch', but '{file_id}' has '{file.purpose}'.",
                param="input_file_id",
            )
        quotas.check(
            principal, "open_batches", adds=1, used=partial(count_open_batches, principal), unit="open batches"
        )
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
        audit_call(principal, "batch.created", batch.pk)
    return batch


def count_open_batches(principal: Principal, key_id: str | None) -> int:
    """Return the number of batches of the team, or of one key, that have not ended.

    Batches whose results could not be stored for a day do not count, because that is not the client's fault.
    """
    rows = Batch.objects.filter(team_id=principal.team_id, status__in=OPEN_BATCHES, file_failures__lt=UNCOUNTED_AFTER)
    return (rows if key_id is None else rows.filter(api_key=key_id)).count()


def cancel_batch(*, principal: Principal, batch_id: str) -> Batch:
    """Cancel a batch: no more lines start, running lines are stopped, and existing results are kept.

    Raises NotFound, or Conflict if the batch has ended.
    """
    with scope.team(principal.team_id):
        batch = get_batch(principal=principal, batch_id=batch_id)
        active = Batch.objects.filter(pk=batch.pk, status__in=[BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS])
        # Without a lease, any worker can end the batch immediately. A worker that is reading the input file fails to
        # commit.
        cancelled = active.update(
            status=BatchStatus.CANCELLING,
            ending=BatchStatus.CANCELLED,
            cancelling_at=now(),
            lease_until=None,
            files_retry_at=None,
        )
        if cancelled:
            audit_call(principal, "batch.cancelled", batch.pk)
        batch = get_batch(principal=principal, batch_id=batch_id)
    if batch.status not in {BatchStatus.CANCELLING, BatchStatus.CANCELLED}:
        raise Conflict(f"Cannot cancel a batch with status '{batch.status}'.")
    return batch
