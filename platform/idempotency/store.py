"""Rows of requests with an idempotency key: claims, the answers of executed requests, and reads by their followers.

All functions run in database threads. A claim is a unique insert, so that of any number of processes that receive the
same request only one executes it. The executing process renews its lease; if it dies, the next repetition takes over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db.models import F, QuerySet

from core.clock import now, shared_now
from core.errors import IdempotencyKeyReused, IdempotentAnswerNotStored
from core.process_name import process_name
from core.work.leases import has_expired, lease_until
from idempotency.models import AnswerChunk, IdempotentRequest, State
from tenants import scope

RETENTION = timedelta(hours=24)
"""Time for which a key is remembered."""
# For followers on other processes, which read the answer until then.
_UNSTORED_SECONDS = 10.0
_SWEEP_LIMIT = 1_000
Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """A request with an idempotency key. `team_id` is the id of an admin key if the key has no team.

    `fingerprint` is the SHA-256 of the body; `is_stored` is false if the answer must not be stored.
    """

    team_id: str
    api_key_id: str
    method: str
    path: str
    key: str
    fingerprint: bytes
    request_id: str
    is_stored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row that this process executes. `request_id` is the id of the request that was executed last.

    `is_taken_over`: the process that executed it has died.
    """

    id: str
    team_id: str
    request_id: str
    token: int = 1
    created_at: datetime = field(default_factory=now)
    is_taken_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The answer of a row as far as it is stored, without the chunks that the reader has.

    `status` is None until the answer begins. `is_lost`: its process has died.
    """

    status: int | None = None
    headers: Headers = field(default_factory=list)
    chunks: Sequence[bytes] = ()
    last_number: int = -1
    is_complete: bool = False
    is_lost: bool = False


def claim(request: KeyedRequest) -> Claim | str:
    """Claim a request. Return the id of its row if another process, or an earlier request, has claimed it.

    Raises `IdempotencyKeyReused` if the key was used with another body, and `IdempotentAnswerNotStored` if the request
    was answered and its answer was not stored.
    """
    with scope.team(request.team_id):
        same = IdempotentRequest.objects.filter(
            team_id=request.team_id,
            api_key_id=request.api_key_id,
            method=request.method,
            path=request.path,
            key=request.key,
        )
        same.filter(expires_at__lte=now(), state=State.ANSWERED).delete()
        row = IdempotentRequest(
            team_id=request.team_id,
            api_key_id=request.api_key_id,
            method=request.method,
            path=request.path,
            key=request.key,
            fingerprint=request.fingerprint,
            request_id=request.request_id,
            is_stored=request.is_stored,
            lease_owner=process_name(),
            lease_until=lease_until(),
            expires_at=now() + RETENTION,
        )
        # Waits for a concurrent insert of the same key.
        IdempotentRequest.objects.bulk_create([row], ignore_conflicts=True)
        found = same.first()
        if found is None:
            # The row of another process was deleted meanwhile, so that no process executes the request.
            return claim(request)
        if found.pk == row.pk:
            return Claim(id=row.pk, team_id=request.team_id, request_id=request.request_id)
        if bytes(found.fingerprint) != request.fingerprint:
            raise IdempotencyKeyReused
        if found.state == State.ANSWERED:
            if not found.is_stored:
                raise IdempotentAnswerNotStored
            return str(found.pk)
        return _take_over(found) or str(found.pk)


def _take_over(found: IdempotentRequest) -> Claim | None:
    """Claim the row of a process that has died. Return None if it is alive, or another process is faster."""
    free = IdempotentRequest.objects.filter(has_expired(), pk=found.pk, lease_token=found.lease_token)
    changed = free.update(
        lease_token=F("lease_token") + 1,
        lease_owner=process_name(),
        lease_until=lease_until(),
        status=None,
        headers=[],
    )
    if not changed:
        return None
    AnswerChunk.objects.filter(request=found.pk).delete()
    return Claim(
        id=found.pk,
        team_id=found.team_id,
        request_id=found.request_id,
        token=found.lease_token + 1,
        created_at=found.created_at,
        is_taken_over=True,
    )


def execute_again(claimed: Claim, request_id: str) -> Claim:
    """Store that the request is executed from its beginning, as a request with this id."""
    with scope.team(claimed.team_id):
        _row(claimed).update(request_id=request_id)
    return replace(claimed, request_id=request_id)


def begin(claimed: Claim, *, status: int, headers: Headers) -> None:
    """Store the first line of an answer."""
    with scope.team(claimed.team_id):
        _row(claimed).update(status=status, headers=headers)


def append(claimed: Claim, number: int, data: bytes) -> None:
    """Store a part of an answer."""
    with scope.team(claimed.team_id):
        if _row(claimed).exists():
            AnswerChunk.objects.create(team_id=claimed.team_id, request_id=claimed.id, number=number, data=data)


def finish(
    claimed: Claim, *, status: int, headers: Headers, chunks: Iterable[tuple[int, bytes]], is_remembered: bool
) -> None:
    """Store the end of an answer. If it is not remembered, the next request with the key is executed again."""
    with scope.team(claimed.team_id):
        answered = {"state": State.ANSWERED, "status": status, "headers": headers}
        ended = {"answered_at": now(), "lease_until": None}
        expiry = {} if is_remembered else {"expires_at": now()}
        if _row(claimed).update(**answered, **ended, **expiry):
            AnswerChunk.objects.bulk_create(
                AnswerChunk(team_id=claimed.team_id, request_id=claimed.id, number=number, data=data)
                for number, data in chunks
            )


def give_up(claimed: Claim) -> None:
    """Release the lease of a request that this process no longer executes; the next repetition takes over."""
    with scope.team(claimed.team_id):
        _row(claimed).update(lease_until=shared_now() - timedelta(days=1))


def renew(claims: Sequence[Claim]) -> None:
    """Extend the leases of these claims."""
    with scope.every_team():
        IdempotentRequest.objects.filter(
            pk__in=[claimed.id for claimed in claims], lease_owner=process_name(), state=State.RUNNING
        ).update(lease_until=lease_until())


def read(team_id: str, row_id: str, *, after: int) -> Snapshot:
    """Return the answer of a row from the chunk after this number on."""
    with scope.team(team_id):
        row = IdempotentRequest.objects.filter(pk=row_id).first()
        if row is None:
            return Snapshot(is_lost=True)
        found = [*AnswerChunk.objects.filter(request=row_id, number__gt=after).order_by("number")]
        is_complete = row.state == State.ANSWERED
        is_lost = not is_complete and IdempotentRequest.objects.filter(has_expired(), pk=row_id).exists()
    return Snapshot(
        status=row.status,
        headers=[(name, value) for name, value in row.headers],
        chunks=[bytes(chunk.data) for chunk in found],
        last_number=found[-1].number if found else after,
        is_complete=is_complete,
        is_lost=is_lost,
    )


def _row(claimed: Claim) -> "QuerySet[IdempotentRequest]":
    return IdempotentRequest.objects.filter(pk=claimed.id, lease_token=claimed.token, state=State.RUNNING)


def delete_answer(team_id: str, request_id: str) -> None:
    """Delete the stored answer of a request. Repetitions are refused from then on. Runs in a scope of the team."""
    rows = IdempotentRequest.objects.filter(team_id=team_id, request_id=request_id)
    AnswerChunk.objects.filter(request__in=rows).delete()
    rows.update(is_stored=False)


def sweep() -> int:
    """Delete a bounded number of expired rows, and answers that must not be stored. Return the number of rows."""
    with scope.every_team():
        unstored = IdempotentRequest.objects.filter(
            is_stored=False, answered_at__lte=now() - timedelta(seconds=_UNSTORED_SECONDS)
        )
        emptied = [*unstored.values_list("pk", flat=True)[:_SWEEP_LIMIT]]
        AnswerChunk.objects.filter(request__in=emptied).delete()
        unstored.filter(pk__in=emptied).update(answered_at=None)
        # Not at once: followers on other processes may still read an answer that is not remembered.
        due = IdempotentRequest.objects.filter(expires_at__lte=now() - timedelta(seconds=_UNSTORED_SECONDS))
        expired = [*due.values_list("pk", flat=True)[:_SWEEP_LIMIT]]
        IdempotentRequest.objects.filter(pk__in=expired).delete()
    return len(emptied) + len(expired)
