"""The dispatcher of a worker: claims and executes background responses while it has capacity.

When the process shuts down, unfinished runs are released for other workers.
"""

import asyncio
import time
from functools import partial

from django.conf import settings
from typing_extensions import override

from core.compute.pool import of_team
from core.db.db_threads import in_db_thread
from core.load.draining import BEAT_SECONDS, surplus
from core.load.load_limit import LoadLimit
from core.telemetry import telemetry_names, tracing
from core.work.leases import Claim
from core.work.work_queue import WorkLoop
from engine import spans
from responses.lifecycle import claimed_run, queue
from responses.lifecycle.claimed_run import ClaimedRun
from responses.lifecycle.resume import QueuedRun
from responses.models import Isolation
from responses.runs.decisions import notices
from responses.runs.runner import LiveRun

# Time for runs that are stopped in the middle of a step to store their events.
_STOP_SECONDS = 2.0
# Pause between polls while the worker is at its limit, so that one query claims replacements for several ended runs.
_FULL_PACE_SECONDS = 0.02
# The minimum number of active runs, however busy the event loop is. Runs that only wait do not count.
_LEAST_RUNS = 8
# Interval at which a busy worker counts again how many of its runs only wait.
_ROOM_SECONDS = 0.05
# The load limit applies only if runs of several teams were claimed within this time.
_SHARED_SECONDS = 60.0


class Dispatcher(WorkLoop[Claim]):
    """Runs up to `slots` responses concurrently, and a few more for fairness between teams (see `queue.claim`).

    With an `isolation`, it executes only responses that have this isolation.
    """

    kind = "responses"

    def __init__(self, *, slots: int, isolation: Isolation = Isolation.NONE) -> None:
        super().__init__()
        self._slots, self._isolation = slots, isolation
        # While several teams have runs, the event loop's load limits the number of active runs: otherwise, a run of a
        # few milliseconds would wait for a hundred runs of a busy team.
        self._limit = LoadLimit(least=min(_LEAST_RUNS, slots), most=slots)
        self._last_team, self._last_change = "", -_SHARED_SECONDS
        self._live: dict[Claim, LiveRun] = {}
        self._reading: dict[Claim, asyncio.Future[dict[str, QueuedRun]]] = {}

    def load(self) -> dict[str, int]:
        """Return the number of slots, and of responses that occupy them; empty if the worker is stopping."""
        return {} if self.is_stopping else {"slots": self._slots, "held": len(self.work)}

    def free_slots(self) -> int:
        """Return the number of slots that are free at the moment."""
        return max(0, self._slots - len(self.work))

    @property
    @override
    def pace_seconds(self) -> float:  # type: ignore[override]
        """The pause between two polls. There is none while the worker has room, so that a run starts immediately."""
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
        """Return the number of runs that the load allows: active runs up to the limit, and all runs that only wait."""
        waiting = sum(live.waits for live in self._live.values())
        return min(self._slots, self._limit.value + waiting)

    async def _watch_room(self) -> None:
        # A run that begins to wait makes room like a run that ends, but it does not wake the work loop.
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
            self._reading |= dict.fromkeys(
                new, asyncio.ensure_future(in_db_thread(partial(claimed_run.read_queued, new)))
            )
        for claimed in found:
            self.begin(claimed)
        # If there is still room, the query has found all waiting runs. The exception are handed-over runs: if there are
        # any, the query returns only them.
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
            loaded = None if self.is_stopping else await in_db_thread(partial(claimed_run.load, claim, queued))
        if loaded is not None and not self.is_stopping and await loaded.admit():
            await self._run(loaded, is_new=queued is not None)
        if self.is_stopping:
            await in_db_thread(partial(queue.release, [claim.id]))
            queue.notify_workers()

    async def _run(self, loaded: ClaimedRun, *, is_new: bool) -> None:
        claim, assembled = loaded.claim, loaded.assembled
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
        if live.is_suspended:
            # If the last decision was made in the meantime, no notification was sent for it.
            queue.notify_workers()
            await in_db_thread(partial(notices.announce_requests, response_id=claim.id))

    @override
    async def drain(self) -> None:
        # Runs get time to end, or to reach a step from which other workers can resume. If too few runs do so, others
        # are stopped, spread evenly over the time, so that other workers can resume each of them immediately. The
        # newest runs are stopped first, because the smallest part of their turns has to be repeated.
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
