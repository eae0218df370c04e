"""The sweeper: ends runs whose process died, and drops event logs past their retention.

Both work in small bounded transactions and are safe to run twice and concurrently.
"""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import Q

from kernel.clock import now
from kernel.errors import Failure
from kernel.leases import is_free, lock, take
from responses.engine.events.response_body import failed
from responses.lifecycle import resume
from responses.models import RUNNING, CommitMark, Response
from responses.runs import conversation_lock
from tenants import scope

logger = logging.getLogger(__name__)
_BATCH_SIZE = 100
_PROCESS_DIED = Failure(
    code="server_error",
    message="The server that was running this response stopped. The output contains what was finished before.",
)

_NO_ATTEMPTS_LEFT = Failure(
    code="server_error",
    message="Every server that tried to run this response stopped, and there are no attempts left. "
    "The output contains what was finished before.",
)


class _DeadRun(NamedTuple):
    """A run to end. `was_running`: a process had its lease; otherwise the run was waiting for a worker."""

    response_id: str
    team_id: str
    was_running: bool


def sweep_dead_runs() -> int:
    """End the runs whose lease has expired and that no worker will resume. Return their number."""
    # A foreground run cannot be resumed: its process had the only connection to the client, and may have sent events
    # that it could not store any more. It fails with what is stored. A background run is resumed by the next worker
    # and ends here only when its attempts are used up.
    return sum(_end(dead) for dead in _claim(at=now()))


def end_dead_run(*, response_id: str) -> None:
    """End one run whose lease has expired, for a caller that needs its conversation lock now."""
    for dead in _claim(at=now(), response_id=response_id):
        _end(dead)


def _end(dead: _DeadRun) -> bool:
    """End one dead run. Return False if it has ended in another way, or cannot be ended now."""
    try:
        with scope.team(dead.team_id):
            resumed = resume.load(response_id=dead.response_id, died=dead.was_running)
        failure = _NO_ATTEMPTS_LEFT if resumed.identity.background else _PROCESS_DIED
        error = resumed.end(failed(failure))
    except Exception:
        # One broken run must not stop the sweep. It is tried again when the lease that was taken here has expired.
        logger.exception("a dead run could not be ended", extra={"response": dead.response_id})
        return False
    if error is None:
        logger.warning("a dead run was ended", extra={"response": dead.response_id})
    return error is None


def _claim(*, at: datetime, response_id: str | None = None) -> list[_DeadRun]:
    """Claim dead runs. The new lease token keeps a previous process from writing."""
    # A released background run has no lease. It is dead as well if its attempts are used up: the setting may have been
    # lowered since.
    unclaimed = Q(background=True) & is_free(at)
    with scope.every_team():
        dead = lock(
            Response.objects.filter(
                Q(background=False, lease_until__lt=at) | (Q(attempt__gte=settings.BACKGROUND_ATTEMPTS) & unclaimed),
                status__in=RUNNING,
            )
        ).order_by("lease_until")
        if response_id is not None:
            dead = dead.filter(pk=response_id)
        claimed = [_DeadRun(one.pk, one.team_id, one.lease_until is not None) for one in dead[:_BATCH_SIZE]]
        take(Response.objects.filter(pk__in=[one.response_id for one in claimed]))
        return claimed


def drop_old_marks() -> None:
    """Delete the commit marks of processes that ended more than a day ago."""
    CommitMark.objects.filter(written_at__lt=now() - timedelta(days=1)).delete()


_DROP = """
DELETE FROM responses_eventbatch WHERE (response_id, first_sequence) IN (
    SELECT batch.response_id, batch.first_sequence
    FROM responses_eventbatch AS batch
    JOIN responses_response AS response ON response.id = batch.response_id
    JOIN tenants_team AS team ON team.id = batch.team_id
    WHERE response.ended_at + make_interval(hours => team.log_retention_hours) < %s
    ORDER BY batch.response_id
    LIMIT 10000
)
"""


def drop_expired_logs() -> int:
    """Delete event logs past their team's retention, a bounded number per call. Return the number of batches deleted.

    Also deletes stale locks of responses that were never stored.
    """
    conversation_lock.delete_stale_locks()
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_DROP, [now()])
        return int(cursor.rowcount)
