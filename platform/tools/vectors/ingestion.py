"""Ingests the files of vector stores in a worker: extracts text, splits it into passages and embeds them.

A file is claimed with a lease that is renewed during the work. The results are written in one transaction that checks
the lease, so a worker that died, lost its lease or was cancelled leaves nothing behind.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connection
from django.db.models import F
from typing_extensions import override

from conversations.files import storage
from conversations.files.extraction import extract_text
from conversations.models import File
from core.clock import shared_now
from core.compute.pool import of_team
from core.db.db_threads import in_db_thread
from core.errors import SERVER_ERROR, ApiError, BadRequest, FileTooLarge, InvalidFile, UnsupportedFile
from core.work.leases import HAS_EXPIRED, STEP_BY_INDEX, Claim, expired_before
from core.work.work_queue import WorkLoop
from providers.clients import UpstreamFailed
from responses.models.vector_stores import EntryStatus, VectorChunk, VectorEmbedding, VectorStoreFile
from responses.runs.identity import UsageAccount
from tenants import scope
from tools.vectors import embedding
from tools.vectors.chunking import passages
from tools.vectors.embedding import Vector
from tools.vectors.removal import lock_store

logger = logging.getLogger(__name__)
_LEASE = timedelta(seconds=60)
_MAX_ATTEMPTS = 5
# A small number, because the worker executes runs at the same time.
_MAX_FILES = 2
# The team with the fewest files in work relative to its weight comes first. Within a team, the file that has waited
# longest comes first. The recursive query finds the teams by one index look-up each, so a team with 100,000 waiting
# files costs as much as a team with a single file.
_NEXT = f"""
WITH RECURSIVE team(id) AS (
    (SELECT team_id FROM responses_vectorstorefile WHERE status = 'in_progress' ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_vectorstorefile
            WHERE status = 'in_progress' AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
),
held AS (
    SELECT team_id, count(*) AS files FROM responses_vectorstorefile
    WHERE status = 'in_progress' AND lease_until >= %(expired)s GROUP BY team_id
)
SELECT next.id FROM team
JOIN tenants_team AS owner ON owner.id = team.id
LEFT JOIN held ON held.team_id = team.id
CROSS JOIN LATERAL (
    SELECT id, created_at FROM responses_vectorstorefile
    WHERE team_id = team.id AND status = 'in_progress' AND (lease_until IS NULL OR {HAS_EXPIRED})
    ORDER BY created_at
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS next
WHERE team.id <> ALL (%(without)s)
ORDER BY (coalesce(held.files, 0) + 1)::real / owner.weight, next.created_at
LIMIT 1
"""  # noqa: S608 - constants only
# Seconds to wait before the next attempt, by number of attempts.
_RETRY_PAUSES = (2, 10, 30, 60)
# Vectors are stored as halfvec.
_BYTES_PER_COMPONENT = 2
_BATCH_SIZE = 500


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimedFile(Claim):
    """A file of a store that this process ingests."""

    entry: VectorStoreFile
    file: File
    model: str


class _IngestionError(Exception):
    """The file cannot be ingested, now or later. `code` and `message` become its `last_error`."""

    code = SERVER_ERROR

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class _InvalidFile(_IngestionError):
    """The file is broken or was deleted."""

    code = "invalid_file"


class _UnsupportedFile(_IngestionError):
    """Files of this type cannot be read."""

    code = "unsupported_file"


class Ingestion(WorkLoop[ClaimedFile]):
    """Ingests the waiting files of vector stores in a worker process."""

    kind = "ingestions"
    # No polling: a scheduled task wakes one process every ten seconds.
    poll_seconds = None
    # Four times before a lease expires, so that one slow renewal does not lose it.
    renew_seconds = _LEASE.total_seconds() / 4

    @override
    async def claim(self) -> bool:
        teams = {claim.team_id for claim in self.work}
        # A file takes minutes: files of other teams must not wait for a team that occupies all places.
        is_full = len(self.work) >= _MAX_FILES
        if is_full and (len(teams) > 1 or len(self.work) > _MAX_FILES):
            return False
        claimed = await in_db_thread(partial(claim_file, without=teams if is_full else ()))
        if claimed is not None:
            self.begin(claimed)
        return claimed is not None

    @override
    def renew(self, claims: Collection[ClaimedFile]) -> datetime:
        until = shared_now() + _LEASE
        for claim in claims:
            _update_claimed(claim, lease_until=until)
        return until

    @override
    async def drain(self) -> None:
        # Embedding takes minutes: another worker starts again at once instead of when the lease expires.
        work = dict(self.work)
        for task in work.values():
            task.cancel()
        await asyncio.gather(*work.values(), return_exceptions=True)
        for claim in work:
            await in_db_thread(partial(_release, claim))

    @override
    async def execute(self, claim: ClaimedFile) -> None:
        unknown_reason = _IngestionError("The file could not be processed.")
        if claim.attempt > _MAX_ATTEMPTS:
            # The workers before recorded nothing, so they have died, perhaps because of this file.
            await in_db_thread(partial(_fail, claim, unknown_reason))
            return
        try:
            texts = await _passages(claim)
            vectors = await _embed(claim, texts)
            await in_db_thread(lambda: _finish(claim, texts, vectors))
        except _IngestionError as error:
            await in_db_thread(partial(_fail, claim, error))
        except (ApiError, UpstreamFailed) as error:
            await in_db_thread(partial(_retry_or_fail, claim, error))
        except Exception:
            logger.exception("ingesting a file of a vector store failed", extra={"file": claim.entry.file_id})
            await in_db_thread(partial(_fail, claim, unknown_reason))


def claim_file(*, without: Collection[str] = ()) -> ClaimedFile | None:
    """Claim the next file of any team that is not in `without`; return None if no file is waiting."""
    with scope.every_team():
        with connection.cursor() as cursor:
            cursor.execute(STEP_BY_INDEX)
            cursor.execute(_NEXT, {"expired": expired_before(), "without": [*without]})
            row = cursor.fetchone()
        if row is None:
            return None
        entry = VectorStoreFile.objects.select_related("file", "store").get(pk=row[0])
        entry.attempt += 1
        entry.lease_token += 1
        entry.lease_until = shared_now() + _LEASE
        entry.save(update_fields=["attempt", "lease_token", "lease_until"])
        try:
            model = embedding.model_for(entry.store)
        except BadRequest as error:
            model = ""
            logger.warning("no embedding model for a file", extra={"file": entry.file_id, "reason": str(error)})
        return ClaimedFile(
            id=entry.pk,
            team_id=entry.team_id,
            token=entry.lease_token,
            attempt=entry.attempt,
            until=entry.lease_until,
            labels={"file": entry.file_id, "store": entry.store_id},
            entry=entry,
            file=entry.file,
            model=model,
        )


async def _passages(claim: ClaimedFile) -> list[str]:
    entry = claim.entry
    try:
        content = await storage.open_content(claim.file)
        raw = b"".join([piece async for piece in storage.chunks(content)])
        with of_team(claim.team_id):
            text = await extract_text(
                raw, filename=claim.file.filename, content_type=claim.file.content_type, waits=True
            )
    except FileNotFoundError as error:
        raise _InvalidFile("The file was deleted.") from error
    except UnsupportedFile as error:
        raise _UnsupportedFile(error.message) from error
    except (InvalidFile, FileTooLarge) as error:
        raise _InvalidFile(error.message) from error
    return await asyncio.to_thread(
        lambda: passages(text, most_tokens=entry.chunk_tokens, overlap_tokens=entry.overlap_tokens)
    )


async def _embed(claim: ClaimedFile, texts: Sequence[str]) -> list[Vector]:
    entry = claim.entry
    if not claim.model:
        raise _IngestionError("No embedding model is configured for vector stores.")
    account = UsageAccount(
        team_id=entry.team_id, key_id=entry.api_key_id or "", object_id=entry.store_id, request_id=entry.request_id
    )
    return await embedding.embed(texts, model=claim.model, account=account)


def _finish(claim: ClaimedFile, texts: Sequence[str], vectors: Sequence[Vector]) -> None:
    entry = claim.entry
    with scope.team(entry.team_id):
        store = lock_store(entry.store_id)
        # Reported as `usage_bytes`: the text and the vectors, without indexes.
        size = sum(len(text.encode()) for text in texts) + len(texts) * len(vectors[0]) * _BYTES_PER_COMPONENT
        if store is None or not _update_claimed(
            claim, status=EntryStatus.COMPLETED, usage_bytes=size, chunks=len(texts), lease_until=None
        ):
            return
        if store.dimensions not in {None, len(vectors[0])} or store.embedding_model not in {"", claim.model}:
            raise _IngestionError("The embedding model does not match the vectors that are already in the store.")
        store.embedding_model, store.dimensions = claim.model, len(vectors[0])
        store.save(update_fields=["embedding_model", "dimensions"])
        # The file may have been ingested before, with other settings.
        VectorChunk.objects.filter(entry=entry).delete()
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


def _retry_or_fail(claim: ClaimedFile, error: ApiError | UpstreamFailed) -> None:
    failure = error.failure if isinstance(error, UpstreamFailed) else None
    # A request that the upstream has rejected will be rejected again; other failures may be temporary.
    final = failure is None or failure.status == BadRequest.status
    if final or claim.attempt >= _MAX_ATTEMPTS:
        _fail(claim, _IngestionError(f"Creating embeddings failed: {error}"))
        return
    pause = _RETRY_PAUSES[min(claim.attempt, len(_RETRY_PAUSES)) - 1]
    labels = {**claim.labels, "reason": str(error), "retry_seconds": pause}
    logger.warning("embedding a file of a vector store failed, it will be retried", extra=labels)
    # With a new token, so that a renewal of the lease that is in progress does not prolong the pause.
    _update_claimed(claim, lease_until=shared_now() + timedelta(seconds=pause), lease_token=F("lease_token") + 1)


def _fail(claim: ClaimedFile, why: _IngestionError) -> None:
    _update_claimed(
        claim, status=EntryStatus.FAILED, error_code=why.code, error_message=why.message[:500], lease_until=None
    )


def _release(claim: ClaimedFile) -> None:
    # With a new token, so that a renewal in progress does not lease the file again. The attempt does not count, because
    # the file did not fail.
    _update_claimed(claim, lease_until=None, lease_token=F("lease_token") + 1, attempt=F("attempt") - 1)


def _update_claimed(claim: ClaimedFile, **values: object) -> bool:
    """Update the row of the file. Return False if another worker has claimed it since."""
    with scope.team(claim.team_id):
        return claim.row(VectorStoreFile.objects.filter(status=EntryStatus.IN_PROGRESS)).update(**values) == 1
