"""Writes to vector stores. Each is one transaction, and notifies the workers that ingest files on commit."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F

from conversations.files import storage
from core.clock import now
from core.errors import InvalidValue
from core.work.worker_messages import WorkerMessage
from responses.models.vector_stores import EntryStatus, VectorStore, VectorStoreBatch, VectorStoreFile
from tenants import scope
from tenants.audit import audit_call
from tenants.principal import Principal
from tools.vectors import embedding, schema, selectors
from tools.vectors.removal import lock_store, remove_files
from tools.vectors.requests import AttachFile, CreateStore, UpdateStore

# Expires soon, because the schedule sends the same task.
_FILES_WAITING = WorkerMessage("responses.tasks.ingest_files", expires=60)


def create_store(*, principal: Principal, body: CreateStore, request_id: str) -> VectorStore:
    """Create a store, optionally with files."""
    with scope.team(principal.team_id):
        _require_embeddings(principal.team_id)
        store = VectorStore.objects.create(
            team_id=principal.team_id,
            api_key_id=principal.key_id,
            name=body.name or "",
            description=body.description or "",
            metadata=body.metadata or {},
            expires_after_days=body.expires_after.days if body.expires_after else None,
        )
        files = [
            AttachFile(file_id=file_id, chunking_strategy=body.chunking_strategy) for file_id in body.file_ids or ()
        ]
        _attach(principal, store, files, request_id=request_id)
        return selectors.get_store(principal=principal, store_id=store.pk)


def update_store(*, principal: Principal, store_id: str, body: UpdateStore) -> VectorStore:
    """Update the fields that were sent; null clears a field."""
    with scope.team(principal.team_id):
        selectors.get_store(principal=principal, store_id=store_id)
        if (store := lock_store(store_id)) is None:
            raise selectors.unknown_store(store_id)
        sent = body.model_fields_set
        if "name" in sent:
            store.name = body.name or ""
        if "metadata" in sent:
            store.metadata = body.metadata or {}
        if "expires_after" in sent:
            store.expires_after_days = body.expires_after.days if body.expires_after else None
        store.save(update_fields=["name", "metadata", "expires_after_days"])
        audit_call(principal, "vector_store.updated", store.pk, after=body.model_dump(include=sent))
        return selectors.get_store(principal=principal, store_id=store_id)


def delete_store(*, principal: Principal, store_id: str) -> None:
    """Delete a store with its chunks and vectors. The files themselves remain."""
    with scope.team(principal.team_id):
        store = selectors.get_store(principal=principal, store_id=store_id)
        # With a key lock: nothing may refer to the store any more.
        if VectorStore.objects.select_for_update(no_key=False).filter(pk=store.pk).first() is None:
            raise selectors.unknown_store(store_id)
        VectorStore.objects.filter(pk=store.pk).delete()
        audit_call(principal, "vector_store.deleted", store_id, before={"name": store.name})


def attach_file(*, principal: Principal, store_id: str, body: AttachFile, request_id: str) -> VectorStoreFile:
    """Add a file to a store; a file that is already in it is ingested again."""
    with scope.team(principal.team_id):
        _attach(principal, _lock_usable_store(principal, store_id), [body], request_id=request_id)
        return selectors.get_entry(principal=principal, store_id=store_id, file_id=body.file_id)


def attach_batch(
    *, principal: Principal, store_id: str, files: Sequence[AttachFile], request_id: str
) -> VectorStoreBatch:
    """Add several files to a store."""
    with scope.team(principal.team_id):
        store = _lock_usable_store(principal, store_id)
        batch = VectorStoreBatch.objects.create(team_id=principal.team_id, store=store)
        _attach(principal, store, files, request_id=request_id, batch=batch)
        return selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch.pk)


def cancel_batch(*, principal: Principal, store_id: str, batch_id: str) -> VectorStoreBatch:
    """Cancel the files of a batch that are not ingested yet.

    Results of files that a worker is ingesting at the moment are discarded.
    """
    with scope.team(principal.team_id):
        batch = selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch_id)
        lock_store(store_id)
        waiting = VectorStoreFile.objects.filter(batch=batch, status=EntryStatus.IN_PROGRESS)
        if waiting.update(status=EntryStatus.CANCELLED, lease_until=None):
            VectorStoreBatch.objects.filter(pk=batch.pk, cancelled_at=None).update(cancelled_at=now())
        return selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch_id)


def update_entry(
    *, principal: Principal, store_id: str, file_id: str, attributes: dict[str, Any] | None
) -> VectorStoreFile:
    """Replace the attributes of a file in a store."""
    with scope.team(principal.team_id):
        entry = selectors.get_entry(principal=principal, store_id=store_id, file_id=file_id)
        entry.attributes = attributes or {}
        # Not `save`, which raises an error for a row that was removed in the meantime.
        if not VectorStoreFile.objects.filter(pk=entry.pk).update(attributes=entry.attributes):
            raise selectors.unknown_entry(store_id, file_id)
        return entry


def detach_file(*, principal: Principal, store_id: str, file_id: str) -> None:
    """Remove a file from a store. The file itself remains."""
    with scope.team(principal.team_id):
        selectors.get_entry(principal=principal, store_id=store_id, file_id=file_id)
        if not remove_files(store_id, [file_id]):
            raise selectors.unknown_entry(store_id, file_id)


def clear_expired_stores() -> int:
    """Delete the chunks and vectors of expired stores, at most 100 stores. Return the number of stores cleared."""
    with scope.every_team():
        kept = VectorStore.objects.exclude(expires_after_days=None).filter(entries__isnull=False)
        expired = [store for store in kept.distinct().order_by("last_active_at") if selectors.has_expired(store)]
    # A bounded number, so that the task stays short; the rest follows with its next run.
    cleared = expired[:100]
    for store in cleared:
        # One transaction each, so that no store stays locked while the others are cleared. The store remains, so that
        # its id still answers with the status "expired".
        with scope.team(store.team_id):
            # The expiration policy may have changed in the meantime.
            locked = lock_store(store.pk)
            if locked is not None and selectors.has_expired(locked):
                remove_files(store.pk)
    return len(cleared)


def _lock_usable_store(principal: Principal, store_id: str) -> VectorStore:
    selectors.get_store(principal=principal, store_id=store_id)
    if (store := lock_store(store_id)) is None:
        raise selectors.unknown_store(store_id)
    if selectors.has_expired(store):
        raise InvalidValue(f"Vector store '{store_id}' has expired.", param="vector_store_id")
    _require_embeddings(principal.team_id)
    return store


def _require_embeddings(team_id: str) -> None:
    # Checked when files are added: without pgvector and a model they would wait for ingestion forever.
    schema.require_vectors()
    embedding.model_of_team(team_id)


def _attach(
    principal: Principal,
    store: VectorStore,
    files: Sequence[AttachFile],
    *,
    request_id: str,
    batch: VectorStoreBatch | None = None,
) -> None:
    if not files:
        return
    rows = {file.file_id: _row(principal, store, file, request_id, batch) for file in files}
    # The caller has locked or created the store: stores are locked before files.
    known = storage.existing(team_id=principal.team_id, file_ids=rows, lock=True)
    for file_id in rows:
        if file_id not in known:
            raise storage.unknown_file(file_id, param="file_id")
    VectorStore.objects.filter(pk=store.pk).update(last_active_at=now())
    VectorStoreFile.objects.bulk_create(
        rows.values(),
        update_conflicts=True,
        # Attaching a file again resets its row, so that it is ingested with the new settings.
        unique_fields=["store", "file"],
        update_fields=[
            *("batch", "api_key", "status", "attributes", "chunk_tokens", "overlap_tokens", "request_id"),
            *("error_code", "error_message", "attempt", "lease_until"),
        ],
    )
    # Invalidates claims on these files: their workers have read the old settings.
    VectorStoreFile.objects.filter(store=store, file_id__in=rows).update(lease_token=F("lease_token") + 1)
    transaction.on_commit(_FILES_WAITING.notify)


def _row(
    principal: Principal, store: VectorStore, files: AttachFile, request_id: str, batch: VectorStoreBatch | None
) -> VectorStoreFile:
    most, overlap = files.chunking_strategy.sizes() if files.chunking_strategy else selectors.AUTO_SIZES
    return VectorStoreFile(
        team_id=principal.team_id,
        store=store,
        file_id=files.file_id,
        batch=batch,
        api_key_id=principal.key_id,
        attributes=files.attributes or {},
        chunk_tokens=most,
        overlap_tokens=overlap,
        request_id=request_id,
    )
