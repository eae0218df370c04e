"""The sweeper: ends runs whose process died, and drops event logs past their retention.

Both tasks work in small bounded transactions. They can safely run repeatedly and concurrently.
"""

import logging
import time
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.db.models import Min, Q

from core.clock import now
from core.errors import Failure, ServerError
from core.ids import Prefix, lowest_id
from core.telemetry import metrics
from core.work.leases import expired_before, has_expired, is_free, lock, take
from engine.events.response_body import failed
from responses.lifecycle import resume
from responses.models import RUNNING, CommitMark, Response
from responses.runs import conversation_lock
from tenants import scope
from tenants.models import Team

logger = logging.getLogger(__name__)
_BATCH_SIZE = 100
_PROCESS_DIED = Failure.of(
    ServerError(
        "The server that was running this response stopped. The output contains the steps that were finished before."
    )
)

_NO_ATTEMPTS_LEFT = Failure.of(
    ServerError(
        "Every server that tried to run this response stopped, and there are no attempts left. "
        "The output contains the steps that were finished before."
    )
)

_ENDS_ITS_PROCESS = Failure.of(
    ServerError(
        "The response crashed the process that ran it, and then another process that ran nothing else. "
        "It is not retried. The output contains the steps that were finished before."
    )
)


class _DeadRun(NamedTuple):
    """A run to end. `was_running`: a process had the lease of the run. Otherwise the run was waiting for a worker."""

    response_id: str
    team_id: str
    was_running: bool


def sweep_dead_runs() -> int:
    """End the runs whose lease has expired and that no worker will resume. Return their number."""
    # A foreground run cannot be resumed: its process had the only connection to the client, and may have sent events
    # that it did not store. So the run fails and keeps the stored output. Background runs, and runs that a stopping
    # process has handed over, are resumed by the next worker. They end here only when their attempts are used up.
    return sum(_end(dead) for dead in _claim())


def end_dead_run(*, response_id: str) -> None:
    """End one run whose lease has expired, for a caller that is waiting for the conversation lock of the run."""
    for dead in _claim(response_id=response_id):
        _end(dead)


def end_culprit(*, response_id: str, team_id: str) -> None:
    """End a run that crashed its process while it was the only run there. The caller has taken the run's lease."""
    logger.error("a run has ended two processes and is not tried again", extra={"response": response_id})
    _end(_DeadRun(response_id, team_id, was_running=True), _ENDS_ITS_PROCESS)


def _end(dead: _DeadRun, failure: Failure | None = None) -> bool:
    """End one dead run. Return False if the run has already ended, or cannot be ended now."""
    try:
        with scope.team(dead.team_id):
            resumed = resume.load(response_id=dead.response_id, died=dead.was_running)
        failure = failure or (_NO_ATTEMPTS_LEFT if resumed.identity.in_worker else _PROCESS_DIED)
        error = resumed.end(failed(failure))
    except Exception:
        # One broken run must not stop the sweep. The run is swept again when the lease that was taken here has expired.
        logger.exception("a dead run could not be ended", extra={"response": dead.response_id})
        return False
    if error is None:
        metrics.DEAD_RUNS.inc()
        logger.warning("a dead run was ended", extra={"response": dead.response_id})
    return error is None


def _claim(*, response_id: str | None = None) -> list[_DeadRun]:
    """Claim dead runs. The new lease token keeps a previous process from writing."""
    # A released run, which has no lease, is dead too if its attempts are used up. This happens if the setting was
    # lowered.
    in_worker = Q(background=True) | Q(handed_over_at__isnull=False)
    with scope.every_team():
        dead = lock(
            Response.objects.filter(
                (Q(background=False, handed_over_at=None) & has_expired())
                | (Q(attempt__gte=settings.BACKGROUND_ATTEMPTS) & in_worker & is_free()),
                status__in=RUNNING,
                # A run that waits for a decision has no process, and ends when the decision expires.
                waits_until=None,
            )
        ).order_by("lease_until")
        if response_id is not None:
            dead = dead.filter(pk=response_id)
        claimed = [_DeadRun(row.pk, row.team_id, row.lease_until is not None) for row in dead[:_BATCH_SIZE]]
        take(Response.objects.filter(pk__in=[run.response_id for run in claimed]))
        return claimed


