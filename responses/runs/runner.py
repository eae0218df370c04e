"""The runs of this process: one task each, at most one client attached, and the registry that stops them.

A run belongs to the process, never to the socket. Whatever reads it (a JSON request, a stream) reads the same task, and
may go away; then the run's team says how much longer it goes on.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError

from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.errors import Failure
from kernel.notifications import loop_notifications
from responses.engine.events.response_body import Ending
from responses.engine.events.terminal import failed
from responses.engine.events.types import DONE_FRAME
from responses.engine.loop import Run
from responses.engine.steps import Emitted, RunEnded, Step, TurnDiscarded, TurnEnded, TurnRecord
from responses.models import RUNNING, Response, Status
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder
from responses.runs.store import LeaseLost
from tenants import scope

logger = logging.getLogger(__name__)
# A comment: keeps proxies from closing a connection on which a slow model has nothing to say yet.
PING = b": ping\n\n"
PING_SECONDS = 10
# How often a process looks for runs that are not its own any more, if nobody tells it to.
_LOOK_SECONDS = 0.5
_BUG = Failure(code="server_error", message="The server had an error while processing your request.")
_GONE = Failure(code="server_error", message="The run was ended by another process.")


def process_name() -> str:
    """A name that no other process has: containers that share a host's name may all be its process 1."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


PROCESS = process_name()


class LiveRun:
    """A run in this process. `opening` are the bytes of the events that were committed with the response."""

    def __init__(
        self, run: Run, recorder: Recorder, identity: RunIdentity, *, opening: bytes, grace_seconds: float | None
    ) -> None:
        self.identity = identity
        self.end: RunEnded | None = None
        self._run = run
        self._recorder = recorder
        self._grace_seconds = grace_seconds if identity.stored else 0
        self._ready: deque[bytes] = deque([opening])
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._is_cut = False
        self._is_ending = False
        self._unaccounted: TurnRecord | None = None
        self._grace: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to execute; the registry holds the run until it has ended."""
        _registry.add(self)
        self._task = asyncio.get_running_loop().create_task(self._execute())

    # -- for the client ------------------------------------------------------------------------------------------------

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the stream as they become ready, joined where several wait."""
        while True:
            self._wake.clear()
            if self._ready:
                data = b"".join(self._ready)
                self._ready.clear()
                yield data
            elif self._task is not None and self._task.done():
                return
            elif not await wait_within(self._wake, PING_SECONDS):
                yield PING

    async def finished(self) -> RunEnded:
        """Wait for the end."""
        if self._task is not None:
            await asyncio.shield(self._task)
        return cast("RunEnded", self.end)

    def detach(self) -> None:
        """The client has gone: go on for the grace period of the team, then cancel."""
        if self._grace_seconds is None or self._task is None or self._task.done():
            return
        if self._grace_seconds == 0:
            self.cancel()
        else:
            self._grace = asyncio.get_running_loop().create_task(self._end_unheard(self._grace_seconds))

    def cancel(self) -> None:
        """Stop: the upstream's connection is closed, the response ends `cancelled`."""
        if self._task is not None and not self._task.done():
            # Not at once: a task that is cancelled before its first step never runs, and would not store its end.
            self._task.get_loop().call_soon(self._stop)

    def _stop(self) -> None:
        """An end that is being written is not disturbed."""
        if self._task is not None and not self._is_ending:
            self._task.cancel()

    # -- for a worker that stops ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Stop after the next step behind which a successor repeats nothing; the response does not end with it."""
        self._is_leaving = True

    def cut(self) -> None:
        """Stop where the run stands. A successor asks for the open turn again."""
        self._is_cut = True
        self.cancel()

    async def _let_go(self, unfinished: TurnRecord | None = None) -> None:
        """Leave what was sent to the successor, and account for what was spent on a turn that it asks for again."""
        self._is_ending = True
        unfinished = unfinished or self._run.interrupt(Ending(status="cancelled")).turn
        try:
            await self._recorder.settle()
            if unfinished is not None:
                await self._recorder.account(unfinished)
        except LeaseLost:
            await self._lost()

    # -- for whoever listens -------------------------------------------------------------------------------------------

    async def _end_unheard(self, grace_seconds: float) -> None:
        """Cancel after the grace period, unless somebody follows the run by then, on whatever node."""
        wait = grace_seconds
        while wait > 0:
            await asyncio.sleep(wait)
            try:
                wait = await in_db_thread(partial(_followed_for, self.identity))
            except Exception:
                logger.exception(
                    "nobody knows whether a run is followed", extra={"response": self.identity.response_id}
                )
                wait = 0
        self.cancel()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _execute(self) -> None:
        try:
            async with aclosing(self._run.steps()) as steps:
                async for step in steps:
                    if self._is_cut and isinstance(step, TurnEnded | TurnDiscarded | RunEnded):
                        # Somebody on the way may have caught the cancellation, and have made an end of it.
                        await self._let_go(step.turn)
                        return
                    await self._record(step)
                    if self._is_leaving and self._run.is_idle and not isinstance(step, Emitted):
                        return
        except asyncio.CancelledError:
            await (self._let_go() if self._is_cut else self._close(Ending(status="cancelled")))
        except LeaseLost:
            await self._lost()
        except (OperationalError, InterfaceError):
            # A worker's run needs no more than somebody who goes on with it once its lease has run out.
            logger.exception("a run has no database", extra={"response": self.identity.response_id})
            if not self.identity.background:
                await self._close(failed(_BUG))
        except Exception:
            logger.exception("a run broke", extra={"response": self.identity.response_id})
            await self._close(failed(_BUG))
        finally:
            _registry.discard(self)
            self._wake.set()
            if self._grace is not None:
                self._grace.cancel()

    async def _record(self, step: Step) -> None:
        self._unaccounted = _turn_of(step)
        data = await self._recorder.record(step)
        self._unaccounted = None
        if isinstance(step, RunEnded):
            self.end = step
        # Those who follow a background run read its log.
        if data and not self.identity.background:
            self._ready.append(data)
            self._wake.set()

    async def _close(self, ending: Ending) -> None:
        """End the run where it stands, in a terminal state that is stored."""
        self._is_ending = True
        if self.end is not None:
            return
        try:
            await self._record(self._run.interrupt(ending))
        except LeaseLost:
            await self._lost()
        except Exception:
            # The lease runs out, and the sweeper ends what could not be ended here.
            logger.exception("a run could not be closed", extra={"response": self.identity.response_id})
            await self._lost()

    async def _lost(self) -> None:
        """Somebody else has ended the response: stop, say so to whoever listens, and account for what was spent."""
        self._is_ending = True
        if self.end is not None:
            return
        self.end = self._run.interrupt(failed(_GONE))
        self._ready.append(DONE_FRAME)
        # The turn that is cut here, or the one whose end could not be stored any more.
        turn = self.end.turn or self._unaccounted
        if turn is None:
            return
        try:
            await self._recorder.account(turn)
        except Exception:
            logger.exception("a turn is missing in the ledger", extra={"response": self.identity.response_id})


