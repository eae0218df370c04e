"""Output and error files of batches at real sizes, larger than every buffer that is kept in memory."""

import errno
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync

from conversations.files import storage
from conversations.models import File, FileState
from core.clock import now
from core.process_name import process_name
from core.work.leases import lease_until
from gateway.batches import files
from gateway.batches.queue import UNCOUNTED_AFTER, Job
from gateway.batches.services import count_open_batches
from responses.models.batches import Batch, BatchLine, BatchStatus, LineState
from tenants import directory, scope
from tests.storage.test_batch_queue import create_batches
from tests.support.api import Caller

pytestmark = pytest.mark.usefixtures("database")
# 60 lines are 12 MiB, twelve times as much as a file keeps in memory.
ANSWER = {"instructions": "é" * 100_000}
LINES = 60
REASONS = {BatchStatus.CANCELLED: "batch_cancelled", BatchStatus.EXPIRED: "batch_expired"}


def claimed_batch(caller: Caller, ending: BatchStatus, lines: Sequence[BatchLine]) -> Job:
    """Create a batch whose lines have ended, claimed by this process."""
    status = BatchStatus.CANCELLING if ending == BatchStatus.CANCELLED else BatchStatus.FINALIZING
    lease = {"lease_owner": process_name(), "lease_token": 1, "lease_until": lease_until()}
    with scope.team(caller.team.pk):
        [batch_id] = create_batches(caller, 1, status=status, ending=ending, total=len(lines), **lease)
        for line in lines:
            line.team, line.batch_id = caller.team, batch_id
        BatchLine.objects.bulk_create(lines)
    return Job(id=batch_id, team_id=caller.team.pk, token=1, is_new=False)


def answered(position: int, *, is_success: bool = True) -> BatchLine:
    """Return a line with a large answer."""
    return BatchLine(
        position=position,
        custom_id=str(position),
        state=LineState.COMPLETED if is_success else LineState.FAILED,
        status_code=200 if is_success else 500,
        answer=orjson.dumps(ANSWER | {"n": position}).decode(),
        input_tokens=1,
    )


def unanswered(position: int, code: str) -> BatchLine:
    """Return a line that ended without an answer."""
    return BatchLine(position=position, custom_id=f"{position}" * 20, state=LineState.FAILED, error_code=code)


def ended(job: Job) -> Batch:
    """Write the files of the batch and return it."""
    async_to_sync(files.write_output)(job)
    with scope.team(job.team_id):
        assert not BatchLine.objects.filter(batch=job.id).exists()
        return Batch.objects.get(pk=job.id)


def read_lines(team_id: str, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a published file, whose size and checksum are those of its row."""
    if file_id is None:
        return []
    with scope.team(team_id):
        file = File.objects.get(pk=file_id, state=FileState.READY)
    with async_to_sync(storage.open_content)(file) as content:
        data = content.read()
    assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    return [orjson.loads(line) for line in data.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [BatchStatus.COMPLETED, BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_results_of_several_megabytes_are_written(caller: Caller, ending: BatchStatus) -> None:
    job = claimed_batch(caller, ending, [answered(n) for n in range(LINES)])
    batch = ended(job)
    assert (batch.status, batch.completed, batch.input_tokens) == (ending, LINES, LINES)
    lines = read_lines(job.team_id, batch.output_file_id)
    assert [line["response"]["body"] for line in lines] == [ANSWER | {"n": n} for n in range(LINES)]
    assert batch.error_file_id is None


@pytest.mark.slow
@pytest.mark.parametrize("ending", [BatchStatus.COMPLETED, BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_errors_of_several_megabytes_are_written(caller: Caller, ending: BatchStatus) -> None:
    count = 10_000
    lines = [unanswered(n, REASONS[ending]) for n in range(count)] if ending in REASONS else []
    lines += [answered(count + n, is_success=False) for n in range(LINES)]
    batch = ended(job := claimed_batch(caller, ending, lines))
    assert (batch.status, batch.completed, batch.failed) == (ending, 0, len(lines))
    read = read_lines(job.team_id, batch.error_file_id)
    assert [line["custom_id"] for line in read] == [line.custom_id for line in lines]
    assert batch.output_file_id is None


@pytest.mark.slow
def test_output_and_errors_of_several_megabytes_are_written_together(caller: Caller) -> None:
    lines = [answered(n, is_success=n % 2 == 0) for n in range(LINES)]
    batch = ended(job := claimed_batch(caller, BatchStatus.COMPLETED, lines))
    assert (batch.completed, batch.failed) == (LINES // 2, LINES // 2)
    for file_id, first in ((batch.output_file_id, 0), (batch.error_file_id, 1)):
        assert [line["custom_id"] for line in read_lines(job.team_id, file_id)] == [
            str(n) for n in range(first, LINES, 2)
        ]


def test_a_failure_is_stored_with_its_reason(caller: Caller) -> None:
    job = claimed_batch(caller, BatchStatus.COMPLETED, [answered(0)])
    files.postpone(job, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/files"))
    with scope.team(job.team_id):
        batch = Batch.objects.get(pk=job.id)
    assert batch.files_retry_at is not None
    assert (batch.status, batch.file_failures, batch.lease_until) == ("finalizing", 1, None)
    # Without the path, which clients must not see.
    assert batch.file_error == "No space left on device"


def test_a_batch_that_ends_clears_its_earlier_failures(caller: Caller) -> None:
    job = claimed_batch(caller, BatchStatus.COMPLETED, [answered(0)])
    with scope.team(job.team_id):
        Batch.objects.filter(pk=job.id).update(file_failures=3, file_error="No space left on device")
    batch = ended(job)
    assert (batch.status, batch.file_failures, batch.file_error) == ("completed", 0, "")


def test_a_batch_that_cannot_store_results_for_a_day_is_not_counted(caller: Caller) -> None:
    job = claimed_batch(caller, BatchStatus.COMPLETED, [answered(0)])
    principal = directory.principal(caller.secret)
    with scope.team(job.team_id):
        assert count_open_batches(principal, None) == 1
        Batch.objects.filter(pk=job.id).update(file_failures=UNCOUNTED_AFTER - 1)
    files.postpone(job, OSError())
    with scope.team(job.team_id):
        assert count_open_batches(principal, None) == 0


@pytest.mark.parametrize("ending", [BatchStatus.COMPLETED, BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_a_batch_fails_when_its_results_would_have_expired(caller: Caller, ending: BatchStatus) -> None:
    job = claimed_batch(caller, ending, [answered(0), answered(1, is_success=False)])
    started = "cancelling_at" if ending == BatchStatus.CANCELLED else "finalizing_at"
    with scope.team(job.team_id):
        Batch.objects.filter(pk=job.id).update(**{started: now() - storage.BATCH_LIFETIME})
    files.postpone(job, OSError())
    with scope.team(job.team_id):
        batch = Batch.objects.get(pk=job.id)
        assert not BatchLine.objects.filter(batch=job.id).exists()
    assert (batch.status, batch.completed, batch.failed) == ("failed", 1, 1)
    assert batch.errors is not None
    assert batch.errors[0]["code"] == "results_not_stored"
