"""Ingests the files of vector stores in a worker: extracts text, splits it into passages and embeds them.

A file is claimed with a lease that is renewed during the work. The results are written in one transaction that checks
the lease, so a worker that died, lost its lease or was cancelled leaves nothing behind.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db.models import Q

from conversations.files import storage
from conversations.files.extraction import extract_text
from conversations.models import File
from kernel import worker_loop
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.errors import ApiError, BadRequest, FileTooLarge, InvalidFile, UnsupportedFile
from responses.models.vector_stores import EntryStatus, VectorChunk, VectorEmbedding, VectorStore, VectorStoreFile
from responses.providers.clients import UpstreamFailed
from responses.vectors import embedding
from responses.vectors.chunking import passages
from responses.vectors.embedding import UsageAccount, Vector
from tenants import scope

logger = logging.getLogger(__name__)
# Renewed four times before it expires, so that one slow renewal does not lose it.
_LEASE = timedelta(seconds=60)
_RENEW_SECONDS = 15.0
_MAX_ATTEMPTS = 5
# A small number, because the worker executes runs at the same time.
_MAX_LOOPS = 2
# Seconds to wait before the next attempt, by number of attempts.
_RETRY_PAUSES = (2, 10, 30, 60)
# Vectors are stored as halfvec.
_BYTES_PER_COMPONENT = 2
_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A file that this process has claimed."""

    entry: VectorStoreFile
    file: File
    token: int
    model: str


class _IngestionError(Exception):
    """The file cannot be ingested, now or later. `code` and `message` become its `last_error`."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


class _IngestionLoops:
    """Loops of this process that ingest files; their number is limited, however many tasks ask for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def start_ingestion(self) -> None:
        with self._lock:
            # The running loops take all waiting files before they end, so this one is not needed.
            if self._count == _MAX_LOOPS:
                return
            self._count += 1
        worker_loop.submit(self._process())

    async def _process(self) -> None:
        try:
            while await ingest_next():
                pass
        except Exception:
            logger.exception("ingesting files of vector stores failed; the schedule will retry")
        finally:
            with self._lock:
                self._count -= 1


start_ingestion = _IngestionLoops().start_ingestion
"""Start ingesting the waiting files in the worker's event loop."""


async def ingest_next() -> bool:
    """Ingest one waiting file. Return False if there is none."""
    claim = await in_db_thread(_claim)
    if claim is None:
        return False
    if (record_failure := await _process(claim)) is not None:
        await in_db_thread(record_failure)
    return True


async def _process(claim: _Claim) -> Callable[[], None] | None:
    if claim.entry.attempt > _MAX_ATTEMPTS:
        # The workers before recorded nothing, so they have died, perhaps because of this file.
        return partial(_fail, claim, _IngestionError("server_error", "The file could not be processed."))
    try:
        async with _lease_renewed(claim):
            texts = await _passages(claim)
            vectors = await _embed(claim, texts)
        await in_db_thread(lambda: _finish(claim, texts, vectors))
    except _IngestionError as error:
        return partial(_fail, claim, error)
    except (ApiError, UpstreamFailed) as error:
        return partial(_retry_or_fail, claim, error)
    except Exception:
        logger.exception("ingesting a file of a vector store failed", extra={"file": claim.entry.file_id})
        return partial(_fail, claim, _IngestionError("server_error", "The file could not be processed."))
    return None


def _claim() -> _Claim | None:
    at = now()
    with scope.every_team():
        # The file that has waited longest comes first. SKIP LOCKED lets several workers claim at the same time.
        waiting = (
            VectorStoreFile.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
            .select_related("file", "store")
            .filter(Q(lease_until=None) | Q(lease_until__lt=at), status=EntryStatus.IN_PROGRESS)
            .order_by("created_at")
        )
        entry = waiting.first()
        if entry is None:
            return None
        entry.attempt += 1
        # A fencing token: a predecessor with an older token cannot write any more.
        entry.lease_token += 1
        entry.lease_until = at + _LEASE
        entry.save(update_fields=["attempt", "lease_token", "lease_until"])
        try:
            model = embedding.model_for(entry.store)
        except BadRequest as error:
            model = ""
            logger.warning("no embedding model for a file", extra={"file": entry.file_id, "reason": str(error)})
        return _Claim(entry=entry, file=entry.file, token=entry.lease_token, model=model)


