"""Takes the input of a batch in: every line is checked before any is executed, and all are stored at once or none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.conf import settings
from django.core.files import File as Content

from conversations.files import storage
from conversations.models import File
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.storable_json import without_nul
from responses.batches import queue
from responses.batches.cancellable_thread import StopSignal, in_thread
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

_MOST_ERRORS = 100
_AT_ONCE = 500
_AT_ONCE_BYTES = 8 * 1024 * 1024
# A line has some words around the body that it holds.
_MOST_BYTES_OF_A_LINE = settings.MAX_BODY_BYTES + 4096


class _Lost(Exception):
    """The batch is not this worker's any more, or was cancelled."""


@dataclass(slots=True)
class _Intake:
    """What is known of the lines that were read so far."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    custom_ids: set[str] = field(default_factory=set)
    models: set[str | None] = field(default_factory=set)
    lines: int = 0
    inputs: int = 0

    def refuse(self, error: InvalidLine, number: int | None = None) -> None:
        """Note what is wrong."""
        found = {"code": error.code, "message": error.message, "param": error.param, "line": number}
        self.errors.append(without_nul(found))

    def add(self, line: BatchInputLine) -> None:
        """Count a line; raises `InvalidLine` for what is wrong with it among the others."""
        if line.custom_id in self.custom_ids:
            message = "The 'custom_id' of this line is that of another one; each must be unique within the batch."
            raise InvalidLine("duplicate_custom_id", message, param="custom_id")
        self.custom_ids.add(line.custom_id)
        self.models.add(line.model)
        self.inputs += line.inputs
        if self.inputs > MAX_EMBEDDING_INPUTS:
            message = f"The batch has more than {MAX_EMBEDDING_INPUTS} inputs to embed."
            raise InvalidLine("too_many_tasks", message, param="body.input")


async def read_input(job: Job) -> None:
    """Read and check the input; the batch is then in progress, or has failed."""
    batch, file = await in_db_thread(lambda: _find(job))
    if file is None:
        message = f"The input file '{batch.input_file_id}' does not exist any more."
        await in_db_thread(lambda: _fail(job, [_error(InvalidLine("invalid_request", message, param="input_file_id"))]))
    elif file.size > MAX_BYTES:
        message = f"The input file is too large: the limit is {MAX_BYTES // 1024 // 1024} MiB."
        await in_db_thread(lambda: _fail(job, [_error(InvalidLine("file_too_large", message, param="input_file_id"))]))
    else:
        content = await storage.open_content(file)
        await in_thread(partial(_read, job, batch, content))


def _find(job: Job) -> tuple[Batch, File | None]:
    with scope.team(job.team_id):
        batch = Batch.objects.get(pk=job.batch_id)
        return batch, storage.find_file(team_id=job.team_id, file_id=batch.input_file_id)


def _read(job: Job, batch: Batch, content: "Content[bytes]", halt: StopSignal) -> None:
    """Twice: what is not valid costs no rows."""
    intake = _Intake()
    with content:
        for _ in halt.unless_set(_lines(batch.endpoint, intake, content)):
            pass
        if intake.errors:
            _fail(job, intake.errors)
            return
        content.seek(0)
        try:
            _store(job, batch, intake, halt.unless_set(_chunks(batch, content)))
        except _Lost:
            return


def _store(job: Job, batch: Batch, intake: _Intake, chunks: Iterator[list[BatchLine]]) -> None:
    with scope.team(batch.team_id):
        for rows in chunks:
            BatchLine.objects.bulk_create(rows)
        _begin(job, intake)


def _chunks(batch: Batch, content: "Content[bytes]") -> Iterator[list[BatchLine]]:
    """The lines as rows, a bounded number at once."""
    rows: list[BatchLine] = []
    size = 0
    for position, line in enumerate(_lines(batch.endpoint, _Intake(), content)):
        given = {"position": position, "custom_id": line.custom_id, "body": line.body}
        rows.append(BatchLine(team_id=batch.team_id, batch=batch, **given))
        size += len(line.body)
        if len(rows) >= _AT_ONCE or size >= _AT_ONCE_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


def _lines(endpoint: str, intake: _Intake, content: "Content[bytes]") -> Iterator[BatchInputLine]:
    """The valid lines; what is wrong with the others is noted."""
    number = 0
    while raw := content.readline(_MOST_BYTES_OF_A_LINE):
        number += 1
        if not raw.strip():
            continue
        intake.lines += 1
        if (stop := _stop(intake, raw)) is not None:
            intake.refuse(stop, number)
            return
        try:
            line = parse_line(raw, endpoint=endpoint)
            intake.add(line)
        except InvalidLine as error:
            intake.refuse(error, number)
        else:
            yield line
        if len(intake.errors) >= _MOST_ERRORS:
            return
    if not intake.lines:
        intake.refuse(InvalidLine("empty_batch", "The input file has no lines."))


def _stop(intake: _Intake, raw: bytes) -> InvalidLine | None:
    """Why there is no use in reading on."""
    if intake.lines > MAX_LINES:
        return InvalidLine("too_many_tasks", f"The input file has more than {MAX_LINES} lines.")
    if len(raw) >= _MOST_BYTES_OF_A_LINE:
        return InvalidLine("invalid_request", "This line is larger than the body of a request may be.")
    return None


def _begin(job: Job, intake: _Intake) -> None:
    [*models] = intake.models
    found = queue.held(job).filter(status=BatchStatus.VALIDATING, ending=BatchStatus.COMPLETED)
    begun = found.update(
        status=BatchStatus.IN_PROGRESS,
        total=intake.lines,
        model=models[0] if len(models) == 1 else None,
        in_progress_at=now(),
        lease_until=None,
    )
    if not begun:
        raise _Lost


def _fail(job: Job, errors: list[dict[str, Any]]) -> None:
    with scope.team(job.team_id):
        found = queue.held(job).filter(status=BatchStatus.VALIDATING, ending=BatchStatus.COMPLETED)
        failed = found.update(
            status=BatchStatus.FAILED, ending=BatchStatus.FAILED, errors=errors, ended_at=now(), lease_until=None
        )
        if failed:
            announce(team_id=job.team_id, event_type="batch.failed", object_id=job.batch_id)


def _error(error: InvalidLine) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "param": error.param, "line": None}
