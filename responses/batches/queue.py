"""Who does what of which batch: workers take batches to begin or to end, and lines to answer, from the database.

Taking counts up the lease token, and whoever commits something names it: a worker that is not quite dead changes
nothing any more once somebody else has taken over. A crash costs the lines that were under way, and no others.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import orjson
from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import Coalesce, RowNumber

from kernel.clock import now
from kernel.errors import ServerError
from responses.engine.turn import Usage
from responses.models.batches import OPEN_BATCHES, OPEN_LINES, Batch, BatchLine, BatchStatus, LineState
from responses.runs.runner import PROCESS, lease_until
from tenants import scope

MOST_ATTEMPTS = 5
_REASONS = {BatchStatus.EXPIRED: "batch_expired", BatchStatus.CANCELLED: "batch_cancelled"}
_MOST_BATCHES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A batch whose input is to be read (`is_new`) or whose output is to be written."""

    batch_id: str
    team_id: str
    lease_token: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedLine:
    """A line that this process is to answer, for the `attempt`th time."""

    line_id: str
    batch_id: str
    team_id: str
    key_id: str
    endpoint: str
    attempt: int
    lease_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """What became of a line: the status and the body that an HTTP client would have got. `retry_after`: seconds that
    the upstream wants to be left alone."""

    status_code: int
    body: str
    request_id: str
    usage: Usage = field(default_factory=Usage)
    retry_after: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether it belongs into the output, not among the errors."""
        return self.status_code < 400

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may do better."""
        return self.status_code == 429 or self.status_code >= 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """A batch that has lines to answer, and how many of them are under way."""

    batch_id: str
    team_id: str
    running: int


def is_idle() -> bool:
    """Whether there is no batch that goes on."""
    with scope.every_team():
        return not Batch.objects.filter(status__in=OPEN_BATCHES).exists()


# -- batches -----------------------------------------------------------------------------------------------------------


def take_batches(*, most: int, mine: Collection[Job]) -> list[Job]:
    """Take batches that begin, and those whose lines are all over; each for as long as the lease is renewed. `mine` are
    those that this process is at, whoever may hold their lease."""
    at = now()
    with scope.every_team():
        is_new = Q(status=BatchStatus.VALIDATING, ending=BatchStatus.COMPLETED)
        is_over = ~Q(is_new) & ~Exists(BatchLine.objects.filter(batch=OuterRef("pk"), state__in=OPEN_LINES))
        free = Q(lease_until__isnull=True) | Q(lease_until__lt=at)
        due_ones = Batch.objects.filter(free, is_new | is_over, status__in=OPEN_BATCHES)
        due = _first(due_ones.exclude(pk__in=[job.batch_id for job in mine]), most=most, at=at)
        taken = Batch.objects.filter(pk__in=[batch.pk for batch in due])
        taken.update(lease_token=F("lease_token") + 1, lease_owner=PROCESS, lease_until=lease_until())
        taken.filter(status=BatchStatus.IN_PROGRESS).update(status=BatchStatus.FINALIZING, finalizing_at=at)
    return [
        Job(
            batch_id=batch.pk,
            team_id=batch.team_id,
            lease_token=batch.lease_token + 1,
            is_new=batch.status == BatchStatus.VALIDATING and batch.ending == BatchStatus.COMPLETED,
        )
        for batch in due
    ]


def held(job: Job) -> "QuerySet[Batch]":
    """The batch of a job, if it is still this worker's to change."""
    return Batch.objects.filter(pk=job.batch_id, lease_token=job.lease_token, status__in=OPEN_BATCHES)


def release(job: Job) -> None:
    """Let others take the batch at once."""
    with scope.team(job.team_id):
        held(job).update(lease_until=None)


def end_early() -> None:
    """Let batches expire, and end the lines that nobody shall begin any more."""
    at = now()
    with scope.every_team():
        late = Batch.objects.filter(status__in=[BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS], expires_at__lte=at)
        late.filter(ending=BatchStatus.COMPLETED).update(ending=BatchStatus.EXPIRED, lease_until=None)
        left = Q(state=LineState.QUEUED) | Q(state=LineState.RUNNING, lease_until__lt=at)
        lines = BatchLine.objects.filter(left)
        ending = _locked().filter(Exists(lines.filter(batch=OuterRef("pk"))), status__in=OPEN_BATCHES)
        for batch in ending.filter(ending__in=_REASONS):
            reason = _REASONS[BatchStatus(batch.ending)]
            lines.filter(batch=batch).update(state=LineState.FAILED, error_code=reason, body="")


