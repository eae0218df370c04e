"""Execute runs in this process: one task per run, with at most one client attached, and a registry of all runs.

A run belongs to the process and not to the connection of its client. JSON requests and streams are served by the same
task. When the client disconnects, a setting of the team decides for how long the run continues.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from enum import IntEnum, auto
from functools import partial
from typing import Protocol, cast

from django.conf import settings
from django.db import Error as DatabaseError
from structlog.contextvars import bind_contextvars

from core.db import wait_limit
from core.db.database import is_unavailable
from core.db.db_threads import in_db_thread
from core.errors import DATABASE_LOST, FINAL, SHUTTING_DOWN, Failure, ServerError
from core.load.draining import BEAT_SECONDS, ConnectionCut, surplus
from core.process_name import process_name
from core.records import record
from core.telemetry import metrics
from core.work.leases import Claim, expired_before, lease_until
from core.work.notifications import loop_notifications, wait_within
from engine.events.response_body import Ending, failed
from engine.events.types import DONE_FRAME, Event
from engine.loop import Run
from engine.steps import (
    Emitted,
    RunEnded,
    RunSuspended,
    Step,
    ToolsPrepared,
    ToolsStarted,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
)
from providers.first_answer import FirstAnswer
from responses.runs import run_leases
from responses.runs.client_stream import PING, ClientStream
from responses.runs.identity import OBSERVED, RunIdentity, channel_of_process
from responses.runs.recorder import Recorder
from responses.runs.store import LeaseLost

logger = logging.getLogger(__name__)
# Intervals at which a process checks for lost runs, without notifications and with notifications, which may be lost.
_POLL_SECONDS, _NOTIFIED_POLL_SECONDS = 0.5, 3.0
# Within this time, a process that shuts down stores a group of runs.
_NOTIFY_SECONDS = 0.03
# A run without a step for this time counts as waiting: the chunks and tool calls of active runs come faster.
_WAITS_AFTER_SECONDS = 0.25
_INTERNAL_ERROR = Failure.of(ServerError())
_CANCELLED = Ending(status="cancelled")
# Marked as final, so that clients do not retry: most of these runs were cancelled or deleted on purpose.
_ENDED_ELSEWHERE = Failure.of(ServerError("The run was ended by another process.", headers=FINAL))


class StreamFormat(Protocol):
    """Format of a client's stream that is not the format of the Responses API. The event log does not depend on it."""

    ping: bytes

    def open(self, events: Sequence[Event], *, input_tokens: int) -> bytes:
        """Return the bytes of the first events. `input_tokens` is an estimate."""
        ...

    def write(self, step: Step) -> bytes:
        """Return the bytes of a step that was recorded."""
        ...

    def close(self) -> bytes:
        """Return the bytes that end the stream of a run that has no terminal event."""
        ...


@record
class AssembledRun:
    """A run that this process may execute, with its recorder and its identity."""

    run: Run
    recorder: Recorder
    identity: RunIdentity


@record
class RunClient:
    """The client that created a run, and the format of its stream.

    `opening` are the bytes of the first events, which are sent after the response is committed. Without a
    `stream_format`, the stream has the format of the Responses API. A stream waits for the `first_answer` of the
    upstream.
    """

    opening: bytes = b""
    warnings: Sequence[str] = ()
    stream_format: StreamFormat | None = None
    first_answer: FirstAnswer | None = None


class Stop(IntEnum):
    """Reason why a run stops before its own end. If there are several, the reason that is listed last is used."""

    NONE = auto()
    AFTER_STEP = auto()
    """The run stops after the next step from which a worker can resume it."""
    END = auto()
    """The run ends as `cancelled` or `failed`."""
    NOW = auto()
    """The run stops immediately. A worker resumes it and repeats the open turn."""
    LOST = auto()
    """Another process has ended or resumed the run."""


