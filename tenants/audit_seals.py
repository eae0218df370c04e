"""Seals of the audit log: a chain of digests that makes changed or removed lines evident.

The application's database role may only add lines, but the owner of the tables could change them. After such a change,
the digest of the seal that covers the line no longer matches, and hiding this requires rewriting every later seal. A
periodic task seals lines in the order of their ids, a minute after they were written: writing the chain together with
the lines would serialize all writers.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

import orjson
from django.db import connection

from core.clock import now
from tenants import scope
from tenants.models import AuditEvent, AuditSeal

# Longer than any transaction that writes a line: ids are assigned before their rows become visible to others.
SETTLED = timedelta(seconds=60)
# Bounds memory: checking a seal loads all of its lines.
MAX_LINES = 5000
# Arbitrary, but unique among the advisory locks of this database.
_LOCK = 7_265_737_002


def seal_pending_lines(*, at: datetime | None = None) -> int:
    """Seal the lines that have settled by `at`; returns their number. Does nothing while another process seals."""
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
        rows = AuditEvent.objects.filter(pk__gt=last.last_id if last else 0).order_by("pk")[:MAX_LINES]
        # Stop at the first young line: a seal covers a range of ids without gaps.
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
    """Return the SHA-256 in hex of the previous seal's digest and the lines."""
    sha256 = hashlib.sha256(previous.encode())
    for line in lines:
        # The stored form of old seals depends on this list: changing it would invalidate all of them.
        values: list[Any] = [
            line.pk, line.team_id, line.occurred_at.isoformat(), line.actor, line.action, line.target, line.before,
            line.after, line.request_id, line.address, line.agent,
        ]  # fmt: skip
        # Older lines do not have the column.
        values += [] if line.team_ids is None else [line.team_ids]
        sha256.update(orjson.dumps(values, option=orjson.OPT_SORT_KEYS))
    return sha256.hexdigest()


def verify() -> Iterator[tuple[AuditSeal, str]]:
    """Yield the seals that do not match, with the reason, oldest first. Reads the whole log, one seal at a time."""
    previous = ""
    with scope.every_team():
        for seal in AuditSeal.objects.order_by("pk").iterator(chunk_size=100):
            if reason := check(seal, previous):
                yield seal, reason
            # Continue with the stored digest, so that a changed line is reported once and not for every later seal.
            previous = seal.digest


def check(seal: AuditSeal, previous: str) -> str:
    """Return the reason why a seal does not match, or an empty string. Callers must see the rows of all teams."""
    # One line more than the seal has is enough to notice added lines.
    lines = list(AuditEvent.objects.filter(pk__range=(seal.first_id, seal.last_id)).order_by("pk")[: seal.lines + 1])
    if len(lines) != seal.lines:
        return f"it covers {seal.lines:,} lines, but there are {'more' if len(lines) > seal.lines else len(lines)}"
    return "" if digest(previous, lines) == seal.digest else "a line or an earlier seal was changed"


def verify_event(event: AuditEvent) -> tuple[AuditSeal | None, str]:
    """Return the seal of a line, or None before it is sealed, and the reason why the seal does not match, if any."""
    with scope.every_team():
        seal = AuditSeal.objects.filter(last_id__gte=event.pk).order_by("pk").first()
        if seal is None:
            return None, ""
        before = AuditSeal.objects.filter(pk__lt=seal.pk).order_by("-pk").first()
        return seal, check(seal, before.digest if before else "")
