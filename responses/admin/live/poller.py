"""Poller behind the page of running jobs: one for each process and set of visible teams, while a page is open.

It polls about four times a second instead of waiting for notifications: if the page subscribed to every run, each run
would have to write its log four times as often as it needs to.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from django.db import Error as DatabaseError

from kernel import heartbeats
from kernel.db_threads import in_db_thread
from responses.admin.live import queries
from responses.admin.live.queries import RunsSnapshot
from tenants import scope
from tenants.models import Team

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2
_RETRY_SECONDS = 1.0
_WORKERS_SECONDS = 3.0
# Final statuses are kept for a while: a slow page may ask for an ended run several polls later.
_MAX_ENDED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """A snapshot with team names, the final statuses of runs that ended earlier, and the number of live workers.

    `workers` is None if Redis is unavailable.
    """

    snapshot: RunsSnapshot = field(default_factory=RunsSnapshot)
    teams: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None


def poll(*, teams: Iterable[str], before: PollResult | None = None) -> PollResult:
    """Poll once. Must run inside a scope that sees these teams."""
    before = before or PollResult()
    snapshot = queries.take_snapshot(teams=[*teams], before=before.snapshot)
    gone = before.snapshot.rows.keys() - snapshot.rows.keys()
    ended = {**before.ended, **(queries.endings(response_ids=gone) if gone else {})}
    # Team names rarely change: each is read once for each poller.
    wanted = {row.response.team_id for row in snapshot.rows.values()} - before.teams.keys()
    names = dict(Team.objects.filter(pk__in=wanted).values_list("pk", "name")) if wanted else {}
    return PollResult(
        snapshot=snapshot,
        teams={**before.teams, **names},
        ended=dict([*ended.items()][-_MAX_ENDED:]),
        workers=WorkerCount.count(),
    )


class RunPoller:
    """Polls the runs of a set of teams for all pages that may see them.

    It starts with the first page and stops with the last one.
    """

    # Keyed by event loop too: tasks and events belong to the loop that created them.
    _pollers: dict[tuple[asyncio.AbstractEventLoop, frozenset[str]], "RunPoller"] = {}

    def __init__(self, teams: frozenset[str]) -> None:
        self.result: PollResult | None = None
        self.is_unavailable = False
        self._teams = teams
        self._watchers: set[asyncio.Event] = set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @classmethod
    def join(cls, teams: Iterable[str], changed: asyncio.Event) -> "RunPoller":
        """Return the poller of these teams. It sets the event after every poll, until `leave`."""
        key = (asyncio.get_running_loop(), frozenset(teams))
        poller = cls._pollers.get(key)
        if poller is None:
            poller = cls._pollers[key] = cls(key[1])
        poller._watchers.add(changed)
        if poller.result is not None:
            # The poller runs already: show what it knows now instead of after the next poll.
            changed.set()
        return poller

    def leave(self, changed: asyncio.Event) -> None:
        """Stop notifying this event."""
        self._watchers.discard(changed)
        if not self._watchers:
            self._task.cancel()
            self._pollers.pop((asyncio.get_running_loop(), self._teams), None)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self.result = await in_db_thread(partial(_poll_in_scope, self._teams, self.result))
                self.is_unavailable = False
            except DatabaseError:
                # The database restarts or fails over: pages show that, and recover with it.
                logger.warning("running jobs cannot be read right now", exc_info=not self.is_unavailable)
                self.is_unavailable = True
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                logger.exception("running jobs could not be read")
                self.is_unavailable = True
                await asyncio.sleep(_RETRY_SECONDS)
            for changed in self._watchers:
                changed.set()
            # At least a short pause, even after a poll that took longer than the interval.
            await asyncio.sleep(max(0.05, POLL_SECONDS - (time.monotonic() - began)))


def _poll_in_scope(teams: frozenset[str], before: PollResult | None) -> PollResult:
    with scope.team(*teams):
        return poll(teams=teams, before=before)


class WorkerCount:
    """Number of live workers, read from Redis every few seconds, however many pages are open."""

    _count: int | None = None
    _checked_at = float("-inf")

    @classmethod
    def count(cls) -> int | None:
        """Return the number as of a few seconds ago, or None if Redis is unavailable."""
        if time.monotonic() - cls._checked_at > _WORKERS_SECONDS:
            # Set before the call: while Redis is unavailable, only one caller in three seconds waits for it.
            cls._checked_at = time.monotonic()
            beats = heartbeats.live_processes()
            cls._count = None if beats is None else sum(beat.kind == "worker" for beat in beats)
        return cls._count
