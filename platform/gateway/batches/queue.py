"""The queue of batches and lines in the database: claim, renew and release.

Each claim increments the lease token, which serves as a fencing token: every write names it, so a worker that lost its
lease without noticing cannot change anything. If a worker crashes, only its running lines are repeated.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import orjson
from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import Coalesce, RowNumber

from core.clock import shared_now
from core.errors import ServerError
from core.origin import Caller
from core.process_name import process_name
from core.work.leases import Claim, expired_before, has_expired, is_free, lease_until, lock, take
from engine.turn import Usage
from responses.lifecycle.blocked import Pause
from responses.models.batches import OPEN_BATCHES, OPEN_LINES, Batch, BatchLine, BatchStatus, LineState
from tenants import scope
from tenants.models import Team

MAX_ATTEMPTS = 5
# A line whose workers died this often may have caused it, so each worker executes only one such line at a time.
# Otherwise lines that only ran at the same time would fail too.
_SUSPECT_ATTEMPTS = 3
_REASONS = {BatchStatus.EXPIRED: "batch_expired", BatchStatus.CANCELLED: "batch_cancelled"}
_FILE_PAUSE = timedelta(seconds=5)
_LONGEST_FILE_PAUSE = timedelta(minutes=10)
UNCOUNTED_AFTER = 150
"""Number of failures (about a day of them) after which a batch no longer counts towards its team's open batches."""
# Bounds the rows that one query locks. Further batches get their turn when earlier batches end.
_MAX_BATCHES = 500


@dataclass(eq=False, slots=True, kw_only=True)
class Job(Claim):
    """A claimed batch, whose input file is to be read (`is_new`) or whose output files are to be written."""

    is_new: bool


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimedLine(Claim):
    """A line claimed by this process. `attempt` starts at 1."""

    batch_id: str
    key_id: str
    endpoint: str

    @property
    def is_suspect(self) -> bool:
        """True if this line may have ended the workers that executed it."""
        return self.has_expired and self.attempt > _SUSPECT_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """HTTP status and body of an executed line. `retry_after` is the pause in seconds that the upstream asks for.

    `pause`: a limit has refused the line before it ran. `refused`: sender of a line that failed.
    """

    status_code: int
    body: str
    request_id: str
    usage: Usage = field(default_factory=Usage)
    retry_after: float | None = None
    pause: Pause | None = None
    refused: Caller | None = None

    @property
    def is_success(self) -> bool:
        """True if the line belongs in the output file, False if in the error file."""
        return self.status_code < 400

    @property
    def is_retryable(self) -> bool:
        """True for rate limits and server errors, which may not occur again."""
        return self.status_code == 429 or self.status_code >= 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """A batch with lines to execute, and the number of its lines that are running."""

    batch_id: str
    team_id: str
    running: int
    weight: int = 1


def is_idle() -> bool:
    """Return whether there are no unfinished batches."""
    # If there are none, this is the only query of a poll.
    with scope.every_team():
        return not Batch.objects.filter(status__in=OPEN_BATCHES).exists()


# -- batches -----------------------------------------------------------------------------------------------------------


def claim_batches(*, limit: int, own: Collection[Job]) -> list[Job]:
    """Claim new batches, and batches whose lines have all ended.

    `own` are the jobs that this process is working on. They are skipped even if their leases have expired.
    """
    at = shared_now()
    with scope.every_team():
        is_new = Q(status=BatchStatus.VALIDATING, ending=BatchStatus.COMPLETED)
        has_ended = ~Q(is_new) & ~Exists(BatchLine.objects.filter(batch=OuterRef("pk"), state__in=OPEN_LINES))
        is_due = Q(files_retry_at__isnull=True) | Q(files_retry_at__lte=at)
        candidates = Batch.objects.filter(is_free(), is_due, is_new | has_ended, status__in=OPEN_BATCHES)
        due = _lock_first(candidates.exclude(pk__in=[job.id for job in own]), limit=limit)
        claimed = Batch.objects.filter(pk__in=[batch.pk for batch in due])
        take(claimed)
        claimed.filter(status=BatchStatus.IN_PROGRESS).update(status=BatchStatus.FINALIZING, finalizing_at=at)
    return [
        Job(
            id=batch.pk,
            team_id=batch.team_id,
            token=batch.lease_token + 1,
            labels={"batch": batch.pk},
            is_new=batch.status == BatchStatus.VALIDATING and batch.ending == BatchStatus.COMPLETED,
        )
        for batch in due
    ]


