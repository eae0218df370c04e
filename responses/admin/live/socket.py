# mypy: allow-subclassing-any
"""The socket behind the page of running jobs: first everything that runs, then what changes."""

import asyncio
from functools import partial
from typing import Any

from typing_extensions import override

from kernel.clock import now
from kernel.db_threads import in_db_thread
from responses.admin.live import rows
from responses.admin.live.poller import Board, Seen
from responses.runs.runner import wait_within
from tenants.console.content_access import audit_team_reads
from tenants.console.socket import AdminSocket

# The page knows by it that the connection lives, and what time it is here.
_PULSE_SECONDS = 2.0


class LiveSocket(AdminSocket):
    """One page of running jobs."""

    @override
    async def watch(self) -> int:
        """Follow the board of those teams that the viewer sees."""
        news, sent = asyncio.Event(), _Sent(self)
        board = Board.join(self.viewer.visible_teams, news)
        try:
            while True:
                await wait_within(news, _PULSE_SECONDS)
                news.clear()
                if board.seen is not None:
                    await sent.send(board.seen, is_away=board.is_away)
        finally:
            board.leave(news)


class _Sent:
    """What a page has been told, so that it is told only what is new."""

    def __init__(self, socket: AdminSocket) -> None:
        self._socket = socket
        self._rows: dict[str, rows.Shown] = {}
        self._counters: rows.Shown = {}
        self._told_at = 0.0
        self._is_first = True
        self._noted: set[str] = set()

    async def send(self, seen: Seen, *, is_away: bool) -> None:
        """Tell what has changed; every now and then, that nothing has."""
        message, loop = self._message(seen, is_away=is_away), asyncio.get_running_loop()
        is_news = self._is_first or message["set"] or message["gone"] or message["counters"] != self._counters
        if not is_news and loop.time() - self._told_at < _PULSE_SECONDS:
            return
        await self._note_reading(seen)
        self._counters, self._told_at, self._is_first = message["counters"], loop.time(), False
        await self._socket.tell(message)

    def _message(self, seen: Seen, *, is_away: bool) -> dict[str, Any]:
        at, viewer = now(), self._socket.viewer
        found = {
            key: rows.shown(row, viewer, team=seen.teams.get(row.response.team_id, ""), at=at)
            for key, row in seen.look.rows.items()
        }
        gone = [
            {"id": key, "state": state, "tone": tone}
            for key in self._rows.keys() - found.keys()
            for state, tone in [rows.ended(seen.ended[key]) if key in seen.ended else ("gone", "ended")]
        ]
        changed = [row for key, row in found.items() if self._rows.get(key) != row]
        self._rows = found
        return {
            "type": "everything" if self._is_first else "changes",
            "at": round(at.timestamp() * 1000),
            "is_away": is_away,
            "counters": rows.counters(seen.look, workers=seen.workers, at=at),
            "set": changed,
            "gone": gone,
        }

    async def _note_reading(self, seen: Seen) -> None:
        """Who reads the words of a team without being its member stands in the audit log."""
        viewer = self._socket.viewer
        read = {row.response.team_id for row in seen.look.rows.values() if row.heard.words and row.response.stored}
        new = {team for team in read if viewer.may_read(team) and team not in viewer.roles} - self._noted
        if new:
            self._noted |= new
            await in_db_thread(partial(audit_team_reads, viewer, new))
