"""The dispatcher of a worker: claims background responses while it has capacity, runs them, and leaves them to other
workers when its process shuts down.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.conf import settings
from typing_extensions import override

from core.clock import shared_now
from core.compute.pool import of_team
from core.db.db_threads import in_db_thread
from core.errors import (
    ApiError,
    Failure,
    LimitsUnavailable,
    PriceUnknown,
    RateLimited,
    RequestTooLargeForLimit,
    ServerError,
)
from core.load.draining import BEAT_SECONDS, surplus
from core.load.load_limit import LoadLimit
from core.telemetry import telemetry_names, tracing
from core.work.leases import Claim
from core.work.work_queue import WorkLoop
from engine import spans
from engine.events.response_body import Ending, failed
from responses import moderation
from responses.lifecycle import blocked, queue, resume
from responses.lifecycle.resume import QueuedRun
from responses.lifecycle.run_factory import RunFactory
from responses.lifecycle.stored_run import StoredRun
from responses.models import Isolation, Response
from responses.runs.reservations import RunReservation
from responses.runs.runner import AssembledRun, LiveRun
from tenants import directory, scope
from tenants.principal import Principal

# Time for runs that are stopped in the middle of a step to store their events.
_STOP_SECONDS = 2.0
# Least time for the client of a handed-over run to reconnect, whatever the grace period of its team.
_RECONNECT_SECONDS = 10.0
# Pause between polls while the worker is at its limit, so that one query replaces most of the runs that end.
_FULL_PACE_SECONDS = 0.02
# The least number of active runs, however busy the event loop is. Runs that only wait do not count.
_LEAST_RUNS = 8
# Interval at which a busy worker checks whether more of its runs only wait.
_ROOM_SECONDS = 0.05
# A team that has the worker to itself is not limited, unless another team had a run this recently.
_SHARED_SECONDS = 60.0


class Dispatcher(WorkLoop[Claim]):
    """Runs up to `slots` responses concurrently, and a few more for fairness between teams (see `queue.claim`).

    With an isolation, it runs only responses with it.
    """

    kind = "responses"

    def __init__(self, *, slots: int, isolation: Isolation = Isolation.NONE) -> None:
        super().__init__()
        self._slots, self._isolation = slots, isolation
        # While several teams have runs, only as many are active as the event loop has time for: otherwise, a run of a
        # few milliseconds would wait for a hundred runs of a busy team.
        self._limit = LoadLimit(least=min(_LEAST_RUNS, slots), most=slots)
        self._last_team, self._last_change = "", -_SHARED_SECONDS
        self._live: dict[Claim, LiveRun] = {}
        self._reading: dict[Claim, asyncio.Future[dict[str, QueuedRun]]] = {}

    def load(self) -> dict[str, int]:
        """Return the number of slots, and of responses that run in them; empty once it is stopping."""
        return {} if self.is_stopping else {"slots": self._slots, "held": len(self.work)}

    def free_slots(self) -> int:
        """Return the number of slots that are free at the moment."""
        return max(0, self._slots - len(self.work))

    @property
    @override
    def pace_seconds(self) -> float:  # type: ignore[override]
        """The pause between two polls: none while there is room, so that a run starts at once."""
        return _FULL_PACE_SECONDS if len(self.work) >= self._most_runs() else 0.0

    @override
    async def run(self) -> None:
        following = [asyncio.create_task(self._limit.follow()), asyncio.create_task(self._watch_room())]
        try:
            await super().run()
        finally:
            for task in following:
                task.cancel()

    def _most_runs(self) -> int:
        """Return how many runs the load allows: active ones up to the limit, and all that only wait meanwhile."""
        waiting = sum(live.waits for live in self._live.values())
        return min(self._slots, self._limit.value + waiting)

    async def _watch_room(self) -> None:
        # A run that begins to wait makes room like a run that ends, but without a call that would wake the loop.
        while True:
            await asyncio.sleep(_ROOM_SECONDS)
            if self.wants_room and len(self.work) < self._most_runs():
                self.wake()

    @override
    async def claim(self) -> bool:
        is_shared = time.monotonic() - self._last_change < _SHARED_SECONDS
        limit = self._most_runs() if is_shared else None
        query = (
            partial(queue.claim_isolated, isolation=self._isolation)
            if self._isolation
            else partial(queue.claim, limit=limit)
        )
        found = await in_db_thread(partial(query, slots=self._slots, running=[*self.work]))
        for claimed in found:
            if claimed.team_id != self._last_team:
                self._last_change = time.monotonic() if self._last_team else self._last_change
                self._last_team = claimed.team_id
        if new := [claimed for claimed in found if not claimed.has_begun]:
            self._reading |= dict.fromkeys(new, asyncio.ensure_future(in_db_thread(partial(_read_queued, new))))
        for claimed in found:
            self.begin(claimed)
        # If room is left, the query found all waiting runs, unless it found runs that were handed over: it returns
        # these alone.
        self.wants_room = len(self.work) >= (self._slots if limit is None else limit)
        has_begun = any(claimed.has_begun for claimed in found)
        return bool(found) and (self.wants_room or has_begun or len(found) >= queue.MAX_CLAIMS)

    @override
    async def execute(self, claim: Claim) -> None:
        # After an exception, a worker claims the run again until its attempts are used up.
        spans.begin()
        with spans.span(spans.Activity.PREPARE, "Load the run"):
            reading = self._reading.pop(claim, None)
            queued = (await reading).get(claim.id) if reading else None
            loaded = None if self.is_stopping else await in_db_thread(partial(_load, claim, queued))
        if loaded is not None and not self.is_stopping and await _admit(claim, loaded):
            await self._run(claim, loaded, is_new=queued is not None)
        if self.is_stopping:
            await in_db_thread(partial(queue.release, [claim.id]))
            queue.notify_workers()

    async def _run(self, claim: Claim, loaded: "_LoadedRun", *, is_new: bool) -> None:
        assembled = loaded.assembled
        live = LiveRun(assembled, grace_seconds=loaded.grace_seconds, claim=claim)
        self._live[claim] = live
        if not is_new:
            assembled.recorder.log.announce()
        with (
            tracing.continued(live.identity.trace, telemetry_names.PROCESS_RESPONSE),
            of_team(live.identity.team_id),
        ):
            live.start()
            live.detach()
            try:
                await live.finished()
            finally:
                del self._live[claim]

    @override
    async def drain(self) -> None:
        # Runs get the time to end, or to reach a step that other workers can resume from. If too few do, others are
        # stopped evenly over the time, so that the other workers can resume each of them at once. The newest are
        # stopped first, because the least of their turns has to be repeated.
        for live in self._live.values():
            live.stop_after_step()
        loop, seconds, first = asyncio.get_running_loop(), settings.WORKER_DRAIN_SECONDS, len(self._live)
        ends_at = loop.time() + seconds
        while self._live and (left := ends_at - loop.time()) > 0:
            running = [claim for claim, live in self._live.items() if not live.is_stopping]
            running.sort(key=lambda claim: claim.since, reverse=True)
            for claim in running[: surplus(len(running), first=first, part_left=left / seconds)]:
                self._live[claim].stop_now()
            await self.settle(BEAT_SECONDS)
        for live in self._live.values():
            live.stop_now()
        await self.settle(_STOP_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedRun:
    """A claimed run that is ready to be executed.

    `grace_seconds` is how long it continues without a follower; None: until it ends, as a background run does.
    """

    stored: StoredRun
    assembled: AssembledRun
    reservation: RunReservation | None
    grace_seconds: float | None


async def _admit(claim: Claim, loaded: _LoadedRun) -> bool:
    """Reserve the run's limits. Return False if the run goes back to the queue, or can never start."""
    if (reservation := loaded.reservation) is None:
        return True
    try:
        await reservation.reserve(loaded.assembled.run.next_request())
        await reservation.leave_queue()
    except (RequestTooLargeForLimit, PriceUnknown) as never:
        failure = Failure.of(RateLimited(never.message), status=never.status)
        await in_db_thread(partial(_end, loaded.stored, failure))
        return False
    except (RateLimited, LimitsUnavailable) as refused:
        pause = blocked.pause_after(refused, end_user_is_known=True)
        await in_db_thread(partial(queue.postpone, claim, seconds=pause.seconds, needs=pause.needs))
        return False
    return True