def claimed_batch(job: Job) -> "QuerySet[Batch]":
    """Return a query of the job's batch, empty if the lease was lost or the batch has ended."""
    return job.row(Batch.objects.filter(status__in=OPEN_BATCHES))


def release(job: Job) -> None:
    """Release a batch, so that another worker can claim it immediately."""
    with scope.team(job.team_id):
        # With a new token, so that a renewal in progress does not lease it again.
        claimed_batch(job).update(lease_until=None, lease_token=F("lease_token") + 1)


def postpone(job: Job, *, reason: str) -> None:
    """Release a batch whose files failed for this reason. The pause doubles with each failure in a row.

    During the pause workers are free for other batches: batches that always fail must not occupy them.
    """
    with scope.team(job.team_id):
        batch = claimed_batch(job).only("file_failures").first()
        if batch is not None:
            pause = min(_FILE_PAUSE * 2 ** min(batch.file_failures, 10), _LONGEST_FILE_PAUSE)
            claimed_batch(job).update(
                lease_until=None,
                lease_token=F("lease_token") + 1,
                file_failures=F("file_failures") + 1,
                file_error=reason,
                files_retry_at=shared_now() + pause,
            )


def expire() -> None:
    """Mark overdue batches as expiring, and end the waiting lines of expiring and cancelled batches."""
    at = shared_now()
    with scope.every_team():
        late = Batch.objects.filter(status__in=[BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS], expires_at__lte=at)
        late.filter(ending=BatchStatus.COMPLETED).update(
            ending=BatchStatus.EXPIRED, lease_until=None, files_retry_at=None
        )
        left = Q(state=LineState.QUEUED) | (Q(state=LineState.RUNNING) & has_expired())
        lines = BatchLine.objects.filter(left)
        # The lock on the batch keeps workers from claiming its lines at the same time.
        open_batches = Batch.objects.filter(Exists(lines.filter(batch=OuterRef("pk"))), status__in=OPEN_BATCHES)
        for batch in lock(open_batches.filter(ending__in=_REASONS)):
            reason = _REASONS[BatchStatus(batch.ending)]
            lines.filter(batch=batch).update(state=LineState.FAILED, error_code=reason, body="")


def _lock_first(candidates: "QuerySet[Batch]", *, limit: int) -> list[Batch]:
    """Lock and return the first candidates that no other worker has locked, oldest first, teams taking turns."""
    # Batches that are being read or written count as turns of their team. Without this, thousands of batches of one
    # team would delay the batches of all other teams.
    leased = Batch.objects.filter(team=OuterRef("team"), status__in=OPEN_BATCHES, lease_until__gte=expired_before())
    counted = leased.order_by().values("team").annotate(n=Count("id")).values("n")
    turn = Window(RowNumber(), partition_by=[F("team")], order_by=[F("created_at"), F("pk")])
    ranked = candidates.annotate(turn=turn + Coalesce(Subquery(counted), 0)).order_by("turn", "created_at")
    # PostgreSQL does not allow FOR UPDATE in a query with window functions, so the rows are selected first.
    chosen = list(ranked.values_list("pk", flat=True)[:limit])
    return list(lock(candidates.filter(pk__in=chosen)).order_by("created_at"))


# -- lines -------------------------------------------------------------------------------------------------------------


