# mypy: allow-subclassing-any
"""WebSocket of the page of running jobs: sends all runs first, then changes."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from django.db import Error as DatabaseError
from typing_extensions import override

from core.clock import now
from core.db.db_threads import in_db_thread
from core.work.notifications import Notifier, wait_within
from responses.admin.live import rows
from responses.admin.live.queries import RunsSnapshot, take_snapshot
from responses.runs.identity import OBSERVED, channel_of_process
from tenants import scope
from tenants.console.content_access import audit_team_reads
from tenants.console.socket import AdminSocket

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2
_RETRY_SECONDS = 1.0
_OBSERVE_SECONDS = 2.0
# Interval of messages without changes: the page reports a lost connection if it receives none, and sets its clock by
# them.
_KEEPALIVE_SECONDS = 2.0


class LiveSocket(AdminSocket):
    """Socket of one page. It stores the rows that it sent, so that later messages contain only changes."""

    @override
    async def watch(self) -> int:
        """Send the snapshots of the poller for the teams that the viewer sees."""
        self._rows: dict[str, rows.RowJson] = {}
        self._counters: rows.RowJson | None = None
        self._sent_at = 0.0
        self._audited: set[str] = set()
        changed = asyncio.Event()
        poller = RunPoller.join(self.viewer.visible_teams, changed)
        try:
            while True:
                await wait_within(changed, _KEEPALIVE_SECONDS)
                changed.clear()
                if poller.snapshot is not None:
                    await self._send(poller.snapshot, is_unavailable=poller.is_unavailable)
        finally:
            poller.leave(changed)

    async def _send(self, snapshot: RunsSnapshot, *, is_unavailable: bool) -> None:
        """Send changes, or an empty message if there were none for some time."""
        at, loop = now(), asyncio.get_running_loop()
        found = rows.rows_json(snapshot, self.viewer, at=at)
        gone = [
            {"id": key, "state": state, "tone": tone}
            for key in self._rows.keys() - found.keys()
            # A run that disappears without a final status was deleted, or is no longer among the first rows of a list.
            for state, tone in [rows.ended(snapshot.ended[key]) if key in snapshot.ended else ("gone", "ended")]
        ]
        changed = [row for key, row in found.items() if self._rows.get(key) != row]
        self._rows = found
        is_first = self._counters is None
        message = rows.message(snapshot, changed, at=at, gone=gone, is_first=is_first, is_unavailable=is_unavailable)
        has_changes = changed or gone or message["counters"] != self._counters
        if not has_changes and loop.time() - self._sent_at < _KEEPALIVE_SECONDS:
            return
        # If the viewer is not a member of the team, reading its content is recorded once for each page and team.
        if new := rows.read_teams(snapshot, self.viewer) - self.viewer.roles.keys() - self._audited:
            self._audited |= new
            await in_db_thread(partial(audit_team_reads, self.viewer, new))
        self._counters, self._sent_at = message["counters"], loop.time()
        await self.send_message(message)


class RunPoller:
    """Polls the runs of a set of teams for all open pages of viewers who see exactly these teams.

    A process has one poller for each set of teams, from the first page to the last one. A poller reads the database
    about four times a second. If it followed every run instead, the processes of the runs would have to write their
    logs ten times as often as the page needs.
    """

    # Keyed by event loop too: tasks and events belong to the loop that created them.
    _pollers: dict[tuple[asyncio.AbstractEventLoop, frozenset[str]], "RunPoller"] = {}

    def __init__(self, teams: frozenset[str]) -> None:
        self.snapshot: RunsSnapshot | None = None
        self.is_unavailable = False
        self._teams = teams
        self._watchers: set[asyncio.Event] = set()
        # Processes whose runs are in the snapshot, with the time of the last notification that a page shows their runs.
        self._observed: dict[str, float] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())

    @classmethod
    def join(cls, teams: Iterable[str], changed: asyncio.Event) -> "RunPoller":
        """Return the poller of these teams. The poller sets the event after every poll until `leave` is called."""
        key = (asyncio.get_running_loop(), frozenset(teams))
        poller = cls._pollers.get(key)
        if poller is None:
            poller = cls._pollers[key] = cls(key[1])
        poller._watchers.add(changed)
        if poller.snapshot is not None:
            # The poller runs already: show its latest snapshot now instead of after the next poll.
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
                self.snapshot = await in_db_thread(self._poll)
                self.is_unavailable = False
                self._observe(self.snapshot)
            except DatabaseError:
                # The database restarts or fails over. Pages show that it is unavailable until a poll succeeds again.
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

    def _observe(self, snapshot: RunsSnapshot) -> None:
        """Ask the processes of the runs to store new events soon. Without this, it may take them several seconds."""
        at = time.monotonic()
        processes = {row.response.lease_owner for row in snapshot.rows.values() if row.response.lease_owner}
        notified = {name: self._observed.get(name, -_OBSERVE_SECONDS) for name in processes}
        for name in processes:
            if at - notified[name] >= _OBSERVE_SECONDS:
                notified[name] = at
                Notifier(channel_of_process(name)).notify(OBSERVED)
        self._observed = notified

    def _poll(self) -> RunsSnapshot:
        with scope.team(*self._teams):
            return take_snapshot(teams=self._teams, before=self.snapshot)