def _end(stored: StoredRun, failure: Failure) -> None:
    with scope.team(stored.identity.team_id):
        stored.with_stored_grants().end(failed(failure))


def _read_queued(claims: Sequence[Claim]) -> dict[str, QueuedRun]:
    """Read the claimed runs that no process has begun, and look up their keys and models, with few queries."""
    queued = resume.read_queued(claims)
    rows = [run.response for run in queued.values()]
    directory.look_up_runs(
        {(row.api_key_id, row.team_id, row.model, row.upstream_id, row.upstream_model) for row in rows}
    )
    return queued


def _load(claim: Claim, queued: QueuedRun | None = None) -> _LoadedRun | None:
    """Load a claimed run, settle its losses and build it.

    Return None if the claim was lost, or if the run cannot be executed and was ended instead. `queued` is the run as it
    was read already, if no process has begun it.
    """
    stored = queued.load() if queued is not None else resume.load_claimed(claim)
    if stored is None:
        return None
    response, identity = stored.response, stored.identity
    try:
        principal = directory.principal_of_run(response.api_key_id)
        route = directory.route_of_run(
            team_id=response.team_id,
            model=response.model,
            upstream_id=response.upstream_id,
            upstream_model=response.upstream_model,
        )
    except ApiError as error:
        # The key was revoked, or the model or its upstream was deleted while the response was queued. It is loaded with
        # its place in the queue, which `queued` does not contain.
        if (dead := resume.load_claimed(claim)) is not None:
            dead.end(failed(Failure.of(ServerError(error.message))))
        return None
    grace = _grace_seconds(response, principal)
    if grace is not None and grace <= 0:
        stored.end(Ending(status="cancelled"))
        return None
    settled = stored.settle_losses()
    if settled is None:
        return None
    reservation = RunReservation(principal, identity, route.capabilities) if principal.is_limited else None
    factory = RunFactory.for_route(
        route,
        identity,
        checks=moderation.restore_checks(response, principal),
        reservation=reservation,
        # Retried for longer: no client could repeat a background run, and its tool calls so far have taken effect.
        patience=settings.UPSTREAM_BACKGROUND_RETRY_SECONDS if response.background else None,
    )
    return _LoadedRun(stored=settled, assembled=settled.build(factory), reservation=reservation, grace_seconds=grace)


def _grace_seconds(response: Response, principal: Principal) -> float | None:
    """Return how long a run that was handed over continues without a follower; None for a background run."""
    if response.background or response.handed_over_at is None or principal.grace_seconds is None:
        return None
    at, longest = shared_now(), max(principal.grace_seconds, _RECONNECT_SECONDS)
    if response.followed_until is not None and response.followed_until > at:
        return longest
    # The client counts as gone if the run had no follower for this long, for example because all processes were
    # stopped.
    return longest - max(0.0, (at - response.handed_over_at).total_seconds())
