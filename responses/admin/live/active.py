"""Active runs and their numbers. Every page that shows how many runs are running or waiting reads them here."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from core.db.row_security import EVERY_TEAM
from responses.models import RUNNING, Response, Status
from responses.runs.decisions.listing import AwaitedPlace, awaited_places

MAX_COUNTED = 1000
MAX_AWAITING = 100
STUCK_AFTER = timedelta(seconds=60)
_MAX_WAITING = 100

# Columns to read: without parameters and metadata, which may be large and are not shown.
COLUMNS = (
    "id",
    "team_id",
    "created_at",
    "status",
    "mode",
    "endpoint",
    "background",
    "stored",
    "model",
    "turns",
    "tool_calls",
    "input_tokens",
    "output_tokens",
    "lease_owner",
    "lease_token",
    "lease_until",
    "attempt",
    "not_before",
    "waits_until",
    "ended_at",
)
# Runs that wait for a decision wait for no worker, and are not in the index of the queue.
_IS_RUNNING = "status IN ('queued', 'in_progress') AND waits_until IS NULL"
# A loose index scan finds the teams with background work: one index lookup for each team, as in the claim query.
_TEAMS_SQL = f"""
    (SELECT team_id AS id FROM responses_response WHERE background AND {_IS_RUNNING} ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_response
            WHERE background AND {_IS_RUNNING} AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
"""  # noqa: S608 - constants of ours
# Counts each team's queue up to a limit: an exact count of a long queue would read all of it.
_WAITING_SQL = """
WITH RECURSIVE team(id) AS ({teams}),
waiting AS (
    SELECT next.id, next.created_at, next.status
    FROM team CROSS JOIN LATERAL (
        SELECT id, created_at, status FROM responses_response
        WHERE team_id = team.id AND background AND {is_running} AND lease_until IS NULL
        ORDER BY created_at LIMIT %(counted)s
    ) AS next
)
SELECT count(*) OVER (), count(*) FILTER (WHERE status = 'queued') OVER (), id
FROM waiting ORDER BY created_at LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRuns:
    """The active runs of some teams at one moment.

    - `executed`: the runs that a process executes, the first lease to expire first; at most `MAX_COUNTED`.
    - `waiting`: the runs that have waited longest for a worker.
    - `decisions`: the open decisions that runs wait for, the first to expire first; at most `MAX_AWAITING`.
    - `running`, `queued`: the numbers of runs in progress and of queued ones, each at most `MAX_COUNTED`.
    """

    executed: Sequence[Response] = ()
    waiting: Sequence[Response] = ()
    decisions: Sequence[AwaitedPlace] = ()
    running: int = 0
    queued: int = 0

    @property
    def oldest_queued(self) -> datetime | None:
        """Creation time of the oldest queued run that a worker could execute, or None."""
        return _oldest(row for row in self.waiting if row.status == Status.QUEUED)

    def stuck(self, at: datetime) -> int:
        """Return the number of runs that make no progress."""
        return sum(bool(stuck_reason(row, at=at)) for row in [*self.executed, *self.waiting])


def read_active(teams: Collection[str] = (EVERY_TEAM,)) -> ActiveRuns:
    """Return the active runs of these teams, or of every team. Must run inside a scope that sees these teams."""
    # Runs with an expired lease come first, because they need attention.
    leased = Response.objects.only(*COLUMNS).filter(status__in=RUNNING, lease_until__isnull=False)
    executed = list(leased.order_by("lease_until")[:MAX_COUNTED])
    counted, queued, waiting = _waiting(teams)
    # Claimed by a worker that has not begun yet.
    claimed = sum(row.status == Status.QUEUED for row in executed)
    return ActiveRuns(
        executed=executed,
        waiting=waiting,
        decisions=awaited_places(None if EVERY_TEAM in teams else [*teams], limit=MAX_AWAITING),
        running=min(len(executed) - claimed + counted - queued, MAX_COUNTED),
        queued=min(claimed + queued, MAX_COUNTED),
    )


def holders() -> list[str]:
    """Return the lease owner of each active run, 1,000 at most."""
    rows = Response.objects.filter(status__in=RUNNING, lease_until__isnull=False, lease_owner__isnull=False)
    return [
        owner for owner in rows.order_by("lease_until").values_list("lease_owner", flat=True)[:MAX_COUNTED] if owner
    ]


def count_text(count: int, most: int = MAX_COUNTED) -> str:
    """Return a number of runs, with a plus sign if it reached its maximum."""
    return f"{count:,}{'+' if count >= most else ''}"


def stuck_reason(response: Response, *, at: datetime) -> str:
    """Return the reason why a run makes no progress and needs an operator, or an empty string."""
    if response.awaits_decision:
        return ""
    if response.lease_until is not None:
        if response.lease_until < at:
            return "Lease expired"
        if at - (response.lease_until - timedelta(seconds=settings.LEASE_SECONDS)) > STUCK_AFTER:
            return "Lease not renewed for a minute"
        return ""
    if response.attempt >= settings.BACKGROUND_ATTEMPTS:
        return "No attempts left"
    if response.planned_start is not None:
        return ""
    return "Not claimed by a worker" if at - response.created_at > STUCK_AFTER else ""


def _oldest(waiting: Iterable[Response]) -> datetime | None:
    """Return the creation time of the oldest run that a worker could execute."""
    return min((row.created_at for row in waiting if row.planned_start is None), default=None)


def _waiting(teams: Collection[str]) -> tuple[int, int, list[Response]]:
    """Return the number of runs that wait for a worker, the number of queued ones, and the longest waiting responses.

    Waiting runs that are not queued were requeued: their status is `in_progress`.
    """
    sees_every_team = EVERY_TEAM in teams
    teams_sql = _TEAMS_SQL if sees_every_team else "SELECT unnest(%(teams)s::text[])"
    sql = _WAITING_SQL.format(teams=teams_sql, is_running=_IS_RUNNING)
    parameters: dict[str, Any] = {"teams": [*teams], "limit": _MAX_WAITING, "counted": MAX_COUNTED}
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = cursor.fetchall()
    if not found:
        return 0, 0, []
    # Runs may have ended between the two statements: the status is checked again.
    rows = Response.objects.only(*COLUMNS).filter(pk__in=[key for *_, key in found], status__in=RUNNING)
    every, queued = (min(int(count), MAX_COUNTED) for count in found[0][:2])
    return every, queued, list(rows.order_by("created_at"))
