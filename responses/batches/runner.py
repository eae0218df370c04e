"""Drives the batches of a worker: begins and ends them, and answers lines in the slots that no background run wants.

It looks by itself every second; nothing depends on a message.
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
from responses.batches import execution, input_file, output_files, queue
from responses.batches.queue import MOST_ATTEMPTS, ClaimedLine, Job, LineResult
from responses.runs.runner import wait_within

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_PACE_SECONDS = 0.05
_MOST_JOBS = 2
# A database that restarts is away for seconds; an answer that was paid for waits for it.
_PATIENCE_SECONDS = 60.0
Result = TypeVar("Result")


class BatchRunner:
    """The batches that this process is at. `spare` says how many more runs the process could take now."""

    def __init__(self, spare: Callable[[], int], *, most_lines: int) -> None:
        self._spare = spare
        self._most_lines = most_lines
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._lines: dict[ClaimedLine, asyncio.Task[None]] = {}
        self._jobs: dict[Job, asyncio.Task[None]] = {}
        self._renewed = time.monotonic()
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def stop(self, *, drain_seconds: float) -> None:
        """Begin nothing more, let lines end for a while, and give the rest back to other workers."""
        self._is_stopping = True
        self._wake.set()
        await self._looking
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=drain_seconds)
        left = [*self._lines.values(), *self._jobs.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                has_more = await self._look_once()
            except DatabaseError:
                logger.warning("nothing can be known of batches right now", exc_info=True)
                has_more = False
            except Exception:
                # A look that fails must not be the last one.
                logger.exception("a look at batches broke")
                has_more = False
            if not has_more:
                await wait_within(self._wake, _LOOK_SECONDS)
                # Lines that end one after the other are looked after together.
                await asyncio.sleep(_PACE_SECONDS)

    async def _look_once(self) -> bool:
        """Whether something began, so that there may be more."""
        await self._keep()
        if not self._lines and await in_db_thread(queue.is_idle):
            return False
        await in_db_thread(queue.end_early)
        jobs = await in_db_thread(partial(queue.take_batches, most=_MOST_JOBS - len(self._jobs), mine=[*self._jobs]))
        for job in jobs:
            self._jobs[job] = self._task(self._do(job))
        room = 0 if self._is_stopping else max(0, min(self._most_lines, self._spare()) - len(self._lines))
        lines = await in_db_thread(partial(queue.take_lines, room=room, mine=[*self._lines])) if room else []
        for line in lines:
            self._lines[line] = self._task(self._answer(line))
        return bool(lines)

    async def _keep(self) -> None:
        """Hold what is under way, and stop what nobody wants any more."""
        if time.monotonic() - self._renewed > settings.LEASE_SECONDS / 3:
            self._renewed = time.monotonic()
            await in_db_thread(partial(queue.renew, lines=[*self._lines], jobs=[*self._jobs]))
        if self._lines:
            for line in await in_db_thread(partial(queue.to_stop, [*self._lines])):
                if line in self._lines:
                    self._lines[line].cancel()

    def _task(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)

    # -- working -------------------------------------------------------------------------------------------------------

    async def _do(self, job: Job) -> None:
        """Begin or end a batch. What fails is tried again once the lease has run out."""
        try:
            await (input_file.read_input(job) if job.is_new else output_files.close(job))
        except asyncio.CancelledError:
            await in_db_thread(partial(queue.release, job))
            raise
        except Exception:
            logger.exception("a batch could not be begun or ended", extra={"batch": job.batch_id})
        finally:
            del self._jobs[job]
            self._wake.set()

    async def _answer(self, line: ClaimedLine) -> None:
        try:
            body = await in_db_thread(partial(queue.body_of, line))
            if body is not None:
                await _unbroken(_settled(line, await execution.answer(line, body)))
        except asyncio.CancelledError:
            ending = queue.give_back if self._is_stopping else queue.end_unanswered
            await asyncio.shield(in_db_thread(partial(ending, line)))
        except Exception:
            # Its lease runs out; then it is tried again, as often as it may be.
            logger.exception("a line of a batch could not be ended", extra={"line": line.line_id})
        finally:
            del self._lines[line]
            self._wake.set()


async def _settled(line: ClaimedLine, answered: LineResult) -> None:
    """Keep the answer, or have the line tried again where that may help."""
    if answered.may_pass and line.attempt < MOST_ATTEMPTS:
        # Spread, so that what failed together is not tried again together.
        pause = settings.BATCH_RETRY_SECONDS * 2 ** (line.attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        seconds = max(pause, answered.retry_after or 0.0)
        await _patiently(partial(queue.put_off, line, seconds=seconds))
    else:
        await _patiently(partial(queue.end_line, line, answered))


async def _unbroken(work: "Coroutine[Any, Any, None]") -> None:
    """Do this to its end: whoever is told to stop meanwhile has nothing left to give back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task


async def _patiently(write: Callable[[], Result]) -> Result:
    """Write, waiting for a database that is away for a moment."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return await in_db_thread(write)
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_SECONDS)
