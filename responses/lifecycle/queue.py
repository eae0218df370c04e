"""The queue of background responses: workers claim responses from the database, with a fair share for each team.

The queue also contains responses that a stopping web process has handed over. They are claimed before all others.

A response can be claimed if it runs in the background, has not ended, has no valid lease, and waits neither for the
decision of a person (`waits_until`) nor until its limits have room (`postpone`). Claiming increments the lease token (a
fencing token), so that a previous worker that is still alive can no longer write.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import F, Func, JSONField, Value

from core.clock import shared_now
from core.process_name import process_name
from core.work.leases import HAS_EXPIRED, STEP_BY_INDEX, Claim, expired_before, lease_until
from core.work.worker_messages import WorkerMessage
from responses.models import RUNNING, SUSPENDED, Isolation, Response, Status
from tenants import scope

# The message expires soon, because workers find the response by polling anyway.
MESSAGE = WorkerMessage("responses.tasks.run_background", expires=10)
notify_workers = MESSAGE.notify
"""Notify workers that a response is queued."""


@dataclass(eq=False, slots=True, kw_only=True)
class RunClaim(Claim):
    """A claimed response. `has_begun`: another process has begun the run, so it is resumed from its stored state."""

    has_begun: bool


MAX_CLAIMS = 20
"""Maximum number of responses that one call claims. The worker calls again while there are more."""

# A worker at its load limit still claims for teams with fewer runs than this.
_FEW_RUNS = 4

# Runs of a dead worker are also claimed if no isolated process has claimed them within a minute. So they make progress
# even if there are too many of them, or if no isolated process can start.
#
# The index for claims contains exactly the rows of this condition.
_IS_OPEN = "background AND status IN ('queued', 'in_progress') AND waits_until IS NULL"
_IS_WAITING = f"""
    {_IS_OPEN} AND (lease_until IS NULL OR {HAS_EXPIRED})
    AND attempt < %(attempts)s AND NOT id = ANY (string_to_array(%(mine)s, ','))
    AND (not_before IS NULL OR not_before <= now())
    AND (isolation IN (0, {SUSPENDED}) OR isolation = 1 AND lease_until < now() - interval '1 minute')
