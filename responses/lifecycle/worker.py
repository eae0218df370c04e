"""The worker: claims background responses while it has capacity, runs them concurrently on one event loop, and leaves
them to other workers when its process shuts down.

Notifications only reduce the delay. The worker also polls every second, so a lost notification delays a response but
never loses it.
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
from kernel.notifications import wait_within
from responses import moderation
from responses.engine.events.terminal import failed
from responses.lifecycle import queue, resume
from responses.lifecycle.queue import ClaimedRun
from responses.lifecycle.resume import ResumedRun
from responses.models import Response
from responses.providers.clients import close_clients
from responses.providers.routing import model_for
from responses.runs import store
from responses.runs.runner import LiveRun
from tenants import directory, scope

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
# Time for runs that are stopped in the middle of a step to store their events.
_STOP_SECONDS = 2.0


class WorkerComponent(Protocol):
    """Work that shares the worker with background responses, such as batches."""

    async def stop(self, *, drain_seconds: float) -> None:
        """Let active work end within that time, and release what has not ended."""


ComponentFactory = Callable[[Callable[[], int]], WorkerComponent]
"""Creates a component on the worker's loop. Its argument returns the number of slots that are free at the moment."""


class Dispatcher:
    """Runs up to `slots` responses concurrently, and a few more for fairness between teams (see `queue.capacity`).

    Components stop together with it, because they share its event loop and its connections.
    """

    def __init__(self, *, slots: int, components: Sequence[ComponentFactory] = ()) -> None:
        self._slots = slots
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._work: dict[ClaimedRun, asyncio.Task[None]] = {}
        self._live: dict[ClaimedRun, LiveRun] = {}
        self._loop = asyncio.get_running_loop()
        self._dispatching = self._loop.create_task(self._dispatch())
        self._components = [create(self._free_slots) for create in components]

    def wake(self) -> None:
        """Check for responses now. Safe to call from any thread."""
        self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self, *, drain_seconds: float) -> None:
        """Stop claiming, let runs reach a step that other workers can resume from, and release those that have not
        ended. Runs that take longer than `drain_seconds` are stopped immediately.
        """
        self._is_stopping = True
        self._wake.set()
        stopping_components = asyncio.gather(
            *(component.stop(drain_seconds=drain_seconds) for component in self._components)
        )
        await self._dispatching
        for live in self._live.values():
            live.stop_after_step()
        if self._work:
            await asyncio.wait(self._work.values(), timeout=drain_seconds)
        for live in self._live.values():
            live.stop_now()
        if self._work:
            await asyncio.wait(self._work.values(), timeout=_STOP_SECONDS)
        try:
            await stopping_components
        finally:
            await close_clients()

    @property
    def load(self) -> dict[str, int]:
        """The number of slots, and of responses that run in them."""
        return {"slots": self._slots, "held": len(self._work)}

    def _free_slots(self) -> int:
        return max(0, self._slots - len(self._work))

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not await self._claim():
                await wait_within(self._wake, _POLL_SECONDS)

    async def _claim(self) -> bool:
        """Claim and start the next responses. Return whether there may be more."""
        held = Counter(claimed.team_id for claimed in self._work)
        capacity = queue.capacity(slots=self._slots, held=held)
        mine = [claimed.response_id for claimed in self._work]
        try:
            found = await in_db_thread(partial(queue.claim, capacity=capacity, held=held, mine=mine))
        except DatabaseError:
            logger.warning("claiming failed; trying again", exc_info=True)
            return False
        for claimed in found:
            self._work[claimed] = self._loop.create_task(self._run(claimed))
        return bool(found)

    # -- running -------------------------------------------------------------------------------------------------------

    async def _run(self, claimed: ClaimedRun) -> None:
        try:
            resumed = None if self._is_stopping else await in_db_thread(partial(_load, claimed))
            if resumed is not None and not self._is_stopping:
                await self._execute(claimed, resumed)
            if self._is_stopping:
                await in_db_thread(partial(queue.release, [claimed.response_id]))
        except Exception:
            # Its lease expires, and a worker claims it again until its attempts are used up.
            logger.exception("a background run could not be started", extra={"response": claimed.response_id})
        finally:
            self._live.pop(claimed, None)
            del self._work[claimed]
            self._wake.set()

    async def _execute(self, claimed: ClaimedRun, resumed: ResumedRun) -> None:
        live = LiveRun(resumed.run, resumed.recorder, resumed.identity, opening=b"", grace_seconds=None)
        self._live[claimed] = live
        live.start()
        await live.finished()


def _load(claimed: ClaimedRun) -> ResumedRun | None:
    """Load a claimed run. Return None if the claim was lost, or if the run cannot be executed and was ended instead."""
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
        # The key was revoked, or the model or its upstream was deleted while the response was queued.
        _fail(claimed, error)
        return None
    checks = moderation.restore_checks(response, principal)
    with scope.team(claimed.team_id):
        return resume.load(
            response_id=response.pk, lease_token=claimed.lease_token, model=model_for(route), checks=checks
        )


def _fail(claimed: ClaimedRun, error: ApiError) -> None:
    with scope.team(claimed.team_id):
        resumed = resume.load(response_id=claimed.response_id, lease_token=claimed.lease_token)
    failure = Failure(code="server_error", message=error.message)
    _, change = resumed.recorder.plan(resumed.run.end_idle(failed(failure)))
    store.apply([change])


# -- the dispatcher of this process ------------------------------------------------------------------------------------

_running: Dispatcher | None = None
_stopped: Future[None] | None = None


def start(*, slots: int, components: Sequence[ComponentFactory] = ()) -> None:
    """Start executing background responses in this process, together with other components."""

    async def begin() -> Dispatcher:
        return Dispatcher(slots=slots, components=components)

    global _running  # noqa: PLW0603 - a process has one dispatcher, and Celery's tasks have no other way to it
    # Without a database a worker has nothing else to do, so its writes wait for it instead of failing.
    store.writer.wait_forever()
    _running = worker_loop.submit(begin()).result()
    logger.info("the worker claims background responses", extra={"slots": slots})


def wake() -> None:
    """Notify the dispatcher of this process, if it has one, that a response may be queued."""
    if _running is not None:
        _running.wake()


def load() -> dict[str, int]:
    """Return the number of slots and of running responses of this process; empty once it is stopping."""
    return {} if _running is None else _running.load


def stop() -> "Future[None] | None":
    """Start stopping the dispatcher of this process.

    The returned future is done when all runs were released or the time limit has passed. None means that there is no
    dispatcher.
    """
    global _running, _stopped  # noqa: PLW0603 - as above
    if _running is not None:
        _stopped = worker_loop.submit(_running.stop(drain_seconds=settings.WORKER_DRAIN_SECONDS))
        _running = None
    return _stopped
