"""Files of a batch.

All lines of the input file are validated before any is executed, and stored in one transaction. The output and error
files are written from the lines, which are deleted in the transaction that ends the batch.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import IO, Any

import orjson
from django.conf import settings
from django.core.files import File as Content
from django.db.models import Count, Func, IntegerField, Q, QuerySet, Sum

from conversations.files import storage
from conversations.files.storage import IncomingFile
from conversations.models import File, Purpose
from core.clock import now
from core.db.db_threads import in_db_thread
from core.json.storable_json import without_nul
from gateway.batches import queue
from gateway.batches.cancellable_thread import StopSignal, run_in_thread
from gateway.batches.queue import Job
from gateway.batches.requests import (
    MAX_BYTES,
    MAX_EMBEDDING_INPUTS,
    MAX_LINES,
    BatchErrorCode,
    BatchInputLine,
    InvalidLine,
    parse_line,
    too_many_inputs,
)
from responses.models.batches import Batch, BatchLine, BatchStatus, LineState
from responses.webhooks.outbox import announce
from tenants import scope

_MAX_ERRORS = 100
# Rows per INSERT. Bodies vary from bytes to megabytes, so the size of an INSERT is limited too.
_CHUNK_ROWS = 500
_CHUNK_BYTES = 8 * 1024 * 1024
# The margin is for the other fields of a line, around its body.
_MAX_LINE_BYTES = settings.MAX_BODY_BYTES + 4096
_MAX_IN_MEMORY = 1024 * 1024
_REASONS = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was executed.",
}
_FILES_WORK = {"file_failures": 0, "file_error": "", "files_retry_at": None}
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class _LeaseLost(Exception):
    """The lease was lost or the batch was cancelled; raised to roll the transaction back."""


@dataclass(slots=True)
class _Summary:
    """Errors and totals of the lines read so far."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    custom_ids: set[str] = field(default_factory=set)
    models: set[str | None] = field(default_factory=set)
    lines: int = 0
    inputs: int = 0

    def add_error(self, error: InvalidLine, number: int | None = None) -> None:
        """Record the error of a line. Line numbers start at 1."""
        self.errors.append(without_nul(_error(error, number)))

    def add(self, line: BatchInputLine) -> None:
        """Count a valid line. Raises InvalidLine if it conflicts with the other lines of the batch."""
        if line.custom_id in self.custom_ids:
            raise InvalidLine(
                BatchErrorCode.DUPLICATE_CUSTOM_ID,
                "The 'custom_id' of this line is already used by another line. It must be unique in the batch.",
                param="custom_id",
            )
        self.custom_ids.add(line.custom_id)
        self.models.add(line.model)
        self.inputs += line.inputs
        if self.inputs > MAX_EMBEDDING_INPUTS:
            raise too_many_inputs()


async def read_input(job: Job) -> None:
    """Read and validate the input file of a batch. Afterwards the batch is in progress or failed."""

    def find() -> tuple[Batch, File | None]:
        with scope.team(job.team_id):
            batch = Batch.objects.get(pk=job.id)
            return batch, storage.find_file(team_id=job.team_id, file_id=batch.input_file_id)

    batch, file = await in_db_thread(find)
    if file is not None and file.size <= MAX_BYTES:
        await run_in_thread(partial(_read, job, batch, await storage.open_content(file)))
        return
    code, message = BatchErrorCode.INVALID_REQUEST, f"The input file '{batch.input_file_id}' no longer exists."
    if file is not None:
        code = BatchErrorCode.FILE_TOO_LARGE
        message = f"The input file is too large: the limit is {MAX_BYTES // 1024 // 1024} MiB."
    await in_db_thread(lambda: _fail(job, [_error(InvalidLine(code, message, param="input_file_id"))]))


def _read(job: Job, batch: Batch, content: "Content[bytes]", stop: StopSignal) -> None:
    # The file is read twice: first only to validate it, so that an invalid file does not cause any inserts.
    summary = _Summary()
    with content:
        for _ in stop.unless_set(_valid_lines(batch.endpoint, summary, content)):
            pass
        if summary.errors:
            _fail(job, summary.errors)
            return
        content.seek(0)
        [*models] = summary.models
        with suppress(_LeaseLost), scope.team(batch.team_id):
            for rows in stop.unless_set(_chunks(batch, content)):
                BatchLine.objects.bulk_create(rows)
            started = _validating(job).update(
                status=BatchStatus.IN_PROGRESS,
                total=summary.lines,
                model=models[0] if len(models) == 1 else None,
                in_progress_at=now(),
                lease_until=None,
                **_FILES_WORK,
            )
            if not started:
                raise _LeaseLost


def _chunks(batch: Batch, content: "Content[bytes]") -> Iterator[list[BatchLine]]:
    """Yield the lines as unsaved rows in chunks of bounded size."""
    rows: list[BatchLine] = []
    size = 0
    for position, line in enumerate(_valid_lines(batch.endpoint, _Summary(), content)):
        given = {"position": position, "custom_id": line.custom_id, "body": line.body}
        rows.append(BatchLine(team_id=batch.team_id, batch=batch, **given))
        size += len(line.body)
        if len(rows) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