def _turn_of(step: Step) -> TurnRecord | None:
    """The turn whose books the step closes."""
    return step.turn if isinstance(step, TurnEnded | TurnDiscarded | RunEnded) else None


class _Registry:
    """The live runs of this process, the renewal of their leases, and the look-out for those that it has lost."""

    def __init__(self) -> None:
        self._runs: set[LiveRun] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._look_out: asyncio.Task[None] | None = None

    def add(self, run: LiveRun) -> None:
        self._runs.add(run)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._keep_leases())
        if self._look_out is None or self._look_out.done():
            self._look_out = asyncio.get_running_loop().create_task(self._stop_lost())

    def discard(self, run: LiveRun) -> None:
        self._runs.discard(run)

    def all(self) -> list[LiveRun]:
        """A snapshot of the live runs."""
        return list(self._runs)

    async def _keep_leases(self) -> None:
        """Renew three times per lease; ends with the last run."""
        while self._runs:
            await asyncio.sleep(settings.LEASE_SECONDS / 3)
            runs = {run.identity.response_id: run for run in self._runs}
            try:
                lost = await in_db_thread(partial(_renew, list(runs)))
            except Exception:
                logger.exception("leases could not be renewed")
                continue
            for response_id in lost:
                runs[response_id].cancel()

    async def _stop_lost(self) -> None:
        """Close the upstream connections of runs that somebody else has ended, as soon as somebody says so."""
        told = asyncio.Event()
        with loop_notifications().listening(channel_of_process(PROCESS), told):
            while self._runs:
                await wait_within(told, _LOOK_SECONDS)
                told.clear()
                runs = {run.identity.response_id: run for run in self._runs}
                tokens = {response_id: run.identity.lease_token for response_id, run in runs.items()}
                try:
                    lost = await in_db_thread(partial(_lost, tokens))
                except DatabaseError:
                    # It is away for a moment; and renewing the leases will tell who lost them.
                    continue
                for response_id in lost:
                    runs[response_id].cancel()


def channel_of_process(process: str) -> str:
    """The channel on which a process is told that it may have lost a run."""
    return f"process:{process}"


def _lost(tokens: Mapping[str, int]) -> list[str]:
    """Those of the runs, with their lease tokens, that have ended, were deleted, or were taken over."""
    with scope.every_team():
        running = Response.objects.filter(pk__in=[*tokens], status__in=RUNNING)
        held = dict(running.values_list("pk", "lease_token"))
    return [response_id for response_id, token in tokens.items() if held.get(response_id) != token]


def _renew(response_ids: list[str]) -> list[str]:
    """Extend the leases of this process; returns the runs that were cancelled, deleted or taken over elsewhere."""
    with scope.every_team():
        runs = Response.objects.filter(pk__in=response_ids)
        # The writer locks the same rows in an order of its own. Waiting for it would be a deadlock sooner or later, so
        # what it is at is left out: a run that is just being written has the next renewals yet.
        free = runs.select_for_update(skip_locked=True, no_key=True).filter(status__in=RUNNING, lease_owner=PROCESS)
        mine = list(free.values_list("pk", flat=True))
        Response.objects.filter(pk__in=mine).update(lease_until=lease_until())
        held = set(runs.filter(lease_owner=PROCESS).exclude(status=Status.CANCELLED).values_list("pk", flat=True))
    return [response_id for response_id in response_ids if response_id not in held]


def _followed_for(who: RunIdentity) -> float:
    """How many more seconds the run counts as followed."""
    with scope.team(who.team_id):
        until = Response.objects.values_list("followed_until", flat=True).filter(pk=who.response_id).first()
    return (until - now()).total_seconds() if until else 0


async def wait_within(wake: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within the time."""
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return False
    return True


_registry = _Registry()


def live_runs() -> int:
    """How many runs this process executes."""
    return len(_registry.all())


async def cancel_all() -> None:
    """Stop every run of this process and wait until each has its stored end; for an orderly shutdown."""
    runs = _registry.all()
    for run in runs:
        run.cancel()
    if runs:
        await asyncio.gather(*(run.finished() for run in runs), return_exceptions=True)


def lease_until() -> datetime:
    """The end of a lease that is taken now."""
    return now() + timedelta(seconds=settings.LEASE_SECONDS)