def _locked() -> "QuerySet[Batch]":
    """Batches that nobody else is just taking something of."""
    return Batch.objects.select_for_update(skip_locked=True, no_key=True)


def _first(found: "QuerySet[Batch]", *, most: int, at: datetime) -> list[Batch]:
    """The first of these that nobody else is just taking something of, in the order in which they came. Teams take
    turns, and what is being read or written for a team counts as turns: thousands of its batches delay nobody else's.
    """
    held = Batch.objects.filter(team=OuterRef("team"), status__in=OPEN_BATCHES, lease_until__gte=at)
    counted = held.order_by().values("team").annotate(n=Count("id")).values("n")
    turn = Window(RowNumber(), partition_by=[F("team")], order_by=[F("created_at"), F("pk")])
    ranked = found.annotate(turn=turn + Coalesce(Subquery(counted), 0)).order_by("turn", "created_at")
    # PostgreSQL locks no rows that it numbers, so they are found before they are locked.
    chosen = list(ranked.values_list("pk", flat=True)[:most])
    return list(found.filter(pk__in=chosen).select_for_update(skip_locked=True, no_key=True).order_by("created_at"))


# -- lines -------------------------------------------------------------------------------------------------------------


def take_lines(*, room: int, mine: Collection[ClaimedLine]) -> list[ClaimedLine]:
    """Take lines that are due, fairly: the next one goes to the team that has fewest under way, and no batch has more
    under way than `BATCH_CONCURRENCY`, in however many workers. `mine` are those that this process is at."""
    at = now()
    left_behind = Q(state=LineState.RUNNING, lease_until__lt=at) & ~Q(pk__in=[line.line_id for line in mine])
    with scope.every_team():
        lines = BatchLine.objects.filter(batch=OuterRef("pk"))
        has_lines = Exists(lines.filter(_due(at))) | Exists(lines.filter(left_behind))
        going_on = Batch.objects.filter(has_lines, status=BatchStatus.IN_PROGRESS, ending=BatchStatus.COMPLETED)
        batches = {batch.pk: batch for batch in _first(going_on, most=_MOST_BATCHES, at=at)}
        running = _running(batches, at)
        waiting = [BatchLoad(batch_id=pk, team_id=one.team_id, running=running[pk]) for pk, one in batches.items()]
        share = shares(waiting, room=room, most=settings.BATCH_CONCURRENCY)
        return [
            claimed for pk, count in share.items() for claimed in _take(batches[pk], left_behind, most=count, at=at)
        ]


def shares(waiting: Sequence[BatchLoad], *, room: int, most: int) -> Mapping[str, int]:
    """How many lines of each batch may be taken. `waiting` are in the order in which they came."""
    share: Counter[str] = Counter()
    of_team: Counter[str] = Counter()
    for batch in waiting:
        of_team[batch.team_id] += batch.running
    for _ in range(room):
        open_ones = [batch for batch in waiting if batch.running + share[batch.batch_id] < most]
        if not open_ones:
            break
        chosen = min(open_ones, key=lambda batch: of_team[batch.team_id])
        share[chosen.batch_id] += 1
        of_team[chosen.team_id] += 1
    return share


def _due(at: datetime) -> Q:
    return Q(state=LineState.QUEUED) & (Q(not_before__isnull=True) | Q(not_before__lte=at))


def _running(batch_ids: Collection[str], at: datetime) -> Mapping[str, int]:
    alive = BatchLine.objects.filter(batch__in=batch_ids, state=LineState.RUNNING, lease_until__gte=at)
    return Counter(dict(alive.values_list("batch").annotate(n=Count("id"))))


