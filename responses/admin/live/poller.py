"""What runs, read again and again while somebody watches: one reader in each process for all who may see the same.

The reader polls, four times a second and a little more, and needs nobody to wake it: listening to every run would make
each of them write its log four times as often as it has to.
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
from responses.admin.live.queries import Look
from tenants import scope
from tenants.models import Team

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
_AWAY_SECONDS = 1.0
_WORKERS_SECONDS = 3.0
_ENDED_KEPT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A look with what belongs to it: the names of the teams, how the runs ended that were there before, and how many
    workers live, if that is known."""

    look: Look = field(default_factory=Look)
    teams: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None


def see(*, teams: Iterable[str], before: Seen | None = None) -> Seen:
    """Look once, inside of a scope that sees these teams."""
    before = before or Seen()
    found = queries.look(teams=[*teams], before=before.look)
    gone = before.look.rows.keys() - found.rows.keys()
    ended = {**before.ended, **(queries.endings(response_ids=gone) if gone else {})}
    wanted = {row.response.team_id for row in found.rows.values()} - before.teams.keys()
    names = dict(Team.objects.filter(pk__in=wanted).values_list("pk", "name")) if wanted else {}
    return Seen(
        look=found,
        teams={**before.teams, **names},
        ended=dict([*ended.items()][-_ENDED_KEPT:]),
        workers=Workers.count(),
    )


class Board:
    """What those see who may see the same teams. Its reader begins with the first watcher and ends with the last."""

    _open: dict[tuple[asyncio.AbstractEventLoop, frozenset[str]], "Board"] = {}

    def __init__(self, teams: frozenset[str]) -> None:
        self.seen: Seen | None = None
        self.is_away = False
        self._teams = teams
        self._watchers: set[asyncio.Event] = set()
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    def join(cls, teams: Iterable[str], news: asyncio.Event) -> "Board":
        """The board of these teams; the event is set whenever it has changed, until `leave`."""
        key = (asyncio.get_running_loop(), frozenset(teams))
        board = cls._open.get(key)
        if board is None:
            board = cls._open[key] = cls(key[1])
        board._watchers.add(news)
        if board.seen is not None:
            news.set()
        return board

    def leave(self, news: asyncio.Event) -> None:
        """A watcher has gone."""
        self._watchers.discard(news)
        if not self._watchers:
            self._task.cancel()
            self._open.pop((asyncio.get_running_loop(), self._teams), None)

    async def _read(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self.seen = await in_db_thread(partial(_see, self._teams, self.seen))
                self.is_away = False
            except DatabaseError:
                # It is away for a moment, and pages say so.
                logger.warning("what runs cannot be read right now", exc_info=not self.is_away)
                self.is_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception:
                logger.exception("what runs could not be read")
                self.is_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            for news in self._watchers:
                news.set()
            await asyncio.sleep(max(0.05, LOOK_SECONDS - (time.monotonic() - began)))


def _see(teams: frozenset[str], before: Seen | None) -> Seen:
    with scope.team(*teams):
        return see(teams=teams, before=before)


class Workers:
    """How many workers live, asked of Redis now and then, however many watch."""

    _found: int | None = None
    _asked_at = float("-inf")

    @classmethod
    def count(cls) -> int | None:
        """The number as it was a few seconds ago; None where nobody knows."""
        if time.monotonic() - cls._asked_at > _WORKERS_SECONDS:
            # Marked first: while Redis is away, one caller in three seconds waits for it.
            cls._asked_at = time.monotonic()
            beats = heartbeats.live_processes()
            cls._found = None if beats is None else sum(beat.kind == "worker" for beat in beats)
        return cls._found