class LiveRun:
    """A run in this process.

    - `grace_seconds`: the time for which a stored run continues without its client; None: until it ends. An unstored
      run stops immediately.
    - `client`: the client that created the run. It receives bytes only if the run is streamed.
    - `claim`: the worker's claim of a background run.
    - `encrypted_secrets`: returns the data of the request that workers need in addition to the stored data.
    """

    def __init__(
        self,
        assembled: AssembledRun,
        *,
        grace_seconds: float | None,
        client: RunClient | None = None,
        claim: Claim | None = None,
        encrypted_secrets: Callable[[], str] = str,
    ) -> None:
        client = client or RunClient()
        self.identity = identity = assembled.identity
        self.warnings = client.warnings
        self.claim = claim
        self.end: RunEnded | None = None
        self.leased_until = lease_until()
        # True if the database was unavailable when the lease was to be checked or renewed.
        self.misses_database = False
        self._run = assembled.run
        self._recorder = assembled.recorder
        self._format = client.stream_format
        self._first_answer = client.first_answer
        self._grace_seconds = grace_seconds if identity.stored else 0
        self._encrypted_secrets = encrypted_secrets
        self._stream = ClientStream(
            ping=PING if self._format is None else self._format.ping,
            # Clients of a run in a worker read the event log instead.
            has_reader=identity.streamed and not identity.in_worker,
        )
        self._stream.put(client.opening)
        self.next_sequence = self._recorder.log.next_sequence
        """The number of the next event. After the end of `frames`, the client has received all events before it."""
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_suspended = False
        """True if the run waits for decisions of people, and was left to the workers until then."""
        # Created for the first caller that waits: an open stream has none, and an event takes 0.8 KB.
        self._over: asyncio.Event | None = None
        self._stop = Stop.NONE
        # Set when the end of the run is being written, or the run is left to a worker. Then the run cannot be stopped.
        self._is_ending = False
        self._notify_workers: Callable[[], None] | None = None
        self._ending = _CANCELLED
        self._unaccounted: TurnRecord | None = None
        self._grace: asyncio.Task[None] | None = None
        self._is_recording = False
        self._recorded_at = time.monotonic()

    def start(self) -> None:
        """Start the task that executes the run. The registry renews the lease until it has ended."""
        _registry.add(self)
        self._recorder.log.flush_soon()
        self._task = asyncio.get_running_loop().create_task(self._execute())

    # -- for the client ------------------------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Wait until the upstream begins to answer, but at most for two seconds after each request.

        Raises an API error if the run has failed before. Otherwise, the stream can be read from `frames`.
        """
        if self._first_answer is not None:
            await self._first_answer.wait()
            failure = None if self.end is None else self.end.ending.failure
            if failure is not None and not self._first_answer.has_begun:
                self._stream.drop_reader()
                raise failure.as_api_error()

    def frames(self, disconnect: Callable[[], None] | None = None) -> AsyncGenerator[bytes, None]:
        """Return the stream of bytes for the client, with pings in between (see `ClientStream.read`).

        Raises `ConnectionCut` if another process continues the run, and `DatabaseUnavailable` if its end could not be
        stored.
        """
        return self._stream.read(disconnect)

    def _release_client(self, error: Exception | None = None) -> None:
        """End the stream, and wake the callers that wait for the end of the run."""
        self._stream.close(ConnectionCut() if self.end is None else error)
        self._is_over = True
        if self._over is not None:
            self._over.set()

    async def finished(self) -> RunEnded:
        """Wait until the run has ended and return its end. If the database is unavailable, the wait is limited."""
        if self._task is not None:
            # A client that stops waiting does not cancel the run.
            if not self._is_over:
                self._over = self._over or asyncio.Event()
                await self._over.wait()
            if self._task.done():
                self._task.result()
        return cast("RunEnded", self.end)

    async def stored(self) -> None:
        """Wait until the run has stored everything that it can store."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def detach(self) -> None:
        """Let the run continue without the client for the team's grace period, and then cancel it."""
        self._stream.drop_reader()
        if self._grace_seconds is None or self._task is None or self._task.done():
            return
        if self._grace_seconds == 0:
            self.cancel()
        else:
            self._grace = asyncio.get_running_loop().create_task(self._cancel_unless_followed(self._grace_seconds))

    # -- stopping ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the run: the upstream connection is closed and the response ends as `cancelled`."""
        self._stop_now(Stop.END)

    def fail(self, failure: Failure) -> None:
        """Stop the run: the upstream connection is closed and the response ends as `failed`."""
        self._ending = failed(failure)
        self._stop_now(Stop.END)

    def lose(self) -> None:
        """Stop the run without storing its end, because another process has ended or resumed it."""
        self._stop_now(Stop.LOST)

    def stop_after_step(self) -> None:
        """Stop after the next step from which another worker can resume without repeating anything."""
        self._stop = max(self._stop, Stop.AFTER_STEP)

    def stop_now(self) -> None:
        """Stop immediately without ending the response. The worker that resumes it repeats the open turn."""
        self._stop_now(Stop.NOW)

    def _stop_now(self, reason: Stop) -> None:
        self._stop = max(self._stop, reason)
        if self._task is not None and not self._task.done():
            # Deferred, because a task that is cancelled before its first step never runs, and would not store its end.
            self._task.get_loop().call_soon(self._interrupt)

    def _interrupt(self) -> None:
        # Writing the end of the run must not be interrupted.
        if self._task is not None and not self._is_ending:
            self._task.cancel()

    # -- for followers -------------------------------------------------------------------------------------------------

    def serve_followers(self) -> None:
        """Send new events to followers in other processes from now on."""
        self._recorder.log.serve_followers()

    def serve_observers(self) -> None:
        """Store new events soon, for pages that list this run."""
        self._recorder.log.serve_observers()

    # -- for a process that shuts down ---------------------------------------------------------------------------------

    @property
    def can_be_handed_over(self) -> bool:
        """True if a worker can continue the run while the client continues to read the event log."""
        return self.identity.stored and self.identity.streamed and self._format is None and not self.identity.in_worker

    @property
    def waits(self) -> bool:
        """True if the run only waits for a tool or the upstream, and uses neither this process nor the database."""
        return not self._is_recording and time.monotonic() - self._recorded_at > _WAITS_AFTER_SECONDS

    @property
    def is_stopping(self) -> bool:
        """True if the run was asked to stop immediately without ending the response."""
        return self._stop >= Stop.NOW

    def hand_over_after_step(self, notify_workers: Callable[[], None]) -> None:
        """After the next step from which a worker can resume the run, leave it to the workers and notify them."""
        self._notify_workers = notify_workers
        self.stop_after_step()

    async def _leave_to_successor(self, unfinished: TurnRecord | None = None) -> None:
        # The events that followers have received must be stored. The tokens of the unfinished turn must be recorded,
        # because the other worker requests the turn again and its tokens are paid a second time.
        self._is_ending = True
        unfinished = unfinished or self._run.interrupt(Ending(status="cancelled")).turn
        try:
            await self._recorder.log.flush()
            if unfinished is not None:
                await self._recorder.record_usage(unfinished)
            await self._hand_over()
        except LeaseLost:
            await self._end_unstored()

    async def _hand_over(self) -> None:
        """Release the run to the workers if a handover was requested and the run has not ended."""
        if self._notify_workers is None or self.end is not None:
            return
        self._is_ending = True
        try:
            await in_db_thread(partial(run_leases.release_to_workers, self.identity, self._encrypted_secrets()))
        except Exception:
            # The lease expires, and then the sweeper ends the response.
            logger.exception("a run could not be handed over", extra={"response": self.identity.response_id})
            return
        self._notify_workers()

    # -- without a client ----------------------------------------------------------------------------------------------

    async def _cancel_unless_followed(self, grace_seconds: float) -> None:
        # The client may have reconnected to another process. While it follows the log there, the run continues.
        wait = grace_seconds
        while wait > 0:
            await asyncio.sleep(wait)
            try:
                wait = await in_db_thread(partial(run_leases.followed_for, self.identity))
            except Exception:
                logger.exception(
                    "cannot tell whether a run is followed; cancelling it",
                    extra={"response": self.identity.response_id},
                )
                wait = 0
        self.cancel()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _execute(self) -> None:
        # Added to all log lines of the run, because a run in a worker is outside of the request that created it.
        bind_contextvars(request_id=self.identity.request_id, response=self.identity.response_id)
        try:
            async with aclosing(self._run.steps()) as steps:
                async for step in steps:
                    if self._stop is Stop.NOW and isinstance(step, TurnEnded | TurnDiscarded | RunEnded):
                        # Code of the turn may have caught the cancellation and converted it to a regular end. This step
                        # must not be recorded, because it would end the response, which another worker resumes.
                        await self._leave_to_successor(step.turn)
                        return
                    await self._record(step)
                    leaves = self._stop in (Stop.AFTER_STEP, Stop.NOW)
                    if leaves and self._run.is_idle and not isinstance(step, Emitted):
                        await self._hand_over()
                        return
        except asyncio.CancelledError:
            match self._stop:
                case Stop.LOST:
                    await self._end_unstored()
                case Stop.NOW:
                    await self._leave_to_successor()
                case _:
                    await self._end(self._ending)
        except LeaseLost:
            await self._end_unstored()
        except Exception as error:
            if not is_unavailable(error):
                logger.exception("run failed", extra={"response": self.identity.response_id})
                await self._end(failed(_INTERNAL_ERROR))
            else:
                # A worker does not end the run, because another worker resumes it when its lease has expired.
                logger.exception("a run has lost its database", extra={"response": self.identity.response_id})
                if not self.identity.in_worker:
                    await self._end(failed(DATABASE_LOST), was_without_database=True)
        finally:
            _registry.discard(self)
            if self._first_answer is not None:
                self._first_answer.give_up()
            self._recorder.release_reservation()
            if self._grace is not None:
                self._grace.cancel()
            self._release_client()

    async def _record(self, step: Step) -> None:
        # If the commit fails, `_end_unstored` records the usage of this turn.
        self._unaccounted = step.turn if isinstance(step, TurnEnded | TurnDiscarded | RunEnded) else None
        self._is_recording = True
        try:
            data = await self._recorder.record(step)
        finally:
            self._is_recording, self._recorded_at = False, time.monotonic()
        self._unaccounted = None
        if self._format is not None:
            data = self._format.write(step)
        # Set after the commit, because events that could not be committed have numbers, too, but no client gets them.
        self.next_sequence = self._recorder.log.next_sequence
        if isinstance(step, RunEnded):
            self.end = step
        elif isinstance(step, RunSuspended):
            self.is_suspended = self._is_ending = True
        elif self._first_answer is not None and _has_effects(step):
            self._first_answer.begin()
        if not isinstance(step, Emitted) and (limit := wait_limit.current()) is not None:
            limit.renew()
        self._stream.put(data)
        if self._stream.is_full and self.end is None:
            await self._stream.wait_for_reader()

    async def _end(self, ending: Ending, *, was_without_database: bool = False) -> None:
        """Interrupt the run and store its final state."""
        self._is_ending = True
        if self.end is not None:
            return
        try:
            await self._record(self._run.interrupt(ending))
        except LeaseLost:
            await self._end_unstored(was_without_database=was_without_database)
        except Exception as error:
            # The lease expires, and then the sweeper ends the response.
            logger.exception("a run could not be closed", extra={"response": self.identity.response_id})
            await self._end_unstored(was_without_database=is_unavailable(error))

    async def _end_unstored(self, *, was_without_database: bool = False) -> None:
        """End a run without storing its end, usually because another process has ended it, and record its usage."""
        self._is_ending = True
        if self.end is not None:
            return
        # If the database was unavailable until the lease expired, other processes have considered the run dead.
        was_without_database |= self.misses_database or expired_before() > self.leased_until
        # This end is only for the client of this process, and is not stored.
        self.end = self._run.interrupt(failed(DATABASE_LOST if was_without_database else _ENDED_ELSEWHERE))
        if not was_without_database:
            self._stream.put(DONE_FRAME if self._format is None else self._format.close())
        elif not self.identity.in_worker:
            # The client need not wait any longer. Recording the usage has its own time limit.
            self._release_client(DATABASE_LOST.as_api_error())
            wait_limit.start()
        # The turn that was interrupted just now, or the turn whose end could not be stored.
        turn = self.end.turn or self._unaccounted
        try:
            if turn is None:
                await self._recorder.record_no_usage(self._run.turn)
            else:
                await self._recorder.record_usage(turn)
        except Exception:
            logger.exception("the usage of a turn was not recorded", extra={"response": self.identity.response_id})


