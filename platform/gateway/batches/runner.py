"""The batch runner of a worker: starts and ends batches, and executes lines in slots that no background run needs.

It polls the database every second and does not depend on notifications.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.conf import settings
from django.db import Error as DatabaseError
from typing_extensions import override

from core.db.database import is_unavailable
from core.db.db_threads import in_db_thread
from core.origin import Caller
from core.telemetry.logs import RefusedAccess
from core.work.work_queue import WorkLoop
from gateway.batches import execution, files, queue
from gateway.batches.queue import MAX_ATTEMPTS, ClaimedLine, Job, LineResult
from limits import refused_requests

_MAX_JOBS = 2
# A restart of the database takes seconds. An answer that the upstream has billed must not be lost because of it.
_DATABASE_PATIENCE_SECONDS = 60.0
_DATABASE_PAUSE_SECONDS = 1.0
Result = TypeVar("Result")


class BatchRunner(WorkLoop[Job | ClaimedLine]):
    """Runs the batches of one process. `spare` returns how many more runs the process has capacity for."""

    kind = "batches"
    pace_seconds = 0.05

    def __init__(self, spare: Callable[[], int], *, max_lines: int) -> None:
        super().__init__()
        self._spare = spare
        self._max_lines = max_lines
        # A third of the lease leaves two more tries before it expires.
        self.renew_seconds = settings.LEASE_SECONDS / 3

    @override
    async def claim(self) -> bool:
        lines = self._lines()
        if not lines and await in_db_thread(queue.is_idle):
            return False
        if lines:
            for line in await in_db_thread(partial(queue.lines_to_stop, lines)):
                # The line may have ended during the query.
                if line in self.work:
                    self.work[line].cancel()
        await in_db_thread(queue.expire)
        jobs = [claim for claim in self.work if isinstance(claim, Job)]
        for job in await in_db_thread(partial(queue.claim_batches, limit=_MAX_JOBS - len(jobs), own=jobs)):
            self.begin(job)
        # `spare` counts background runs only, so the lines of this runner are subtracted.
        lines = self._lines()
        slots = 0 if self.is_stopping else max(0, min(self._max_lines, self._spare()) - len(lines))
        found = await in_db_thread(partial(queue.claim_lines, slots=slots, own=lines)) if slots else []
        for line in found:
            self.begin(line)
        return bool(found)

    @override
    def renew(self, claims: Collection[Job | ClaimedLine]) -> datetime:
        return queue.renew(claims)

    @override
    async def execute(self, claim: Job | ClaimedLine) -> None:
        if isinstance(claim, Job):
            await _work_on_files(claim)
            return
        try:
            body = await in_db_thread(partial(queue.body_of, claim))
            if body is not None:
                recording = asyncio.ensure_future(_record(claim, await execution.execute(claim, body)))
                try:
                    await asyncio.shield(recording)
                except asyncio.CancelledError:
                    # The result is stored in spite of the cancellation: then the line has ended and need not be
                    # requeued.
                    await recording
        except asyncio.CancelledError:
            # Either the process is stopping, or the batch was cancelled or has expired.
            ending = queue.requeue if self.is_stopping else queue.end_stopped
            await asyncio.shield(in_db_thread(partial(ending, claim)))

    @override
    async def drain(self) -> None:
        """Let running lines finish for a while, and requeue the rest."""
        if lines := self._lines():
            await asyncio.wait([self.work[line] for line in lines], timeout=settings.WORKER_DRAIN_SECONDS)
        remaining = [*self.work.values()]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    def _lines(self) -> list[ClaimedLine]:
        return [claim for claim in self.work if isinstance(claim, ClaimedLine)]


async def _work_on_files(job: Job) -> None:
    """Read the input of a batch or write its output. If that fails, any worker may try again after a pause."""
    try:
        await (files.read_input(job) if job.is_new else files.write_output(job))
    except asyncio.CancelledError:
        await in_db_thread(partial(queue.release, job))
        raise
    except Exception as error:
        await in_db_thread(partial(files.postpone, job, error))
        raise


async def _record(line: ClaimedLine, result: LineResult) -> None:
    """Store the result, or requeue the line if another attempt may succeed."""
    if result.pause is not None:
        await _with_retries(partial(queue.wait, line, result.pause))
    elif result.is_retryable and line.attempt < MAX_ATTEMPTS:
        # Jitter: lines that failed together, for instance at a rate limit, must not be retried together.
        pause = settings.BATCH_RETRY_SECONDS * 2 ** (line.attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        seconds = max(pause, result.retry_after or 0.0)
        await _with_retries(partial(queue.retry_later, line, seconds=seconds))
    else:
        await _with_retries(partial(queue.store_result, line, result))
        if result.refused is not None:
            refused_requests.record(_refused(line, result, result.refused))


def _refused(line: ClaimedLine, result: LineResult, caller: Caller) -> RefusedAccess:
    return RefusedAccess(
        method="BATCH",
        path=f"{line.endpoint} ({line.batch_id})",
        route=line.endpoint,
        request_id=result.request_id,
        status=result.status_code,
        code=caller.code,
        message=caller.message,
        model=caller.model,
        team_id=caller.team_id,
        key_id=caller.key_id,
        key_hint="",
    )


async def _with_retries(write: Callable[[], Result]) -> Result:
    """Write to the database, waiting while it is unavailable."""
    deadline = time.monotonic() + _DATABASE_PATIENCE_SECONDS
    while True:
        try:
            return await in_db_thread(write)
        except DatabaseError as error:
            if not is_unavailable(error) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_DATABASE_PAUSE_SECONDS)
