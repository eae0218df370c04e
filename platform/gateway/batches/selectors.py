"""Reads: the batches of a team, and their representation in the API."""

from datetime import datetime

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from core.clock import unix
from core.errors import NotFound
from core.http.pagination import Page, PageRequest, keyset
from gateway.batches import objects
from responses.models.batches import Batch, BatchLine, BatchStatus, LineState
from tenants.principal import Principal


def _counted(team_id: str) -> "QuerySet[Batch]":
    # One query for the row and the counts: when a batch ends, its lines are deleted and counted in the row instead, and
    # two queries could miss or count them twice.
    rows: QuerySet[Batch] = Batch.objects.filter(team_id=team_id)
    return rows.annotate(lines_completed=_count(LineState.COMPLETED), lines_failed=_count(LineState.FAILED))


def _count(state: LineState) -> Coalesce:
    lines = BatchLine.objects.filter(batch=OuterRef("pk"), state=state).order_by().values("batch")
    return Coalesce(Subquery(lines.annotate(n=Count("id")).values("n")), 0)


def get_batch(*, principal: Principal, batch_id: str) -> Batch:
    """Return a batch of the caller's team. Raises NotFound for an unknown id or another team's id."""
    found = find_batch(team_id=principal.team_id, batch_id=batch_id)
    if found is None:
        raise unknown_batch(batch_id)
    return found


def find_batch(*, team_id: str, batch_id: str) -> Batch | None:
    """Return a team's batch, or None."""
    return _counted(team_id).filter(pk=batch_id).first()


def unknown_batch(batch_id: str, *, param: str | None = None) -> NotFound:
    """Return the 404 error for a batch that does not exist or belongs to another team."""
    return NotFound(f"No batch found with id '{batch_id}'.", param=param)


def list_batches(*, team_id: str, page: PageRequest) -> Page[Batch]:
    """Return a page of the team's batches."""
    return keyset(
        _counted(team_id),
        page=page,
        find=lambda cursor: find_batch(team_id=team_id, batch_id=cursor),
        unknown=unknown_batch,
    )


def public_batch(batch: Batch) -> objects.Batch:
    """Return the `batch` object of the API."""
    public: objects.Batch = {
        "id": batch.pk,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": None if batch.errors is None else {"object": "list", "data": batch.errors},
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix(batch.created_at),
        "expires_at": unix(batch.expires_at),
        "in_progress_at": _unix(batch.in_progress_at),
        "finalizing_at": _unix(batch.finalizing_at),
        "cancelling_at": _unix(batch.cancelling_at),
        "completed_at": _ended(batch, BatchStatus.COMPLETED),
        "failed_at": _ended(batch, BatchStatus.FAILED),
        "expired_at": _ended(batch, BatchStatus.EXPIRED),
        "cancelled_at": _ended(batch, BatchStatus.CANCELLED),
        "request_counts": {
            "total": batch.total,
            # A batch that was just created does not come from a query with counts, and has no lines yet.
            "completed": batch.completed + getattr(batch, "lines_completed", 0),
            "failed": batch.failed + getattr(batch, "lines_failed", 0),
        },
        "metadata": batch.metadata,
    }
    if batch.model:
        public["model"] = batch.model
    # The totals are written when the batch ends.
    if batch.ended_at is not None:
        public["usage"] = {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        }
    return public


def _ended(batch: Batch, status: BatchStatus) -> int | None:
    return _unix(batch.ended_at) if batch.status == status else None


def _unix(moment: datetime | None) -> int | None:
    return None if moment is None else unix(moment)
