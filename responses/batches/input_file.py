"""Reading the input file of a batch: all lines are validated before any is executed, and stored in one transaction."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.conf import settings
from django.core.files import File as Content
from django.db.models import QuerySet

from conversations.files import storage
from conversations.models import File
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.storable_json import without_nul
from responses.batches import queue
from responses.batches.cancellable_thread import StopSignal, run_in_thread
from responses.batches.queue import Job
from responses.batches.requests import (
    MAX_BYTES,
    MAX_EMBEDDING_INPUTS,
    MAX_LINES,
    BatchInputLine,
    InvalidLine,
    parse_line,
)
from responses.models.batches import Batch, BatchLine, BatchStatus
from responses.webhooks.outbox import announce
from tenants import scope

_MAX_ERRORS = 100
# Rows per INSERT. Bodies vary from bytes to megabytes, so their size is limited as well.
_CHUNK_ROWS = 500
_CHUNK_BYTES = 8 * 1024 * 1024
# The margin is for the other fields of a line, around its body.
_MAX_LINE_BYTES = settings.MAX_BODY_BYTES + 4096


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
                "duplicate_custom_id",
                "The 'custom_id' of this line is already used by another line. It must be unique in the batch.",
                param="custom_id",
            )
        self.custom_ids.add(line.custom_id)
        self.models.add(line.model)
        self.inputs += line.inputs
        if self.inputs > MAX_EMBEDDING_INPUTS:
            raise InvalidLine(
                "too_many_tasks",
                f"The batch has more than {MAX_EMBEDDING_INPUTS} embedding inputs.",
                param="body.input",
            )


async def read_input(job: Job) -> None:
    """Read and validate the input file of a batch, which is in progress or failed afterwards."""

    def find() -> tuple[Batch, File | None]:
        with scope.team(job.team_id):
            batch = Batch.objects.get(pk=job.id)
            return batch, storage.find_file(team_id=job.team_id, file_id=batch.input_file_id)

    batch, file = await in_db_thread(find)
    if file is not None and file.size <= MAX_BYTES:
        await run_in_thread(partial(_read, job, batch, await storage.open_content(file)))
        return
    code, message = "invalid_request", f"The input file '{batch.input_file_id}' no longer exists."
    if file is not None:
        code, message = "file_too_large", f"The input file is too large: the limit is {MAX_BYTES // 1024 // 1024} MiB."
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
        # After these errors, reading on is pointless.
        if summary.lines > MAX_LINES:
            message = f"The input file has more than {MAX_LINES} lines."
            summary.add_error(InvalidLine("too_many_tasks", message), number)
            return
        # `readline` stopped at its limit, so the next one would start in the middle of this line.
        if len(raw) >= _MAX_LINE_BYTES:
            message = "This line exceeds the maximum size of a request body."
            summary.add_error(InvalidLine("invalid_request", message), number)
            return
        try:
            line = parse_line(raw, endpoint=endpoint)
            summary.add(line)
        except InvalidLine as error:
            summary.add_error(error, number)
        else:
            yield line
        if len(summary.errors) >= _MAX_ERRORS:
            return
    if not summary.lines:
        summary.add_error(InvalidLine("empty_batch", "The input file has no lines."))


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
