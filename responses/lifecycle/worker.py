"""A worker's dispatcher: claims background responses while it has room, runs them side by side on one event loop, and
hands them on when its process is to end.

What wakes it is a convenience: it looks by itself every second, so that no lost message loses a response.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from django.conf import settings
from django.db import Error as DatabaseError

from kernel import worker_loop
from kernel.db_threads import in_db_thread
from kernel.errors import ApiError, Failure
from responses.engine.events.terminal import failed
from responses.lifecycle import queue, resume
from responses.lifecycle.queue import ClaimedRun
from responses.lifecycle.resume import ResumedRun
from responses.models import Response
from responses.moderation import guardrails
from responses.providers.clients import close_clients
from responses.providers.routing import model_for
from responses.runs import store
from responses.runs.runner import LiveRun, wait_within
from tenants import directory, scope

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_CUT_SECONDS = 2.0


class WorkerComponent(Protocol):
    """What works in a worker beside background responses."""

    async def stop(self, *, drain_seconds: float) -> None:
        """Let what is under way end within that time, and give back what has not."""


ComponentFactory = Callable[[Callable[[], int]], WorkerComponent]
"""Makes a guest on the worker's loop. It is given what says how many slots no background response takes just now."""


class Dispatcher:
    """Runs up to `slots` responses at once, and some more of teams that hold few (see `claims.room`). Guests stop with
    it, since they share its loop and its connections."""

    def __init__(self, *, slots: int, components: Sequence[ComponentFactory] = ()) -> None:
        self._slots = slots
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._work: dict[ClaimedRun, asyncio.Task[None]] = {}
        self._live: dict[ClaimedRun, LiveRun] = {}
        self._loop = asyncio.get_running_loop()
        self._dispatching = self._loop.create_task(self._dispatch())
        self._guests = [invite(self._spare) for invite in components]

    def wake(self) -> None:
        """Look for responses now; from any thread."""
        self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self, *, drain_seconds: float) -> None:
        """Claim nothing more, let runs come to a step that others can go on from, and give back all that have not
        ended."""
        self._is_stopping = True
        self._wake.set()
        leaving = asyncio.gather(*(component.stop(drain_seconds=drain_seconds) for component in self._guests))
        await self._dispatching
        for live in self._live.values():
            live.stop_after_step()
        if self._work:
            await asyncio.wait(self._work.values(), timeout=drain_seconds)
        for live in self._live.values():
            live.stop_now()
        if self._work:
            await asyncio.wait(self._work.values(), timeout=_CUT_SECONDS)
        try:
            await leaving
        finally:
            await close_clients()

    @property
    def load(self) -> dict[str, int]:
        """How many responses it may run at once, and how many it runs."""
        return {"slots": self._slots, "held": len(self._work)}

    def _spare(self) -> int:
        return max(0, self._slots - len(self._work))

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not await self._claim():
                await wait_within(self._wake, _LOOK_SECONDS)

    async def _claim(self) -> bool:
        """Begin with what is there for this worker; whether there may be more."""
        held = Counter(claimed.team_id for claimed in self._work)
        capacity = queue.capacity(slots=self._slots, held=held)
        mine = [claimed.response_id for claimed in self._work]
        try:
            found = await in_db_thread(partial(queue.claim, capacity=capacity, held=held, mine=mine))
        except DatabaseError:
            logger.warning("nothing can be claimed right now", exc_info=True)
            return False
        for claimed in found:
            self._work[claimed] = self._loop.create_task(self._run(claimed))
        return bool(found)

    # -- running -------------------------------------------------------------------------------------------------------

    async def _run(self, claimed: ClaimedRun) -> None:
        """Run one response to its end, or until this worker stops."""
        try:
            taken = None if self._is_stopping else await in_db_thread(partial(_load, claimed))
            if taken is not None and not self._is_stopping:
                await self._execute(claimed, taken)
            if self._is_stopping:
                await in_db_thread(partial(queue.release, [claimed.response_id]))
        except Exception:
            # Its lease runs out; then it is tried again, as often as it may be.
            logger.exception("a background run could not be begun", extra={"response": claimed.response_id})
        finally:
            self._live.pop(claimed, None)
            del self._work[claimed]
            self._wake.set()

    async def _execute(self, claimed: ClaimedRun, taken: ResumedRun) -> None:
        live = LiveRun(taken.run, taken.recorder, taken.identity, opening=b"", grace_seconds=None)
        self._live[claimed] = live
        live.start()
        await live.finished()


def _load(claimed: ClaimedRun) -> ResumedRun | None:
    """The run, ready to go on; None where it has ended because it cannot, or is not this worker's any more."""
    with scope.team(claimed.team_id):
        mine = Response.objects.filter(pk=claimed.response_id, lease_token=claimed.lease_token, ended_at=None)
        response = mine.first()
    if response is None:
        return None
    try:
        principal = directory.principal_of_run(response.api_key_id)
        route = directory.route_of_run(
            team_id=response.team_id,
            model=response.model,
            upstream_id=response.upstream_id,
            upstream_model=response.upstream_model,
        )
    except ApiError as error:
        _fail(claimed, error)
        return None
    checks = guardrails.restore_checks(response, principal)
    with scope.team(claimed.team_id):
        return resume.load(
            response_id=response.pk, lease_token=claimed.lease_token, model=model_for(route), checks=checks
        )


def _fail(claimed: ClaimedRun, error: ApiError) -> None:
    with scope.team(claimed.team_id):
        taken = resume.load(response_id=claimed.response_id, lease_token=claimed.lease_token)
    failure = Failure(code="server_error", message=error.message)
    _, change = taken.recorder.plan(taken.run.end_idle(failed(failure)))
    store.apply([change])


# -- the one of this process -------------------------------------------------------------------------------------------

_running: Dispatcher | None = None
_stopped: Future[None] | None = None


def start(*, slots: int, components: Sequence[ComponentFactory] = ()) -> None:
    """Begin to run background responses in this process, with guests beside them."""

    async def begin() -> Dispatcher:
        return Dispatcher(slots=slots, components=components)

    global _running  # noqa: PLW0603 - a process has one dispatcher, and Celery's tasks have no other way to it
    store.writer.wait_forever()
    _running = worker_loop.submit(begin()).result()
    logger.info("the worker claims background responses", extra={"slots": slots})


def wake() -> None:
    """Tell the dispatcher of this process, if it has one, that there may be something to run."""
    if _running is not None:
        _running.wake()


def load() -> dict[str, int]:
    """How many responses this process may run at once, and how many it runs; empty once it is stopping."""
    return {} if _running is None else _running.load


def stop() -> "Future[None] | None":
    """Begin to hand all runs of this process on. The future: they are in the hands of others, or nothing more can be
    done."""
    global _running, _stopped  # noqa: PLW0603 - as above
    if _running is not None:
        _stopped = worker_loop.submit(_running.stop(drain_seconds=settings.WORKER_DRAIN_SECONDS))
        _running = None
    return _stopped
