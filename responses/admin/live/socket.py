# mypy: allow-subclassing-any
"""WebSocket of the page of running jobs: sends all runs first, then changes."""

import asyncio
from functools import partial
from typing import Any

from typing_extensions import override

from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.notifications import wait_within
from responses.admin.live import rows
from responses.admin.live.poller import PollResult, RunPoller
from tenants.console.content_access import audit_team_reads
from tenants.console.socket import AdminSocket

# Sent without changes too: the page shows a lost connection after silence, and corrects its clock by the message.
_KEEPALIVE_SECONDS = 2.0


class LiveSocket(AdminSocket):
    """Socket of one page."""

    @override
    async def watch(self) -> int:
        """Follow the poller of the teams that the viewer sees."""
        changed, state = asyncio.Event(), _SentState(self)
        poller = RunPoller.join(self.viewer.visible_teams, changed)
        try:
            while True:
                await wait_within(changed, _KEEPALIVE_SECONDS)
                changed.clear()
                if poller.result is not None:
                    await state.send(poller.result, is_unavailable=poller.is_unavailable)
        finally:
            poller.leave(changed)


class _SentState:
    """State of one page, from which later messages are reduced to changes."""

    def __init__(self, socket: AdminSocket) -> None:
        self._socket = socket
        self._rows: dict[str, rows.RowJson] = {}
        self._counters: rows.RowJson = {}
        self._sent_at = 0.0
        self._is_first = True
        self._audited: set[str] = set()

    async def send(self, result: PollResult, *, is_unavailable: bool) -> None:
        """Send changes, or an empty message after a while without any."""
        message, loop = self._message(result, is_unavailable=is_unavailable), asyncio.get_running_loop()
        has_changes = self._is_first or message["set"] or message["gone"] or message["counters"] != self._counters
        if not has_changes and loop.time() - self._sent_at < _KEEPALIVE_SECONDS:
            return
        await self._audit_reads(result)
        self._counters, self._sent_at, self._is_first = message["counters"], loop.time(), False
        await self._socket.send_message(message)

    def _message(self, result: PollResult, *, is_unavailable: bool) -> dict[str, Any]:
        at, viewer = now(), self._socket.viewer
        found = {
            key: rows.row_json(row, viewer, team=result.teams.get(row.response.team_id, ""), at=at)
            for key, row in result.snapshot.rows.items()
        }
        gone = [
            {"id": key, "state": state, "tone": tone}
            for key in self._rows.keys() - found.keys()
            # A run that is gone without a final status was deleted, or left the first rows of a long list.
            for state, tone in [rows.ended(result.ended[key]) if key in result.ended else ("gone", "ended")]
        ]
        changed = [row for key, row in found.items() if self._rows.get(key) != row]
        self._rows = found
        return {
            "type": "everything" if self._is_first else "changes",
            "at": round(at.timestamp() * 1000),
            "is_unavailable": is_unavailable,
            "counters": rows.counters(result.snapshot, workers=result.workers, at=at),
            "set": changed,
            "gone": gone,
        }

    async def _audit_reads(self, result: PollResult) -> None:
        # Reading content of a team without being a member is recorded, once for each page and team.
        viewer = self._socket.viewer
        runs = result.snapshot.rows.values()
        read = {row.response.team_id for row in runs if row.log_tail.preview and row.response.stored}
        new = {team for team in read if viewer.may_read(team) and team not in viewer.roles} - self._audited
        if new:
            self._audited |= new
            await in_db_thread(partial(audit_team_reads, viewer, new))