class _Registry:
    """The live runs of this process. The registry renews their leases, and stops runs that the process has lost."""

    def __init__(self) -> None:
        self._runs: set[LiveRun] = set()
        self._lease_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    def add(self, run: LiveRun) -> None:
        self._runs.add(run)
        metrics.ACTIVE_RUNS.inc()
        if self._lease_task is None or self._lease_task.done():
            self._lease_task = asyncio.get_running_loop().create_task(
                self._renew_leases(), context=wait_limit.unrelated()
            )
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.get_running_loop().create_task(self._stop_lost(), context=wait_limit.unrelated())

    def discard(self, run: LiveRun) -> None:
        self._runs.discard(run)
        metrics.ACTIVE_RUNS.dec()

    def all(self) -> list[LiveRun]:
        return list(self._runs)

    async def _renew_leases(self) -> None:
        while self._runs:
            # Leases are renewed three times per lease period, so that a renewal may fail or skip a locked row.
            await asyncio.sleep(settings.LEASE_SECONDS / 3)
            runs = {run.identity.response_id: run for run in self._runs}
            until = lease_until()
            try:
                renewed, lost = await in_db_thread(partial(run_leases.renew, list(runs)))
            except Exception:
                logger.exception("leases could not be renewed")
                for run in runs.values():
                    run.misses_database = True
                continue
            # A lost run keeps its `leased_until`, which shows whether it was lost because the database was unavailable.
            for response_id in lost:
                runs[response_id].lose()
            for response_id in renewed:
                run = runs[response_id]
                run.misses_database = False
                run.leased_until = until
                if run.claim is not None:
                    run.claim.until = until

    def _serve_followers(self, message: bytes) -> None:
        for run in self._runs:
            if message == OBSERVED:
                run.serve_observers()
            elif run.identity.response_id == message.decode():
                run.serve_followers()

    async def _stop_lost(self) -> None:
        """Stop runs that another process has ended or resumed, so that their upstream connections are closed."""
        notified = asyncio.Event()
        mine = channel_of_process(process_name())
        with loop_notifications().listening(mine, notified, self._serve_followers):
            while self._runs:
                is_notified = loop_notifications().is_connected
                await wait_within(notified, _NOTIFIED_POLL_SECONDS if is_notified else _POLL_SECONDS)
                notified.clear()
                runs = {run.identity.response_id: run for run in self._runs}
                tokens = {response_id: run.identity.lease_token for response_id, run in runs.items()}
                try:
                    lost = await in_db_thread(partial(run_leases.find_lost, tokens))
                except DatabaseError:
                    # Checked again soon; renewing the leases finds lost runs as well.
                    for run in runs.values():
                        run.misses_database = True
                    continue
                for response_id in lost:
                    runs.pop(response_id).lose()
                for run in runs.values():
                    run.misses_database = False


