"""Counts of the requests that limits reject, by hour, added up in memory and written every few seconds.

A process that ends may lose the counts of its last two seconds.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from core.clock import now
from core.telemetry import metrics
from limits.deferred_counts import DeferredCounts
from limits.plan import Refusal
from limits.values import Demand
from tenants import scope
from tenants.principal import Principal

_ADD = """
    INSERT INTO tenants_rejectedrequest AS row (team_id, hour, api_key_id, end_user, "limit", subject, endpoint, count)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (team_id, hour, api_key_id, end_user, "limit", subject, endpoint)
    DO UPDATE SET count = row.count + excluded.count
"""


class _Rejected(NamedTuple):
    team_id: str
    hour: datetime
    key_id: str
    end_user: str
    limit: str
    subject: str
    endpoint: str


def count(principal: Principal, demand: Demand, refusal: Refusal) -> None:
    """Count a rejected request; the count is written soon."""
    metrics.LIMIT_REJECTIONS.labels(refusal.limit).inc()
    hour = now().replace(minute=0, second=0, microsecond=0)
    subject = refusal.subject.kind
    _counts.add(
        _Rejected(
            principal.team_id, hour, principal.key_id, demand.end_user, refusal.limit, subject, demand.endpoint[:40]
        )
    )


def _write(counts: Mapping[_Rejected, int]) -> None:
    with scope.every_team(), connection.cursor() as cursor:
        # In a fixed order, so that processes that update the same rows do not deadlock.
        cursor.executemany(_ADD, [(*key, number) for key, number in sorted(counts.items())])


_counts = DeferredCounts[_Rejected](_write, name="counts of rejected requests")
write = _counts.write
