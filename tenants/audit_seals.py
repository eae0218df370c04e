"""Seals the audit log: a chain of digests over its lines, so that nobody changes or removes one unnoticed.

The application's role may only add lines. Who owns the tables could still change them; then the digest of their seal is
another one, and so is every seal after it. Lines are sealed a minute after they were written, in the order of their
ids, by a periodic task: a chain that is written together with the lines would have to queue up every writer.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

import orjson
from django.db import connection

from kernel.clock import now
from tenants import scope
from tenants.models import AuditEvent, AuditSeal

# Longer than any transaction that writes a line: ids are given out before their rows can be seen.
SETTLED = timedelta(seconds=60)
MOST_LINES = 5000
_LOCK = 7_265_737_002


@dataclass(frozen=True, slots=True, kw_only=True)
class SealMismatch:
    """A seal that does not hold, and why."""

    seal: AuditSeal
    why: str


def seal_pending_lines(*, at: datetime | None = None) -> int:
    """Seal what has settled by then; returns the number of lines. One process at a time, others do nothing."""
    sealed = 0
    while lines := _seal_next((at or now()) - SETTLED):
        sealed += lines
    return sealed


def _seal_next(before: datetime) -> int:
    with scope.every_team():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
            (is_ours,) = cursor.fetchone()
        if not is_ours:
            return 0
        last = AuditSeal.objects.order_by("-pk").first()
        rows = AuditEvent.objects.filter(pk__gt=last.last_id if last else 0).order_by("pk")[:MOST_LINES]
        lines = list(takewhile(lambda line: line.occurred_at < before, rows))
        if not lines:
            return 0
        AuditSeal.objects.create(
            first_id=lines[0].pk,
            last_id=lines[-1].pk,
            lines=len(lines),
            digest=digest(last.digest if last else "", lines),
        )
        return len(lines)


def digest(previous: str, lines: Iterable[AuditEvent]) -> str:
    """SHA-256, in hex, over the digest of the seal before and the lines."""
    made = hashlib.sha256(previous.encode())
    for line in lines:
        made.update(_canonical(line))
    return made.hexdigest()


def verify() -> Iterator[SealMismatch]:
    """The seals that do not hold, oldest first, over the whole log; reads it in pieces."""
    previous = ""
    with scope.every_team():
        for seal in AuditSeal.objects.order_by("pk").iterator(chunk_size=100):
            why = check(seal, previous)
            if why:
                yield SealMismatch(seal=seal, why=why)
            previous = seal.digest


def check(seal: AuditSeal, previous: str) -> str:
    """What is wrong with a seal; empty: nothing. To be called where all teams are visible."""
    lines = list(AuditEvent.objects.filter(pk__range=(seal.first_id, seal.last_id)).order_by("pk")[: seal.lines + 1])
    if len(lines) != seal.lines:
        return f"it was put on {seal.lines:,} lines, and there are {'more' if len(lines) > seal.lines else len(lines)}"
    return "" if digest(previous, lines) == seal.digest else "a line, or a seal before it, is not what it was"


def verify_event(event: AuditEvent) -> tuple[AuditSeal | None, str]:
    """The seal of a line, and what is wrong with it; no seal yet: None."""
    with scope.every_team():
        seal = AuditSeal.objects.filter(last_id__gte=event.pk).order_by("pk").first()
        if seal is None:
            return None, ""
        before = AuditSeal.objects.filter(pk__lt=seal.pk).order_by("-pk").first()
        return seal, check(seal, before.digest if before else "")


def _canonical(line: AuditEvent) -> bytes:
    fields = [
        line.pk, line.team_id, line.occurred_at.isoformat(), line.actor, line.action, line.target, line.before,
        line.after, line.request_id, line.address, line.agent,
    ]  # fmt: skip
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