def _has_effects(step: Step) -> bool:
    """Return true if the client needs the events of the run even though no model has answered yet."""
    # Approved calls have effects, which the client would repeat if it got an error and repeated the request. If a tool
    # server cannot be used, only the events name the server.
    return isinstance(step, ToolsStarted) or (isinstance(step, ToolsPrepared) and step.failure is not None)


_registry = _Registry()


def live_runs() -> int:
    """Return the number of runs that this process executes."""
    return len(_registry.all())


async def drain(*, seconds_left: Callable[[], float], notify_workers: Callable[[], None]) -> None:
    """Let the runs of this process end in the remaining time, and hand over runs that workers can continue.

    A streamed, stored run is handed over after its next step. If too few runs end or reach a step, the turns of other
    runs are interrupted, spread evenly over the time, and workers repeat these turns. Runs that cannot be handed over
    fail when the time is over.
    """
    seconds, notification = seconds_left(), _Notification(notify_workers)
    first: int | None = None
    while (runs := _registry.all()) and (left := seconds_left()) > 0:
        movable = [run for run in runs if run.can_be_handed_over and not run.is_stopping]
        for run in movable:
            run.hand_over_after_step(notification.soon)
        first = len(movable) if first is None else first
        # The newest runs come first, because the smallest part of their turns has to be repeated.
        movable.sort(key=lambda run: run.identity.created_at, reverse=True)
        for run in movable[: surplus(len(movable), first=first, part_left=left / seconds)]:
            run.stop_now()
        await asyncio.sleep(BEAT_SECONDS)
    for run in _registry.all():
        if run.can_be_handed_over:
            run.hand_over_after_step(notification.soon)
            run.stop_now()
        else:
            run.fail(SHUTTING_DOWN)
    await asyncio.gather(*(run.stored() for run in _registry.all()), return_exceptions=True)
    notification.send()


class _Notification:
    """One notification for all runs that are handed over at nearly the same time; a worker claims them together."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._is_due = False

    def soon(self) -> None:
        """Send the notification within `_NOTIFY_SECONDS`."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_NOTIFY_SECONDS, self.send)

    def send(self) -> None:
        """If a notification was requested, send it now."""
        if self._is_due:
            self._is_due = False
            self._notify()
