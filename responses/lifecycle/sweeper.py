"""Housekeeping: runs whose process died are ended, logs past their retention are dropped.

Both work in small bounded transactions and are safe to run twice and side by side.
"""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import F, Q

from kernel.clock import now
from kernel.errors import Failure
from responses.engine.events.terminal import failed
from responses.lifecycle import resume
from responses.models import RUNNING, CommitMark, Response
from responses.runs import conversation_lock, store
from responses.runs.runner import PROCESS, lease_until
from tenants import scope

logger = logging.getLogger(__name__)
_AT_ONCE = 100
_DEAD = Failure(
    code="server_error",
    message="The server that was running this response stopped. What it had finished is in the output.",
)

_GIVEN_UP = Failure(
    code="server_error",
    message="The servers that were running this response stopped, one after the other, and no further one tries. "
    "What they had finished is in the output.",
)


def sweep_dead_runs() -> int:
    """End the runs whose lease has run out and that nobody goes on with; returns how many.

    The process that died had the only connection to the client, and may have sent events that it could not store any
    more: such a run cannot be continued honestly, so it fails with what is stored. Those in the background are
    continued by the next worker, until enough of them have tried.
    """
    return sum(_end(response_id, team_id) for response_id, team_id in _claim(at=now()))


def end_dead_run(*, response_id: str) -> None:
    """End one run whose lease has run out: who needs what it holds does not wait for the sweeper."""
    for claimed, team_id in _claim(at=now(), response_id=response_id):
        _end(claimed, team_id)


def _end(response_id: str, team_id: str) -> bool:
    """End one dead run; False when it has ended otherwise, or cannot be ended now."""
    try:
        with scope.team(team_id):
            taken = resume.load(response_id=response_id)
        why = _GIVEN_UP if taken.identity.background else _DEAD
        _, change = taken.recorder.plan(taken.run.end_idle(failed(why)))
        (lost,) = store.apply([change])
    except Exception:
        # The others must not wait for it; it is tried again once the lease that we took has run out.
        logger.exception("a dead run could not be ended", extra={"response": response_id})
        return False
    if lost is None:
        logger.warning("a dead run was ended", extra={"response": response_id})
    return lost is None


def _claim(*, at: datetime, response_id: str | None = None) -> list[tuple[str, str]]:
    """Take over dead runs: the lease token counts up, so that a predecessor which is not quite dead writes no more."""
    # One that was given back holds no lease; it waits for nobody where fewer attempts are allowed by now.
    free = Q(background=True) & (Q(lease_until__lt=at) | Q(lease_until=None))
    with scope.every_team():
        dead = (
            Response.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(Q(background=False, lease_until__lt=at) | (Q(attempt__gte=settings.BACKGROUND_ATTEMPTS) & free))
            .filter(status__in=RUNNING)
            .order_by("lease_until")
        )
        if response_id is not None:
            dead = dead.filter(pk=response_id)
        claimed = [(response.pk, response.team_id) for response in dead[:_AT_ONCE]]
        Response.objects.filter(pk__in=[response_id for response_id, _ in claimed]).update(
            lease_token=F("lease_token") + 1, lease_owner=PROCESS, lease_until=lease_until()
        )
        return claimed


def drop_old_marks() -> None:
    """Delete the marks of processes that have long gone."""
    CommitMark.objects.filter(written_at__lt=now() - timedelta(days=1)).delete()


_DROP = """
DELETE FROM responses_eventbatch WHERE id IN (
    SELECT batch.id
    FROM responses_eventbatch AS batch
    JOIN responses_response AS response ON response.id = batch.response_id
    JOIN tenants_team AS team ON team.id = batch.team_id
    WHERE response.ended_at + make_interval(hours => team.log_retention_hours) < %s
    ORDER BY batch.created_at
    LIMIT 10000
)
"""


def drop_expired_logs() -> int:
    """Delete event logs past their team's retention, a bounded number at once; returns how many batches. Holds of
    responses that were never made go with them."""
    conversation_lock.delete_stale_locks()
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_DROP, [now()])
        return int(cursor.rowcount)
