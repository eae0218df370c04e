"""Writing the output and error files of a batch, and ending it.

The lines are deleted in the transaction that ends the batch.
"""

import tempfile
from datetime import timedelta
from functools import partial
from typing import IO

import orjson
from django.core.files.uploadedfile import UploadedFile
from django.db.models import Count, Q, Sum

from conversations.files import storage
from conversations.files.storage import IncomingFile
from conversations.models import File, Purpose
from kernel.clock import now
from kernel.db_threads import in_db_thread
from responses.batches import queue
from responses.batches.cancellable_thread import StopSignal, run_in_thread
from responses.batches.queue import Job
from responses.models.batches import Batch, BatchLine, LineState
from responses.webhooks.outbox import announce
from tenants import scope

_REASONS = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was executed.",
}
# Answers can be megabytes each, so few are held in memory at a time.
_CHUNK_ROWS = 50
_MAX_IN_MEMORY = 1024 * 1024
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


async def write_output(job: Job) -> None:
    """Write the files of a batch whose lines have all ended, and end the batch."""

    def find() -> Batch:
        with scope.team(job.team_id):
            return Batch.objects.get(pk=job.id)

    batch = await in_db_thread(find)
    with (
        tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY) as output,
        tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY) as errors,
    ):
        await run_in_thread(partial(_write, batch, output, errors))
        stored = await _store(batch, output, "output"), await _store(batch, errors, "error")
    await in_db_thread(lambda: _end(job, batch, *stored))


def _write(batch: Batch, output: IO[bytes], errors: IO[bytes], stop: StopSignal) -> None:
    with scope.team(batch.team_id):
        lines = BatchLine.objects.filter(batch=batch).defer("body").order_by("position")
        for line in stop.unless_set(lines.iterator(chunk_size=_CHUNK_ROWS)):
            response = error = None
            if line.error_code is not None:
                error = {"code": line.error_code, "message": _REASONS[line.error_code]}
            else:
                # The stored answer is JSON already; parsing it again would only cost time.
                body = orjson.Fragment(line.answer)
                response = {"status_code": line.status_code, "request_id": line.request_id, "body": body}
            record = {"id": line.pk, "custom_id": line.custom_id, "response": response, "error": error}
            target = output if line.state == LineState.COMPLETED else errors
            target.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


async def _store(batch: Batch, content: IO[bytes], name: str) -> File | None:
    """Upload a file without publishing it; return None if it is empty."""
    size = content.tell()
    if size == 0:
        return None
    content.seek(0)
    upload = IncomingFile(
        content=UploadedFile(content, size=size),
        filename=f"{batch.pk}_{name}.jsonl",
        content_type="application/jsonl",
        size=size,
        purpose=Purpose.BATCH_OUTPUT,
        lifetime=timedelta(seconds=batch.output_seconds) if batch.output_seconds else None,
    )
    return await storage.write_file(team_id=batch.team_id, key_id=batch.api_key_id, upload=upload)


def _end(job: Job, batch: Batch, output: File | None, errors: File | None) -> None:
    # If the lease was lost, nothing is published, and the retention of files deletes what was uploaded.
    with scope.team(job.team_id):
        lines = BatchLine.objects.filter(batch=batch)
        done = Q(state=LineState.COMPLETED)
        sums = {name: Sum(name, default=0) for name in _TOKENS}
        totals = lines.aggregate(completed=Count("id", filter=done), failed=Count("id", filter=~done), **sums)
        ended = queue.claimed_batch(job).update(
            status=batch.ending,
            ended_at=now(),
            output_file_id=output.pk if output else None,
            error_file_id=errors.pk if errors else None,
            lease_until=None,
            **totals,
        )
        if not ended:
            return
        for file in (output, errors):
            if file is not None:
                storage.publish_file(file)
        lines.delete()
        announce(team_id=job.team_id, event_type=f"batch.{batch.ending}", object_id=job.id)