def _valid_lines(endpoint: str, summary: _Summary, content: "Content[bytes]") -> Iterator[BatchInputLine]:
    """Yield the valid lines and add the errors of all others to the summary."""
    number = 0
    while raw := content.readline(_MAX_LINE_BYTES):
        number += 1
        # Blank lines are allowed, but counted in line numbers.
        if not raw.strip():
            continue
        summary.lines += 1
        # After these errors, the rest of the file is not read.
        if summary.lines > MAX_LINES:
            message = f"The input file has more than {MAX_LINES} lines."
            summary.errors.clear()
            summary.add_error(InvalidLine(BatchErrorCode.TOO_MANY_TASKS, message), number)
            return
        # A file with too many lines is reported as such, so the lines are counted to the end.
        if len(summary.errors) >= _MAX_ERRORS:
            continue
        # `readline` stopped at its limit, so the next one would start in the middle of this line.
        if len(raw) >= _MAX_LINE_BYTES:
            message = "This line exceeds the maximum size of a request body."
            summary.add_error(InvalidLine(BatchErrorCode.INVALID_REQUEST, message), number)
            return
        try:
            line = parse_line(raw, endpoint=endpoint)
            summary.add(line)
        except InvalidLine as error:
            summary.add_error(error, number)
        else:
            yield line
    if not summary.lines:
        summary.add_error(InvalidLine(BatchErrorCode.EMPTY_BATCH, "The input file has no lines."))


def _validating(job: Job) -> "QuerySet[Batch]":
    return queue.claimed_batch(job).filter(status=BatchStatus.VALIDATING, ending=BatchStatus.COMPLETED)


def _fail(job: Job, errors: list[dict[str, Any]]) -> None:
    with scope.team(job.team_id):
        failed = _validating(job).update(
            status=BatchStatus.FAILED, ending=BatchStatus.FAILED, errors=errors, ended_at=now(), lease_until=None
        )
        if failed:
            announce(team_id=job.team_id, event_type="batch.failed", object_id=job.id)


def _error(error: InvalidLine, number: int | None = None) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "param": error.param, "line": number}


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
        stored = await _store(batch, output, "output")
        try:
            stored_errors = await _store(batch, errors, "error")
        except Exception:
            # Without the deletion, each attempt would leave another copy for a day, on a disk that may be full.
            if stored is not None:
                await in_db_thread(partial(storage.remove, stored))
            raise
    await in_db_thread(lambda: _end(job, batch, stored, stored_errors))


def _write(batch: Batch, output: IO[bytes], errors: IO[bytes], stop: StopSignal) -> None:
    with scope.team(batch.team_id):
        lines = BatchLine.objects.filter(batch=batch).defer("body").order_by("position")
        for line in stop.unless_set(_in_chunks(lines)):
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


def _in_chunks(lines: "QuerySet[BatchLine]") -> Iterator[BatchLine]:
    """Yield lines from the database, fetching chunks of bounded size."""
    ids: list[str] = []
    size = 0
    length = Func("answer", function="octet_length", output_field=IntegerField())
    for pk, answer_size in lines.values_list("pk", length).iterator():
        if ids and (len(ids) >= _CHUNK_ROWS or size + answer_size > _CHUNK_BYTES):
            yield from lines.filter(pk__in=ids)
            ids, size = [], 0
        ids.append(pk)
        size += answer_size
    yield from lines.filter(pk__in=ids)


async def _store(batch: Batch, content: IO[bytes], name: str) -> File | None:
    """Upload a file without publishing it; return None if it is empty."""
    size = content.tell()
    if size == 0:
        return None
    upload = IncomingFile(
        content=content,
        filename=f"{batch.pk}_{name}.jsonl",
        content_type="application/jsonl",
        size=size,
        purpose=Purpose.BATCH_OUTPUT,
        lifetime=timedelta(seconds=batch.output_seconds) if batch.output_seconds else None,
    )
    return await storage.write_file(team_id=batch.team_id, key_id=batch.api_key_id, upload=upload)


def _end(job: Job, batch: Batch, output: File | None, errors: File | None) -> None:
    # If the lease was lost, nothing is published, and the retention of files deletes the uploaded file.
    with scope.team(job.team_id):
        ids = {"output_file_id": output.pk if output else None, "error_file_id": errors.pk if errors else None}
        if _close(job, BatchStatus(batch.ending), **ids):
            for file in (output, errors):
                if file is not None:
                    storage.publish_file(file)


def _close(job: Job, status: BatchStatus, **values: Any) -> bool:
    """End the batch with its totals, and delete its lines. Return false if the lease was lost."""
    lines = BatchLine.objects.filter(batch=job.id)
    done = Q(state=LineState.COMPLETED)
    sums = {name: Sum(name, default=0) for name in _TOKENS}
    totals = lines.aggregate(completed=Count("id", filter=done), failed=Count("id", filter=~done), **sums)
    ended = queue.claimed_batch(job).update(
        status=status, ending=status, ended_at=now(), lease_until=None, **_FILES_WORK, **values, **totals
    )
    if ended:
        lines.delete()
        announce(team_id=job.team_id, event_type=f"batch.{status}", object_id=job.id)
    return bool(ended)


def postpone(job: Job, error: Exception) -> None:
    """Let any worker try again after a pause. If the results would have expired by then, the batch fails."""
    reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    with scope.team(job.team_id):
        batch = queue.claimed_batch(job).first()
        since = (batch.finalizing_at or batch.cancelling_at) if batch else None
        if since is not None and since + storage.BATCH_LIFETIME <= now():
            message = "The results could not be stored before they expired."
            _close(job, BatchStatus.FAILED, errors=[_error(InvalidLine(BatchErrorCode.RESULTS_NOT_STORED, message))])
        else:
            queue.postpone(job, reason=reason[:200])