def _take(batch: Batch, left_behind: Q, *, most: int, at: datetime) -> list[ClaimedLine]:
    lines = BatchLine.objects.filter(batch=batch).select_for_update(skip_locked=True).order_by("position")
    lines = lines.only("id", "attempt", "lease_token")
    orphans = list(lines.filter(left_behind)[:most])
    hopeless = [line.pk for line in orphans if line.attempt >= MOST_ATTEMPTS]
    _give_up(hopeless)
    found = [line for line in orphans if line.pk not in hopeless]
    found += lines.filter(_due(at))[: most - len(found)]
    BatchLine.objects.filter(pk__in=[line.pk for line in found]).update(
        state=LineState.RUNNING,
        attempt=F("attempt") + 1,
        lease_token=F("lease_token") + 1,
        lease_owner=PROCESS,
        lease_until=lease_until(),
    )
    return [
        ClaimedLine(
            line_id=line.pk,
            batch_id=batch.pk,
            team_id=batch.team_id,
            key_id=batch.api_key_id,
            endpoint=batch.endpoint,
            attempt=line.attempt + 1,
            lease_token=line.lease_token + 1,
        )
        for line in found
    ]


def _give_up(line_ids: Sequence[str]) -> None:
    """End lines whose workers have died again and again."""
    answer = orjson.dumps(ServerError("The workers that were executing this request stopped.").envelope()).decode()
    BatchLine.objects.filter(pk__in=line_ids).update(
        state=LineState.FAILED, status_code=ServerError.status, answer=answer, body=""
    )


def body_of(claimed: ClaimedLine) -> bytes | None:
    """What the line asks; None: it is not this worker's any more."""
    with scope.team(claimed.team_id):
        body = _held_line(claimed).values_list("body", flat=True).first()
    return None if body is None else body.encode()


def end_line(claimed: ClaimedLine, answered: LineResult) -> None:
    """Keep the answer; the request goes."""
    usage = answered.usage
    with scope.team(claimed.team_id):
        _held_line(claimed).update(
            state=LineState.COMPLETED if answered.is_success else LineState.FAILED,
            body="",
            answer=answered.body,
            status_code=answered.status_code,
            request_id=answered.request_id,
            lease_until=None,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )


def put_off(claimed: ClaimedLine, *, seconds: float) -> None:
    """Have the line tried again later, by whoever has room then."""
    with scope.team(claimed.team_id):
        _held_line(claimed).update(
            state=LineState.QUEUED, lease_until=None, not_before=now() + timedelta(seconds=seconds)
        )


def give_back(claimed: ClaimedLine) -> None:
    """Let another worker take the line at once, as if this one had never begun with it."""
    with scope.team(claimed.team_id):
        _held_line(claimed).update(state=LineState.QUEUED, lease_until=None, attempt=F("attempt") - 1)


def end_unanswered(claimed: ClaimedLine) -> None:
    """End a line that was stopped because its batch has been cancelled or has expired."""
    with scope.team(claimed.team_id):
        batch = Batch.objects.filter(pk=claimed.batch_id).only("ending").first()
        reason = _REASONS.get(BatchStatus(batch.ending)) if batch else None
        if reason is not None:
            _held_line(claimed).update(state=LineState.FAILED, error_code=reason, body="", lease_until=None)


def _held_line(claimed: ClaimedLine) -> "QuerySet[BatchLine]":
    return BatchLine.objects.filter(pk=claimed.line_id, lease_token=claimed.lease_token, state=LineState.RUNNING)


# -- leases ------------------------------------------------------------------------------------------------------------


def renew(*, lines: Collection[ClaimedLine], jobs: Collection[Job]) -> None:
    """Hold what this process is at for another lease."""
    with scope.every_team():
        mine = BatchLine.objects.filter(pk__in=[line.line_id for line in lines], state=LineState.RUNNING)
        mine.filter(lease_owner=PROCESS).update(lease_until=lease_until())
        for job in jobs:
            held(job).update(lease_until=lease_until())


def to_stop(lines: Collection[ClaimedLine]) -> list[ClaimedLine]:
    """Those of the lines that somebody else has taken over, or whose batch has been cancelled or has expired."""
    with scope.every_team():
        running = BatchLine.objects.filter(pk__in=[line.line_id for line in lines], state=LineState.RUNNING)
        wanted = dict(running.filter(batch__ending=BatchStatus.COMPLETED).values_list("pk", "lease_token"))
    return [line for line in lines if wanted.get(line.line_id) != line.lease_token]