"""
# `team` steps from one team to the next in an index, so that a team with 1,000 queued rows costs as much as one with a
# single row. `runs` is the number of runs that the team would have with this row: the team with the fewest runs in
# relation to its weight comes first, and within a team the oldest response.
_CLAIM = f"""
WITH RECURSIVE team(id) AS (
    (SELECT team_id FROM responses_response
     WHERE {_IS_OPEN} ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_response
            WHERE {_IS_OPEN} AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
),
held(team_id, runs) AS (SELECT * FROM unnest(%(teams)s::text[], %(runs)s::integer[])),
waiting AS (
    SELECT next.id, next.created_at, next.has_expired, team.id AS team_id, coalesce(held.runs, 0) AS held, owner.weight
    FROM team
    JOIN tenants_team AS owner ON owner.id = team.id
    LEFT JOIN held ON held.team_id = team.id
    CROSS JOIN LATERAL (
        SELECT id, created_at, lease_until IS NOT NULL AS has_expired FROM responses_response
        WHERE team_id = team.id AND {_IS_WAITING}
        ORDER BY created_at
        LIMIT %(most)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
),
chosen AS (
    SELECT id, has_expired FROM (
        SELECT id, created_at, has_expired, weight,
            held + row_number() OVER (PARTITION BY team_id ORDER BY created_at) AS runs
        FROM waiting
    ) AS ranked
    WHERE runs <= %(most_per_team)s
    ORDER BY runs::real / weight, created_at
    LIMIT %(most)s
)
UPDATE responses_response AS response
SET lease_owner = %(owner)s, lease_token = lease_token + 1, lease_until = %(until)s, attempt = attempt + 1,
    claims = claims || jsonb_build_object('at', now(), 'by', %(owner)s::text),
    isolation = CASE isolation WHEN {SUSPENDED} THEN 0 ELSE isolation END
FROM chosen
WHERE response.id = chosen.id
RETURNING response.id, response.team_id, response.lease_token, response.attempt, chosen.has_expired, response.status
"""  # noqa: S608 - constants only


def _claim_in_order(condition: str, order: str) -> str:
    return f"""
WITH chosen AS (
    SELECT id, lease_until IS NOT NULL AS has_expired FROM responses_response
    WHERE {condition} AND status IN ('queued', 'in_progress')
        AND attempt < %(attempts)s AND NOT id = ANY (string_to_array(%(mine)s, ','))
        AND (not_before IS NULL OR not_before <= now())
    ORDER BY {order}
    LIMIT %(most)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE responses_response AS response
SET lease_owner = %(owner)s, lease_token = lease_token + 1, lease_until = %(until)s, attempt = attempt + 1,
    claims = claims || jsonb_build_object('at', now(), 'by', %(owner)s::text)
FROM chosen
WHERE response.id = chosen.id
RETURNING response.id, response.team_id, response.lease_token, response.attempt, chosen.has_expired, response.status
"""  # noqa: S608 - constants only


# Handed-over responses do not wait for a slot, because their clients have received a part of the answer.
_CLAIM_HANDED_OVER = _claim_in_order(
    f"handed_over_at IS NOT NULL AND (lease_until IS NULL OR {HAS_EXPIRED}) AND isolation = 0", "handed_over_at"
)
# Isolated runs are few and have an expired lease, so an index by lease finds them among any number of queued runs.
_CLAIM_ISOLATED = _claim_in_order(
    f"(background OR handed_over_at IS NOT NULL) AND {HAS_EXPIRED} AND isolation = %(isolation)s", "lease_until"
)


def claim(*, slots: int, running: Collection[Claim], limit: int | None = None) -> list[RunClaim]:
    """Claim up to `MAX_CLAIMS` responses for a worker with `slots` slots that already executes the `running` responses.

    Responses that stopping web processes have handed over come first, and may use up to twice as many slots.

    `limit` is the number of responses that the worker's load allows. Beyond this number, the worker claims only
    responses of teams with very few runs.
    """
    held = Counter(run.team_id for run in running)
    free, most_per_team = (slots if limit is None else limit) - len(running), slots
    if free <= 0 < slots - len(running):
        free, most_per_team = slots - len(running), min(_FEW_RUNS, slots)
    if free <= 0:
        # All slots are taken. A single team counts for at most half of the slots, so that other teams need not wait
        # until a run of a busy team has ended. Therefore the worker may exceed its slots by half.
        most_per_team = max(1, slots // 2)
        free = slots - sum(min(runs, most_per_team) for runs in held.values())
    parameters = {
        **_parameters(running),
        "teams": list(held),
        "runs": list(held.values()),
        "most_per_team": most_per_team,
    }
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_CLAIM_HANDED_OVER, {**parameters, "most": min(2 * slots - len(running), MAX_CLAIMS)})
        claimed = cursor.fetchall()
        if not claimed and free > 0:
            cursor.execute(STEP_BY_INDEX)
            cursor.execute(_CLAIM, {**parameters, "most": min(free, MAX_CLAIMS)})
            claimed = cursor.fetchall()
    return _claims(claimed, until=parameters["until"])


def claim_isolated(*, slots: int, running: Collection[Claim], isolation: Isolation) -> list[RunClaim]:
    """Claim responses with this isolation for an isolated process, up to the number of its slots."""
    if (free := slots - len(running)) <= 0:
        return []
    parameters = {**_parameters(running), "isolation": isolation, "most": min(free, MAX_CLAIMS)}
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_CLAIM_ISOLATED, parameters)
        claimed = cursor.fetchall()
    return _claims(claimed, until=parameters["until"])


def _parameters(running: Collection[Claim]) -> dict[str, Any]:
    return {
        "attempts": settings.BACKGROUND_ATTEMPTS,
        # A text, because converting a list takes psycopg as long as the whole query.
        "mine": ",".join(run.id for run in running),
        "owner": process_name(),
        "until": lease_until(),
        "expired": expired_before(),
    }


def _claims(rows: Iterable[tuple[Any, ...]], *, until: datetime) -> list[RunClaim]:
    return [
        RunClaim(
            id=pk,
            team_id=team_id,
            token=token,
            attempt=attempt,
            has_expired=has_expired,
            has_begun=has_expired or status != Status.QUEUED,
            until=until,
            labels={"response": pk},
        )
        for pk, team_id, token, attempt, has_expired, status in rows
    ]


def release(response_ids: Collection[str]) -> int:
    """Release claimed responses for other workers. Return the number of released responses, which have not ended.

    The attempt does not count, because the response did not cause the shutdown. The isolation of the response ends,
    because isolated runs are found only while they have an expired lease.
    """
    with scope.every_team():
        mine = Response.objects.filter(pk__in=response_ids, lease_owner=process_name(), status__in=RUNNING)
        return mine.update(lease_owner=None, lease_until=None, attempt=F("attempt") - 1, isolation=Isolation.NONE)


def postpone(claim: Claim, *, seconds: float, needs: Decimal | None = None) -> None:
    """Put a claimed response back into the queue. After the pause, any worker may claim it.

    Neither the attempt nor the claim counts, because the run has not started. With `needs`, the response can be claimed
    earlier if its limits have room (see `blocked`).
    """
    with scope.team(claim.team_id):
        claim.row(Response.objects.filter(status__in=RUNNING)).update(
            lease_owner=None,
            lease_until=None,
            attempt=F("attempt") - 1,
            isolation=Isolation.NONE,
            claims=_without_last("claims"),
            not_before=shared_now() + timedelta(seconds=seconds),
            needs_budget=needs,
        )


def _without_last(column: str) -> Func:
    return Func(F(column), Value(-1), template="(%(expressions)s)", arg_joiner=" - ", output_field=JSONField())
