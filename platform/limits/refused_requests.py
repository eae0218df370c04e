"""Requests to the API that were answered with an error: counted by minute, key, code and endpoint.

Only the latest request of each group is kept with its path, model, message and id, so that a flood of refused requests
writes one row a minute. Requests that succeed cost nothing.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from core.clock import now
from core.redaction import redact_unknown
from core.telemetry.logs import RefusedAccess
from limits.deferred_counts import DeferredCounts
from tenants import scope
from tenants.models import RefusedRequest

RETENTION = timedelta(days=30)
_MAX_DELETED = 20_000
_SAMPLED_FOR = timedelta(minutes=5)
# Values of the request in a message. Names of parameters and models are shorter.
_VALUE = re.compile(r"(?<=Invalid value: )'[^']*'|'[^']{65,}'")
_ADD = """
    INSERT INTO tenants_refusedrequest AS row (
        team_id, minute, api_key_id, status, code, method, route, count,
        last_at, request_id, path, model, message, key_hint
    )
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (minute, team_id, api_key_id, status, code, method, route)
    DO UPDATE SET count = row.count + excluded.count, last_at = excluded.last_at, request_id = excluded.request_id,
        path = excluded.path, model = excluded.model, message = excluded.message, key_hint = excluded.key_hint
"""


class _Group(NamedTuple):
    minute: datetime
    team_id: str
    key_id: str
    status: int
    code: str
    method: str
    route: str


class _Sample(NamedTuple):
    at: datetime
    request_id: str
    path: str
    model: str
    message: str
    key_hint: str


# The latest request of each group that is waiting.
_samples: dict[_Group, _Sample] = {}


def record(access: RefusedAccess) -> None:
    """Count a request that was answered with an error."""
    at = now()
    group = _Group(
        minute=at.replace(second=0, microsecond=0),
        team_id=access.team_id,
        key_id=access.key_id,
        status=access.status,
        code=access.code[:60],
        method=access.method[:10],
        route=access.route[:120],
    )
    if _counts.add(group):
        _samples[group] = _Sample(
            at=at,
            request_id=access.request_id,
            path=_storable(access.path, 200),
            model=_storable(access.model, 200),
            message=_storable(_VALUE.sub("'…'", access.message), 300),
            key_hint=_storable(access.key_hint, 20),
        )


def _storable(text: str, length: int) -> str:
    return redact_unknown(text[: 4 * length]).replace("\0", "")[:length]


def _write(counts: Mapping[_Group, int]) -> None:
    # In a fixed order, so that processes that update the same rows do not deadlock.
    rows = [
        (group.team_id, group.minute, *group[2:], count, *sample)
        for group, count in sorted(counts.items())
        if (sample := _samples.get(group)) is not None
    ]
    with scope.every_team(), connection.cursor() as cursor:
        cursor.executemany(_ADD, rows)
    # Not those of this minute: more requests of a group may be counted with the same sample.
    for group in [group for group in list(_samples) if group.minute < now() - _SAMPLED_FOR]:
        _samples.pop(group, None)


_counts = DeferredCounts[_Group](_write, name="counts of refused requests")
write = _counts.write


def delete_old() -> int:
    """Delete rows past their retention, a bounded number, and return how many."""
    with scope.every_team():
        old = RefusedRequest.objects.filter(minute__lt=now() - RETENTION).order_by("minute")
        keys = list(old.values_list("pk", flat=True)[:_MAX_DELETED])
        deleted, _ = RefusedRequest.objects.filter(pk__in=keys).delete()
    return deleted
