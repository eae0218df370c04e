"""The queue that all channels of the outbox share: claims, results of attempts, the schedule of retries, the sweep.

A claim lasts a little longer than an attempt can take. If a worker dies, its claims expire and another worker claims
the deliveries again. Everything is therefore delivered at least once, always under the same id.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from core.clock import now
from core.telemetry import metrics
from core.work.leases import Claim
from deliveries.outbox.attempt import ERROR_LENGTH, AttemptResult
from tenants import scope
from tenants.models.notifications import Delivery, DeliveryState

CHANNEL = "outbox"
"""PostgreSQL notifications on this channel wake the delivery workers."""
LIFETIME = timedelta(hours=72)
RETENTION = timedelta(days=30)
_MAX_JITTER = 0.1
_random = random.SystemRandom()
_UNCLAIMED = timedelta(minutes=10)
_BATCH_SIZE = 10_000
# The history is rewritten with each attempt, so it has to stay small.
_KEPT_ATTEMPTS = 50


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimedDelivery(Claim):
    """A delivery that this process attempts. Its fencing token is `claimed_until`, which each claim changes."""

    delivery: Any
    channel: str


def claimed(
    rows: Iterable[Delivery], *, until: datetime, channel: str, labels: "Mapping[str, str]"
) -> list[ClaimedDelivery]:
    """Return the claims of rows; `labels` names the columns that identify them to operators."""
    return [
        ClaimedDelivery(
            id=row.pk,
            team_id=row.team_id,
            attempt=row.attempts + 1,
            until=until,
            labels={label: str(getattr(row, column)) for label, column in labels.items()},
            delivery=row,
            channel=channel,
        )
        for row in rows
    ]


def wake() -> None:
    """Notify delivery workers as soon as the caller's transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def record_attempt(*, delivery: Delivery, result: AttemptResult) -> bool:
    """Store the result of an attempt. Return False if the claim has expired or the delivery no longer exists.

    Must run in a scope that sees the team.
    """
    attempts = delivery.attempts + 1
    retry_at = None
    if not (result.succeeded or result.is_final):
        # The last delay repeats. Jitter: a receiver that comes back after an outage must not get all retries at the
        # same moment.
        delays = settings.WEBHOOK_RETRY_SECONDS
        delay = delays[min(attempts, len(delays)) - 1] * (1 + _random.uniform(0, _MAX_JITTER))
        if result.at + timedelta(seconds=delay) <= delivery.created_at + LIFETIME:
            retry_at = result.at + timedelta(seconds=delay)
    final_state = DeliveryState.DELIVERED if result.succeeded else DeliveryState.FAILED
    # `claimed_until` is the fencing token: it differs as soon as another worker has claimed the delivery.
    own = type(delivery)._default_manager.filter(pk=delivery.pk, claimed_until=delivery.claimed_until)
    changed = own.update(
        state=final_state if retry_at is None else DeliveryState.PENDING,
        next_attempt_at=retry_at,
        claimed_until=None,
        delivered_at=result.at if result.succeeded else None,
        attempts=attempts,
        last_status=result.status,
        last_ms=result.milliseconds,
        last_error=result.error[:ERROR_LENGTH],
        last_body=result.body,
        history=[*delivery.history, result.entry()][-_KEPT_ATTEMPTS:],
    )
    return changed == 1


def resend(delivery: Delivery) -> bool:
    """Queue a delivery for an immediate attempt, whatever its state. Return False during an attempt.

    Must run in a scope that sees the team.
    """
    at = now()
    idle = type(delivery)._default_manager.filter(pk=delivery.pk).exclude(claimed_until__gt=at)
    changed = idle.update(state=DeliveryState.PENDING, next_attempt_at=at, claimed_until=None, delivered_at=None) == 1
    if changed:
        wake()
    return changed


def sweep(model: type[Delivery]) -> int:
    """Mark expired deliveries as failed, delete those older than 30 days, and return the number of rows changed."""
    at, rows = now(), model._default_manager
    with scope.every_team():
        # A delivery that is due for so long without a claim belongs to a disabled receiver. All others are left to the
        # delivery workers, which record their last attempt.
        waiting = rows.filter(
            state=DeliveryState.PENDING, created_at__lt=at - LIFETIME, next_attempt_at__lt=at - _UNCLAIMED
        )
        expired = waiting.order_by("created_at").values("pk")[:_BATCH_SIZE]
        failed = rows.filter(pk__in=expired).update(
            state=DeliveryState.FAILED, next_attempt_at=None, claimed_until=None
        )
        outdated = rows.filter(created_at__lt=at - RETENTION).order_by("created_at").values("pk")[:_BATCH_SIZE]
        deleted, _ = rows.filter(pk__in=outdated).delete()
    metrics.ROWS_DROPPED.labels(model.__name__.lower()).inc(deleted)
    return failed + deleted
