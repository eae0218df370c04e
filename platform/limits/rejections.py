"""Counts of the requests that limits reject, by hour, added up in memory and written every few seconds.

A process that ends may lose the counts of its last two seconds.
"""

import logging
import threading
from collections import Counter
from datetime import datetime
from typing import NamedTuple

from django.db import Error as DatabaseError
from django.db import connection, connections

from core.clock import now
from core.telemetry import metrics
from limits.plan import Refusal
from limits.values import Demand
from tenants import scope
from tenants.principal import Principal

logger = logging.getLogger(__name__)
_WRITE_EVERY_SECONDS = 2.0
# Bounds memory while the database is away.
_MAX_ENTRIES = 10_000
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


_waiting: Counter[_Rejected] = Counter()
_lock = threading.Lock()
_timer: threading.Timer | None = None


def count(principal: Principal, demand: Demand, refusal: Refusal) -> None:
    """Count a rejected request; the count is written soon."""
    global _timer  # noqa: PLW0603 - one timer per process
    metrics.LIMIT_REJECTIONS.labels(refusal.limit).inc()
    hour = now().replace(minute=0, second=0, microsecond=0)
    subject = refusal.subject.kind
    one = _Rejected(
        principal.team_id, hour, principal.key_id, demand.end_user, refusal.limit, subject, demand.endpoint[:40]
    )
    with _lock:
        if len(_waiting) < _MAX_ENTRIES or one in _waiting:
            _waiting[one] += 1
        if _timer is None or not _timer.is_alive():
            # A thread, because processes without an event loop reject requests too.
            _timer = threading.Timer(_WRITE_EVERY_SECONDS, _write_later)
            _timer.daemon = True
            _timer.start()


def write() -> None:
    """Write the counts that are waiting."""
    with _lock:
        counts = _waiting.copy()
        _waiting.clear()
    if not counts:
        return
    try:
        with scope.every_team(), connection.cursor() as cursor:
            # In a fixed order, so that processes that update the same rows do not deadlock.
            cursor.executemany(_ADD, [(*key, number) for key, number in sorted(counts.items())])
    except DatabaseError:
        logger.warning("%d counts of rejected requests could not be written", len(counts))
        with _lock:
            _waiting.update(counts)


def _write_later() -> None:
    try:
        write()
    finally:
        connections.close_all()