def claim_lines(*, slots: int, own: Collection[ClaimedLine]) -> list[ClaimedLine]:
    """Claim due lines: each slot goes to the team with the fewest running lines in relation to its weight.

    A batch has at most `BATCH_CONCURRENCY` running lines in all workers together. `own` are the lines that this process
    is executing.
    """
    at, expired = shared_now(), expired_before()
    abandoned = Q(state=LineState.RUNNING) & has_expired() & ~Q(pk__in=[line.id for line in own])
    with scope.every_team():
        lines = BatchLine.objects.filter(batch=OuterRef("pk"))
        has_lines = Exists(lines.filter(_due(at))) | Exists(lines.filter(abandoned))
        active = Batch.objects.filter(has_lines, status=BatchStatus.IN_PROGRESS, ending=BatchStatus.COMPLETED)
        # The locks on the batches keep two workers from exceeding BATCH_CONCURRENCY together.
        batches = {batch.pk: batch for batch in _lock_first(active, limit=_MAX_BATCHES)}
        alive = BatchLine.objects.filter(batch__in=batches, state=LineState.RUNNING, lease_until__gte=expired)
        running = Counter(dict(alive.values_list("batch").annotate(n=Count("id"))))
        teams = {batch.team_id for batch in batches.values()}
        weights = dict(Team.objects.filter(pk__in=teams).values_list("pk", "weight"))
        loads = [
            BatchLoad(batch_id=pk, team_id=batch.team_id, running=running[pk], weight=weights[batch.team_id])
            for pk, batch in batches.items()
        ]
        counts = allot(loads, slots=slots, batch_limit=settings.BATCH_CONCURRENCY)
        claimed: list[ClaimedLine] = []
        for pk, count in counts.items():
            has_suspect = any(line.is_suspect for line in [*own, *claimed])
            claimed += _claim_lines_of(batches[pk], abandoned, limit=count, at=at, suspects=0 if has_suspect else 1)
        return claimed


def allot(loads: Sequence[BatchLoad], *, slots: int, batch_limit: int) -> Mapping[str, int]:
    """Return the number of lines to claim of each batch. `loads` are ordered by age, which decides ties."""
    counts: Counter[str] = Counter()
    running_of_team: Counter[str] = Counter()
    for batch in loads:
        running_of_team[batch.team_id] += batch.running
    for _ in range(slots):
        below_limit = [batch for batch in loads if batch.running + counts[batch.batch_id] < batch_limit]
        if not below_limit:
            break
        chosen = min(below_limit, key=lambda batch: (running_of_team[batch.team_id] + 1) / batch.weight)
        counts[chosen.batch_id] += 1
        running_of_team[chosen.team_id] += 1
    return counts


def _due(at: datetime) -> Q:
    return Q(state=LineState.QUEUED) & (Q(not_before__isnull=True) | Q(not_before__lte=at))


def _claim_lines_of(batch: Batch, abandoned: Q, *, limit: int, at: datetime, suspects: int) -> list[ClaimedLine]:
    lines = BatchLine.objects.filter(batch=batch).select_for_update(skip_locked=True).order_by("position")
    lines = lines.only("id", "attempt", "lease_token")
    # A line that kills its worker each time must not be executed again.
    exhausted = [line.pk for line in lines.filter(abandoned, attempt__gte=MAX_ATTEMPTS)]
    failure = ServerError("The workers that executed this request stopped unexpectedly.")
    BatchLine.objects.filter(pk__in=exhausted).update(
        state=LineState.FAILED, status_code=failure.status, answer=orjson.dumps(failure.envelope()).decode(), body=""
    )
    orphans = list(lines.filter(abandoned, attempt__lt=_SUSPECT_ATTEMPTS)[:limit])
    orphans += lines.filter(abandoned, attempt__gte=_SUSPECT_ATTEMPTS)[: min(suspects, limit - len(orphans))]
    queued = list(lines.filter(_due(at))[: limit - len(orphans)])
    take(
        BatchLine.objects.filter(pk__in=[line.pk for line in (*orphans, *queued)]),
        state=LineState.RUNNING,
        attempt=F("attempt") + 1,
    )
    return [
        ClaimedLine(
            id=line.pk,
            team_id=batch.team_id,
            token=line.lease_token + 1,
            attempt=line.attempt + 1,
            has_expired=is_orphan,
            labels={"line": line.pk, "batch": batch.pk},
            batch_id=batch.pk,
            key_id=batch.api_key_id,
            endpoint=batch.endpoint,
        )
        for claimed, is_orphan in ((orphans, True), (queued, False))
        for line in claimed
    ]


