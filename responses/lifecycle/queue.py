"""Who runs which background response: workers take the next ones from the database, team by team, and give them back.

A response is there to be claimed when it is in the background, has not ended, and nobody holds its lease. Claiming
counts up the lease token, so that a predecessor which is not quite dead writes no more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import F

from responses.models import RUNNING, Response
from responses.runs.runner import PROCESS, lease_until
from tenants import scope

MAX_CLAIMS = 20
_IS_WAITING = """
    background AND status IN ('queued', 'in_progress') AND (lease_until IS NULL OR lease_until < now())
    AND attempt < %(attempts)s AND NOT id = ANY (%(mine)s)
"""
# The teams are found by stepping from one to the next in an index, so that 1,000 rows of one of them cost as much as
# one. `share` is what a team would hold with a row: whoever holds least comes first, and within a team who came first.
_CLAIM = f"""
WITH RECURSIVE team(id) AS (
    (SELECT team_id FROM responses_response
     WHERE background AND status IN ('queued', 'in_progress') ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_response
            WHERE background AND status IN ('queued', 'in_progress') AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
),
held(team_id, runs) AS (SELECT * FROM unnest(%(teams)s::text[], %(runs)s::integer[])),
waiting AS (
    SELECT next.id, next.created_at, team.id AS team_id, coalesce(held.runs, 0) AS held
    FROM team
    LEFT JOIN held ON held.team_id = team.id
    CROSS JOIN LATERAL (
        SELECT id, created_at FROM responses_response
        WHERE team_id = team.id AND {_IS_WAITING}
        ORDER BY created_at
        LIMIT %(most)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
),
chosen AS (
    SELECT id FROM (
        SELECT id, created_at, held + row_number() OVER (PARTITION BY team_id ORDER BY created_at) AS share FROM waiting
    ) AS ranked
    WHERE share <= %(most_per_team)s
    ORDER BY share, created_at
    LIMIT %(most)s
)
UPDATE responses_response AS response
SET lease_owner = %(owner)s, lease_token = lease_token + 1, lease_until = %(until)s, attempt = attempt + 1,
    claims = claims || jsonb_build_object('at', now(), 'by', %(owner)s::text)
FROM chosen
WHERE response.id = chosen.id
RETURNING response.id, response.team_id, response.lease_token
"""  # noqa: S608 - constants of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A response that this process is to run, for as long as its lease has this token."""

    response_id: str
    team_id: str
    lease_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """How many more runs a worker takes, and how many a single team may then hold of its slots."""

    runs: int
    per_team: int


def capacity(*, slots: int, held: Mapping[str, int]) -> WorkerCapacity:
    """What is free, with these runs held by team.

    Beside free slots there is always room for teams that hold less than half of them: what one team holds beyond its
    half counts for nobody but itself. So whoever comes late need not wait for a run of that team to end, and at most
    half as many runs again as there are slots are held.
    """
    free = slots - sum(held.values())
    if free > 0:
        return WorkerCapacity(runs=free, per_team=slots)
    half = max(1, slots // 2)
    return WorkerCapacity(runs=slots - sum(min(runs, half) for runs in held.values()), per_team=half)


def claim(*, capacity: WorkerCapacity, held: Mapping[str, int], mine: Collection[str]) -> list[ClaimedRun]:
    """Take the next responses, at most `MAX_CLAIMS`, but for those that this process runs already, `mine`."""
    if capacity.runs <= 0:
        return []
    parameters: dict[str, Any] = {
        "attempts": settings.BACKGROUND_ATTEMPTS,
        "mine": list(mine),
        "teams": list(held),
        "runs": list(held.values()),
        "most": min(capacity.runs, MAX_CLAIMS),
        "most_per_team": capacity.per_team,
        "owner": PROCESS,
        "until": lease_until(),
    }
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_CLAIM, parameters)
        return [
            ClaimedRun(response_id=response_id, team_id=team_id, lease_token=lease_token)
            for response_id, team_id, lease_token in cursor.fetchall()
        ]


def release(response_ids: Collection[str]) -> int:
    """Let others claim these at once, as if this process had never begun with them; returns how many had not ended."""
    with scope.every_team():
        mine = Response.objects.filter(pk__in=response_ids, lease_owner=PROCESS, status__in=RUNNING)
        return mine.update(lease_owner=None, lease_until=None, attempt=F("attempt") - 1)
