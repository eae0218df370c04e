"""The batch runner of a worker: starts and ends batches, and executes lines in slots that no background run needs.

It polls the database every second and does not depend on notifications.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError

from kernel.db_threads import in_db_thread
from kernel.notifications import wait_within
from responses.batches import execution, input_file, output_files, queue
from responses.batches.queue import MAX_ATTEMPTS, ClaimedLine, Job, LineResult

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
_PACE_SECONDS = 0.05
_MAX_JOBS = 2
# A restart of the database takes seconds. An answer that the upstream has billed must not be lost because of it.
_DATABASE_PATIENCE_SECONDS = 60.0
Result = TypeVar("Result")


class BatchRunner:
    """Runs the batches of one process. `spare` returns how many more runs the process has capacity for."""

    def __init__(self, spare: Callable[[], int], *, max_lines: int) -> None:
        self._spare = spare
        self._max_lines = max_lines
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._lines: dict[ClaimedLine, asyncio.Task[None]] = {}
        self._jobs: dict[Job, asyncio.Task[None]] = {}
        self._renewed = time.monotonic()
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def stop(self, *, drain_seconds: float) -> None:
        """Stop claiming, let running lines finish for a while, and requeue the rest."""
        self._is_stopping = True
        self._wake.set()
        await self._polling
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=drain_seconds)
        remaining = [*self._lines.values(), *self._jobs.values()]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    # -- polling -------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                has_more = await self._poll_once()
            except DatabaseError:
                logger.warning("the batch queue cannot be read", exc_info=True)
                has_more = False
            except Exception:
                # An unexpected error must not end the loop: no other one in this process would continue the batches.
                logger.exception("polling the batch queue failed")
                has_more = False
            if not has_more:
                await wait_within(self._wake, _POLL_SECONDS)
                # Lines that end at nearly the same time are replaced by one query.
                await asyncio.sleep(_PACE_SECONDS)

    async def _poll_once(self) -> bool:
        """Claim batches and lines; return whether lines were claimed and more may be waiting."""
        await self._renew_leases()
        if not self._lines and await in_db_thread(queue.is_idle):
            return False
        await in_db_thread(queue.expire)
        jobs = await in_db_thread(partial(queue.claim_batches, limit=_MAX_JOBS - len(self._jobs), own=[*self._jobs]))
        for job in jobs:
            self._jobs[job] = self._task(self._run_job(job))
        # `spare` counts background runs only, so the lines of this runner are subtracted.
        slots = 0 if self._is_stopping else max(0, min(self._max_lines, self._spare()) - len(self._lines))
        lines = await in_db_thread(partial(queue.claim_lines, slots=slots, own=[*self._lines])) if slots else []
        for line in lines:
            self._lines[line] = self._task(self._run_line(line))
        return bool(lines)

    async def _renew_leases(self) -> None:
        """Renew leases and cancel the lines that have to stop."""
        # A third of the lease leaves two more tries before it expires.
        if time.monotonic() - self._renewed > settings.LEASE_SECONDS / 3:
            self._renewed = time.monotonic()
            await in_db_thread(partial(queue.renew, lines=[*self._lines], jobs=[*self._jobs]))
        if self._lines:
            for line in await in_db_thread(partial(queue.lines_to_stop, [*self._lines])):
                # It may have ended during the query.
                if line in self._lines:
                    self._lines[line].cancel()

    def _task(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)

    # -- execution -----------------------------------------------------------------------------------------------------

    async def _run_job(self, job: Job) -> None:
        """Start or end a batch."""
        try:
            await (input_file.read_input(job) if job.is_new else output_files.write_output(job))
        except asyncio.CancelledError:
            await in_db_thread(partial(queue.release, job))
            raise
        except Exception:
            # The lease is not released: its expiry is the pause before the next try.
            logger.exception("a batch could not be started or ended", extra={"batch": job.batch_id})
        finally:
            del self._jobs[job]
            self._wake.set()

    async def _run_line(self, line: ClaimedLine) -> None:
        try:
            body = await in_db_thread(partial(queue.body_of, line))
            if body is not None:
                await _uninterrupted(_record(line, await execution.execute(line, body)))
        except asyncio.CancelledError:
            # Either the process is stopping, or the batch was cancelled or has expired.
            ending = queue.requeue if self._is_stopping else queue.end_stopped
            await asyncio.shield(in_db_thread(partial(ending, line)))
        except Exception:
            # When its lease expires, the line is claimed again, up to MAX_ATTEMPTS times.
            logger.exception("the result of a batch line could not be stored", extra={"line": line.line_id})
        finally:
            del self._lines[line]
            self._wake.set()


async def _record(line: ClaimedLine, result: LineResult) -> None:
    """Store the result, or requeue the line if another attempt may succeed."""
    if result.is_retryable and line.attempt < MAX_ATTEMPTS:
        # Jitter: lines that failed together, for instance at a rate limit, must not be retried together.
        pause = settings.BATCH_RETRY_SECONDS * 2 ** (line.attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        seconds = max(pause, result.retry_after or 0.0)
        await _with_retries(partial(queue.retry_later, line, seconds=seconds))
    else:
        await _with_retries(partial(queue.store_result, line, result))


async def _uninterrupted(work: "Coroutine[Any, Any, None]") -> None:
    """Finish the work even if the task is cancelled; the line is ended then and need not be requeued."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task


async def _with_retries(write: Callable[[], Result]) -> Result:
    """Write to the database, waiting while it is unavailable."""
    deadline = time.monotonic() + _DATABASE_PATIENCE_SECONDS
    while True:
        try:
            return await in_db_thread(write)
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_POLL_SECONDS)
