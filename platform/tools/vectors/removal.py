"""Removal of files from vector stores, because a file or its store was deleted or has expired, or a file was detached.

A worker that finishes a file, and every request that changes the files of a store, first locks the store. So passages
are never inserted for a file that is being removed, and two processes never wait for each other's rows.
"""

from collections.abc import Collection

from django.db import transaction

from conversations.files import storage
from conversations.models import File
from responses.models.vector_stores import VectorStore, VectorStoreFile


def lock_store(store_id: str) -> VectorStore | None:
    """Lock a store until the end of the transaction; None if it was deleted.

    The lock is `FOR NO KEY UPDATE`, so other transactions can insert rows that refer to the store.
    """
    return VectorStore.objects.select_for_update(no_key=True).filter(pk=store_id).first()


def remove_files(store_id: str, file_ids: Collection[str] | None = None) -> bool:
    """Remove files from a store, by default all of them; return true if any of them was in it.

    Runs inside a scope that sees the team. Results of a worker that ingests one of them are discarded.
    """
    if lock_store(store_id) is None:
        return False
    entries = VectorStoreFile.objects.filter(store_id=store_id)
    if file_ids is not None:
        entries = entries.filter(file_id__in=file_ids)
    # The ORM deletes the passages and vectors that it finds first. Under the lock no worker can add any.
    rows, _ = entries.delete()
    return rows > 0


def remove_from_every_store(file: File) -> None:
    """Remove a file that is about to be deleted from the stores that contain it, and keep others from attaching it.

    Runs inside a scope that sees the team. The caller deletes the row of the file in the same transaction.
    """
    entries = VectorStoreFile.objects.filter(file_id=file.pk)
    while True:
        with transaction.atomic():
            # In the order of their ids: two deletions may have several stores in common.
            stores = sorted(set(entries.values_list("store_id", flat=True)))
            for store_id in stores:
                remove_files(store_id, [file.pk])
            # Stores before files, as everywhere. A file that is locked like this cannot be attached any more.
            File.objects.select_for_update().filter(pk=file.pk).first()
            if not entries.exists():
                return
            # Attached to another store in the meantime, which has to be locked before the file.
            transaction.set_rollback(True)


def connect() -> None:
    """Let deletions and expirations of files remove them from vector stores."""
    storage.before_removal.append(remove_from_every_store)
