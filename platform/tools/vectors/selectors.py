"""Reads of vector stores, their files and file batches, and their JSON representations.

An unknown id and the id of another team raise the same error.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from django.db.models import Count, Q, QuerySet, Sum

from core.clock import now, unix
from core.errors import NotFound
from core.http.pagination import Page, PageRequest, keyset
from responses.models.vector_stores import EntryStatus, VectorChunk, VectorStore, VectorStoreBatch, VectorStoreFile
from tenants.principal import Principal
from tools.vectors import objects

AUTO_SIZES = (800, 400)
"""Default chunk size and overlap in tokens."""
_COUNTS = {
    f"n_{status.value}": Count("entries", filter=Q(entries__status=status))
    for status in (EntryStatus.IN_PROGRESS, EntryStatus.COMPLETED, EntryStatus.CANCELLED, EntryStatus.FAILED)
}


def get_store(*, principal: Principal, store_id: str, param: str | None = None) -> VectorStore:
    """Return a store of the caller's team with its file counts. Raises NotFound for an unknown id."""
    found = _counted(VectorStore.objects.filter(pk=store_id, team_id=principal.team_id)).first()
    if found is None:
        raise unknown_store(store_id, param=param)
    return found


def unknown_store(store_id: str, *, param: str | None = None) -> NotFound:
    """Return the error for an unknown store, also used for stores of other teams."""
    # The same answer for both, so that ids of other teams cannot be probed.
    return NotFound(f"Vector store with id '{store_id}' not found.", param=param)


def get_batch(*, principal: Principal, store_id: str, batch_id: str) -> VectorStoreBatch:
    """Return a file batch of a store. Raises NotFound for an unknown id."""
    rows = VectorStoreBatch.objects.filter(pk=batch_id, store_id=store_id, team_id=principal.team_id)
    found = rows.annotate(**_COUNTS).first()
    if found is None:
        raise NotFound(f"No file batch found with id '{batch_id}' in vector store '{store_id}'.")
    return found


def get_entry(*, principal: Principal, store_id: str, file_id: str) -> VectorStoreFile:
    """Return a file of a store. Raises NotFound for an unknown id."""
    found = VectorStoreFile.objects.filter(store_id=store_id, file_id=file_id, team_id=principal.team_id).first()
    if found is None:
        raise unknown_entry(store_id, file_id)
    return found


def unknown_entry(store_id: str, file_id: str, *, param: str | None = None) -> NotFound:
    """Return the error for a file that is not in the store."""
    return NotFound(f"No file found with id '{file_id}' in vector store '{store_id}'.", param=param)


def list_stores(*, team_id: str, page: PageRequest) -> Page[VectorStore]:
    """List a team's stores by creation time."""
    rows = VectorStore.objects.filter(team_id=team_id)
    found = keyset(rows, page=page, find=lambda cursor: rows.filter(pk=cursor).first(), unknown=unknown_store)
    # Counted for the stores of the page only: a single query would count the files of all stores before the page.
    counted = _counted(rows).in_bulk([store.pk for store in found.rows])
    return Page(rows=[counted[store.pk] for store in found.rows if store.pk in counted], has_more=found.has_more)


def list_entries(
    *, store_id: str, batch: VectorStoreBatch | None, status: str | None, page: PageRequest
) -> Page[VectorStoreFile]:
    """List the files of a store or of one batch by creation time."""
    rows = VectorStoreFile.objects.filter(store_id=store_id)
    if batch is not None:
        rows = rows.filter(batch=batch)

    filtered = rows if status is None else rows.filter(status=status)
    return keyset(
        filtered,
        page=page,
        find=lambda cursor: rows.filter(file_id=cursor).first(),
        unknown=partial(unknown_entry, store_id),
        by=("created_at", "file_id"),
    )


def passages_of(entry: VectorStoreFile) -> list[str]:
    """Return the passages of a file in order."""
    return list(VectorChunk.objects.filter(entry=entry).order_by("position").values_list("text", flat=True))


def expires_at(store: VectorStore) -> datetime | None:
    """Return the time at which a store expires unless it is used before; None if it has no expiration policy."""
    if store.expires_after_days is None:
        return None
    return store.last_active_at + timedelta(days=store.expires_after_days)


def has_expired(store: VectorStore) -> bool:
    """Return True if the store can no longer be used."""
    end = expires_at(store)
    return end is not None and end <= now()


def public_store(store: VectorStore) -> objects.VectorStore:
    """Return the store as the API shows it."""
    # A store has no status column: it follows from its files and the time.
    counts, end = _file_counts(store), expires_at(store)
    status = "expired" if has_expired(store) else "in_progress" if counts["in_progress"] else "completed"
    return {
        "id": store.pk,
        "object": "vector_store",
        "created_at": unix(store.created_at),
        "name": store.name,
        "description": store.description or None,
        "usage_bytes": getattr(store, "used", None) or 0,
        "file_counts": counts,
        "status": status,
        "expires_after": (
            {"anchor": "last_active_at", "days": store.expires_after_days} if store.expires_after_days else None
        ),
        "expires_at": unix(end) if end else None,
        "last_active_at": unix(store.last_active_at),
        "metadata": store.metadata,
    }


def public_batch(batch: VectorStoreBatch) -> objects.VectorStoreBatch:
    """Return the file batch as the API shows it. It has failed if every file in it has."""
    counts = _file_counts(batch)
    if batch.cancelled_at is not None:
        status = "cancelled"
    elif counts["in_progress"]:
        status = "in_progress"
    else:
        status = "failed" if counts["failed"] == counts["total"] > 0 else "completed"
    return {
        "id": batch.pk,
        "object": "vector_store.files_batch",
        "created_at": unix(batch.created_at),
        "vector_store_id": batch.store_id,
        "status": status,
        "file_counts": counts,
    }


def public_entry(entry: VectorStoreFile) -> objects.VectorStoreFile:
    """Return the file of a store as the API shows it."""
    sizes = {"max_chunk_size_tokens": entry.chunk_tokens, "chunk_overlap_tokens": entry.overlap_tokens}
    return {
        "id": entry.file_id,
        "object": "vector_store.file",
        "created_at": unix(entry.created_at),
        "vector_store_id": entry.store_id,
        "status": entry.status,
        "usage_bytes": entry.usage_bytes,
        "last_error": {"code": entry.error_code, "message": entry.error_message} if entry.error_code else None,
        "attributes": entry.attributes,
        "chunking_strategy": {"type": "static", "static": sizes},
    }


def _file_counts(counted: Any) -> objects.FileCounts:
    counts = {status.value: getattr(counted, f"n_{status.value}", 0) for status in EntryStatus}
    return cast("objects.FileCounts", {**counts, "total": sum(counts.values())})


def _counted(stores: "QuerySet[VectorStore]") -> "QuerySet[VectorStore]":
    return stores.annotate(used=Sum("entries__usage_bytes"), **_COUNTS)