@asynccontextmanager
async def _lease_renewed(claim: _Claim) -> AsyncIterator[None]:
    """Renew the lease in the background."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            await in_db_thread(lambda: _update_claimed(claim, lease_until=now() + _LEASE))

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        # Cancelled before the result is written; the write checks the lease itself.
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _passages(claim: _Claim) -> list[str]:
    entry = claim.entry
    try:
        content = await storage.open_content(claim.file)
        raw = b"".join([piece async for piece in storage.chunks(content)])
        text = await asyncio.to_thread(
            lambda: extract_text(raw, filename=claim.file.filename, content_type=claim.file.content_type)
        )
    except FileNotFoundError as error:
        raise _IngestionError("invalid_file", "The file was deleted.") from error
    except UnsupportedFile as error:
        raise _IngestionError("unsupported_file", error.message) from error
    except (InvalidFile, FileTooLarge) as error:
        raise _IngestionError("invalid_file", error.message) from error
    return await asyncio.to_thread(
        lambda: passages(text, most_tokens=entry.chunk_tokens, overlap_tokens=entry.overlap_tokens)
    )


async def _embed(claim: _Claim, texts: Sequence[str]) -> list[Vector]:
    entry = claim.entry
    if not claim.model:
        raise _IngestionError("server_error", "No embedding model is configured for vector stores.")
    account = UsageAccount(
        team_id=entry.team_id, key_id=entry.api_key_id or "", object_id=entry.store_id, request_id=entry.request_id
    )
    return await embedding.embed(texts, model=claim.model, account=account)


def _finish(claim: _Claim, texts: Sequence[str], vectors: Sequence[Vector]) -> None:
    entry = claim.entry
    with scope.team(entry.team_id):
        # The store is locked before its files, as everywhere, to avoid deadlocks.
        store = VectorStore.objects.select_for_update(no_key=True).filter(pk=entry.store_id).first()
        # Reported as `usage_bytes`: the text and the vectors, without indexes.
        size = sum(len(text.encode()) for text in texts) + len(texts) * len(vectors[0]) * _BYTES_PER_COMPONENT
        if store is None or not _update_claimed(
            claim, status=EntryStatus.COMPLETED, usage_bytes=size, chunks=len(texts), lease_until=None
        ):
            return
        if store.dimensions not in {None, len(vectors[0])} or store.embedding_model not in {"", claim.model}:
            message = "The embedding model does not match the vectors that are already in the store."
            raise _IngestionError("server_error", message)
        store.embedding_model, store.dimensions = claim.model, len(vectors[0])
        store.save(update_fields=["embedding_model", "dimensions"])
        # The file may have been ingested before, with other settings.
        VectorChunk.objects.filter(entry=entry).delete()
        _write(entry, texts, vectors)


def _write(entry: VectorStoreFile, texts: Sequence[str], vectors: Sequence[Vector]) -> None:
    where = {"team_id": entry.team_id, "store_id": entry.store_id, "entry_id": entry.pk}
    chunks = VectorChunk.objects.bulk_create(
        (VectorChunk(**where, position=position, text=text) for position, text in enumerate(texts)),
        batch_size=_BATCH_SIZE,
    )
    VectorEmbedding.objects.bulk_create(
        (
            VectorEmbedding(**where, chunk_id=chunk.pk, dimensions=len(vector), embedding=vector)
            for chunk, vector in zip(chunks, vectors, strict=True)
        ),
        batch_size=_BATCH_SIZE,
    )


def _retry_or_fail(claim: _Claim, error: ApiError | UpstreamFailed) -> None:
    failure = error.failure if isinstance(error, UpstreamFailed) else None
    # A request that the upstream has rejected will be rejected again; other failures may be temporary.
    final = failure is None or failure.status == BadRequest.status
    if final or claim.entry.attempt >= _MAX_ATTEMPTS:
        _fail(claim, _IngestionError("server_error", f"Creating embeddings failed: {error}"))
        return
    pause = _RETRY_PAUSES[min(claim.entry.attempt, len(_RETRY_PAUSES)) - 1]
    _update_claimed(claim, lease_until=now() + timedelta(seconds=pause))


def _fail(claim: _Claim, why: _IngestionError) -> None:
    _update_claimed(
        claim, status=EntryStatus.FAILED, error_code=why.code, error_message=why.message[:500], lease_until=None
    )


def _update_claimed(claim: _Claim, **values: object) -> bool:
    """Update the row of the file. Return False if another worker has claimed it since."""
    with scope.team(claim.entry.team_id):
        mine = VectorStoreFile.objects.filter(
            pk=claim.entry.pk, lease_token=claim.token, status=EntryStatus.IN_PROGRESS
        )
        return mine.update(**values) == 1