# A reservation is deleted in the transaction that ends its run or its call. Other reservations belonged to a process
# that died or lost its run, and such a process may still record a call in progress. Rows with `details` are open calls,
# which `open_calls` records. For other calls, a process may be slow to renew the lease, so the lease must have been
# expired for longer than any call takes.
_DROP_RESERVATIONS = """
DELETE FROM tenants_reservation AS reservation
WHERE created_at < %(at)s - interval '1 minute' AND details IS NULL AND CASE
    WHEN response_id = '' THEN lease_until < %(at)s - make_interval(secs => %(longest)s)
    ELSE NOT EXISTS (
        SELECT FROM responses_response AS response WHERE response.id = reservation.response_id
        AND (response.ended_at IS NULL OR response.ended_at > %(at)s - interval '1 minute')
    ) END
RETURNING team_id
"""


def drop_lost_reservations() -> set[str]:
    """Delete the reservations of runs that have ended and of calls whose process died. Return their teams."""
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(_DROP_RESERVATIONS, {"at": expired_before(), "longest": settings.UPSTREAM_ANSWER_TIMEOUT})
        return {team_id for (team_id,) in cursor.fetchall()}


def drop_old_marks() -> None:
    """Delete the commit marks of processes that ended more than a day ago."""
    CommitMark.objects.filter(written_at__lt=now() - timedelta(days=1)).delete()


# Starts from the batches, oldest first: responses are kept much longer than their logs, so most responses have no log.
# The lateral join looks up each response by its id, so that responses without a log are not read.
_DROP = """
WITH page AS MATERIALIZED (
    SELECT response_id FROM responses_eventbatch
    WHERE response_id > %(after)s AND response_id < %(newest)s
    ORDER BY response_id
    LIMIT 10000
),
expired AS MATERIALIZED (
    SELECT response.id
    FROM (SELECT DISTINCT response_id FROM page) AS old
    CROSS JOIN LATERAL (
        SELECT id, team_id, ended_at FROM responses_response WHERE id = old.response_id OFFSET 0
    ) AS response
    JOIN tenants_team AS team ON team.id = response.team_id
    WHERE response.ended_at + make_interval(hours => team.log_retention_hours) < %(at)s
),
dropped AS (
    DELETE FROM responses_eventbatch WHERE response_id = ANY (ARRAY(SELECT id FROM expired)) RETURNING 1
)
SELECT (SELECT count(*) FROM dropped), coalesce((SELECT max(response_id) FROM page), '')
"""
# The task runs every 30 seconds. It deletes 120,000 batches per second (measured with 450,000 batches in the table, 3
# per response, and two busy cores). 500 responses per second write 1,000 batches per second, or 10,000 if half of the
# responses are followed for 40 deltas each.
_DROP_SECONDS = 20.0
# Key of the cache entry with the last response that a call processed before its time was over.
_DROPPED_TO = "logs-dropped-to"
DROP_LOCK = 0x64726F706C6F67  # "droplog"
_MOST_HOURS = 10 * 365 * 24


def drop_expired_logs(*, seconds: float = _DROP_SECONDS) -> int:
    """Delete event logs past their team's retention. Return the number of batches deleted.

    Processes the logs in steps of 10,000 batches. When the time is over, the next call continues after the last step,
    so that logs with a long retention do not delay the deletion of later logs. Also deletes stale locks of responses
    that were never stored.
    """
    conversation_lock.delete_stale_locks()
    stops_at = time.monotonic() + seconds
    dropped, after = 0, cache.get(_DROPPED_TO, "")
    while (step := _drop_next(after=after, at=now())) is not None:
        dropped, after = dropped + step.dropped, step.last
        metrics.ROWS_DROPPED.labels("eventbatch").inc(step.dropped)
        cache.set(_DROPPED_TO, after, timeout=None)
        if not after or time.monotonic() >= stops_at:
            break
    return dropped


class _DropStep(NamedTuple):
    """The number of batches that a step deleted, and the last response that it read; "" at the end of the logs."""

    dropped: int
    last: str


def _drop_next(*, after: str, at: datetime) -> _DropStep | None:
    """Delete the expired batches among the next 10,000. Return None if another process is deleting batches."""
    with scope.every_team(), connection.cursor() as cursor:
        # Two transactions that delete the same rows in different orders would deadlock.
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [DROP_LOCK])
        (is_ours,) = cursor.fetchone()
        if not is_ours:
            return None
        hours = Team.objects.aggregate(shortest=Min("log_retention_hours"))["shortest"] or 0
        # The retention is limited, because a team may have set one that begins before the first date of the calendar.
        newest = lowest_id(Prefix.RESPONSE, at=at - timedelta(hours=min(hours, _MOST_HOURS)))
        cursor.execute(_DROP, {"after": after, "newest": newest, "at": at})
        return _DropStep(*cursor.fetchone())