def body_of(claimed: ClaimedLine) -> bytes | None:
    """Return the request body of a line, or None if the lease was lost."""
    # Not part of the claim: bodies can be megabytes, and a claim reads many lines in one transaction.
    with scope.team(claimed.team_id):
        body = _claimed_line(claimed).values_list("body", flat=True).first()
    return None if body is None else body.encode()


def store_result(claimed: ClaimedLine, result: LineResult) -> None:
    """Store the result of a line and drop its request body."""
    usage = result.usage
    with scope.team(claimed.team_id):
        _claimed_line(claimed).update(
            state=LineState.COMPLETED if result.is_success else LineState.FAILED,
            body="",
            answer=result.body,
            status_code=result.status_code,
            request_id=result.request_id,
            lease_until=None,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )


def retry_later(claimed: ClaimedLine, *, seconds: float) -> None:
    """Put a line back into the queue for another attempt, by any worker, after a pause."""
    with scope.team(claimed.team_id):
        _claimed_line(claimed).update(
            state=LineState.QUEUED, lease_until=None, not_before=shared_now() + timedelta(seconds=seconds)
        )


def wait(claimed: ClaimedLine, pause: Pause) -> None:
    """Put a line back into the queue, to be claimed after a pause, without counting the attempt."""
    with scope.team(claimed.team_id):
        _claimed_line(claimed).update(
            state=LineState.QUEUED,
            lease_until=None,
            attempt=F("attempt") - 1,
            not_before=shared_now() + timedelta(seconds=pause.seconds),
            needs_budget=pause.needs,
        )


def requeue(claimed: ClaimedLine) -> None:
    """Put a line back into the queue immediately, without counting the attempt."""
    with scope.team(claimed.team_id):
        _claimed_line(claimed).update(state=LineState.QUEUED, lease_until=None, attempt=F("attempt") - 1)


def end_stopped(claimed: ClaimedLine) -> None:
    """End a line whose execution was stopped because its batch was cancelled or has expired."""
    with scope.team(claimed.team_id):
        batch = Batch.objects.filter(pk=claimed.batch_id).only("ending").first()
        reason = _REASONS.get(BatchStatus(batch.ending)) if batch else None
        if reason is not None:
            _claimed_line(claimed).update(state=LineState.FAILED, error_code=reason, body="", lease_until=None)


def _claimed_line(claimed: ClaimedLine) -> "QuerySet[BatchLine]":
    return claimed.row(BatchLine.objects.filter(state=LineState.RUNNING))


# -- leases ------------------------------------------------------------------------------------------------------------


def renew(claims: Collection[Job | ClaimedLine]) -> datetime:
    """Renew the leases of lines and batches that this process is working on, and return their expiry."""
    until = lease_until()
    lines = [claim.id for claim in claims if isinstance(claim, ClaimedLine)]
    with scope.every_team():
        own = BatchLine.objects.filter(pk__in=lines, state=LineState.RUNNING)
        own.filter(lease_owner=process_name()).update(lease_until=until)
        for job in claims:
            if isinstance(job, Job):
                claimed_batch(job).update(lease_until=until)
    return until


def lines_to_stop(lines: Collection[ClaimedLine]) -> list[ClaimedLine]:
    """Return the lines whose lease was lost, or whose batch was cancelled or has expired."""
    with scope.every_team():
        running = BatchLine.objects.filter(pk__in=[line.id for line in lines], state=LineState.RUNNING)
        valid = dict(running.filter(batch__ending=BatchStatus.COMPLETED).values_list("pk", "lease_token"))
    return [line for line in lines if valid.get(line.id) != line.token]
