"""The delivery queue on top of the outbox: workers claim due deliveries and record the result of each attempt.

A claim lasts a little longer than an attempt can take. If a worker dies, its claims expire and another worker claims
the deliveries again. Every event is therefore delivered at least once, always under the same id.
"""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from kernel.clock import now
from kernel.leases import Claim
from responses.webhooks.attempt import GONE, AttemptResult
from responses.webhooks.models import DeliveryState, DisabledReason, WebhookDelivery, WebhookEndpoint
from tenants import scope
from tenants.audit import audit

PER_ENDPOINT = 4
_CLAIM_MARGIN = timedelta(seconds=5)
_ENDPOINTS_AT_ONCE = 100
LIFETIME = timedelta(hours=72)
RETENTION = timedelta(days=30)
_GIVE_UP_ON_ENDPOINT = timedelta(days=5)
_MAX_JITTER = 0.1
_random = random.SystemRandom()
_UNCLAIMED = timedelta(minutes=10)
_BATCH_SIZE = 10_000
# The history is rewritten with each attempt, so it has to stay small.
_KEPT_ATTEMPTS = 50
# A failing endpoint gets one attempt at a time and is served after the healthy ones, so that a slow endpoint occupies
# one slot at most and delays no other. The endpoint's row is locked, otherwise two workers could both fill its places.
_CLAIM = """
WITH ready AS (
    SELECT endpoint.id,
        CASE WHEN endpoint.failing_since IS NULL THEN %(places)s ELSE 1 END - (
            SELECT count(*) FROM responses_webhookdelivery AS taken
            WHERE taken.endpoint_id = endpoint.id AND taken.claimed_until > %(at)s
        ) AS places
    FROM responses_webhookendpoint AS endpoint
    WHERE endpoint.enabled
      AND EXISTS (
        SELECT FROM responses_webhookdelivery AS due
        WHERE due.endpoint_id = endpoint.id AND due.state = 'pending' AND due.next_attempt_at <= %(at)s
      )
      AND CASE WHEN endpoint.failing_since IS NULL THEN %(places)s ELSE 1 END > (
        SELECT count(*) FROM responses_webhookdelivery AS taken
        WHERE taken.endpoint_id = endpoint.id AND taken.claimed_until > %(at)s
      )
    ORDER BY endpoint.failing_since IS NOT NULL, random()
    LIMIT %(endpoints)s
    FOR NO KEY UPDATE OF endpoint SKIP LOCKED
), picked AS (
    SELECT due.id FROM ready CROSS JOIN LATERAL (
        SELECT delivery.id FROM responses_webhookdelivery AS delivery
        WHERE delivery.endpoint_id = ready.id AND delivery.state = 'pending' AND delivery.next_attempt_at <= %(at)s
        ORDER BY delivery.next_attempt_at
        LIMIT ready.places
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    LIMIT %(slots)s
)
UPDATE responses_webhookdelivery AS delivery SET claimed_until = %(until)s, next_attempt_at = %(until)s
FROM picked WHERE delivery.id = picked.id
RETURNING delivery.id
"""


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimedDelivery(Claim):
    """A delivery that this process attempts. Its fencing token is `claimed_until`, which each claim changes."""

    delivery: WebhookDelivery


def claim(*, at: datetime, slots: int) -> list[ClaimedDelivery]:
    """Claim up to `slots` due deliveries with their endpoints, at most `PER_ENDPOINT` of each endpoint."""
    until = at + timedelta(seconds=settings.WEBHOOK_TIMEOUT_SECONDS) + _CLAIM_MARGIN
    limits = {"slots": slots, "places": PER_ENDPOINT, "endpoints": _ENDPOINTS_AT_ONCE}
    with scope.every_team():
        with connection.cursor() as cursor:
            cursor.execute(_CLAIM, {"at": at, "until": until, **limits})
            claimed = [row[0] for row in cursor.fetchall()]
        if not claimed:
            return []
        return [
            ClaimedDelivery(
                id=delivery.pk,
                team_id=delivery.team_id,
                attempt=delivery.attempts + 1,
                until=until,
                labels={"event": delivery.event_id, "endpoint": delivery.endpoint_id},
                delivery=delivery,
            )
            for delivery in WebhookDelivery.objects.filter(pk__in=claimed).select_related("endpoint")
        ]


def record_attempt(*, delivery: WebhookDelivery, result: AttemptResult) -> bool:
    """Store the result of an attempt. Return False if the claim has expired or the delivery no longer exists."""
    attempts = delivery.attempts + 1
    retry_at = None
    if not result.succeeded:
        # The last delay repeats. Jitter: a receiver that comes back after an outage must not get all retries at the
        # same moment.
        delays = settings.WEBHOOK_RETRY_SECONDS
        delay = delays[min(attempts, len(delays)) - 1] * (1 + _random.uniform(0, _MAX_JITTER))
        if result.at + timedelta(seconds=delay) <= delivery.created_at + LIFETIME:
            retry_at = result.at + timedelta(seconds=delay)
    final_state = DeliveryState.DELIVERED if result.succeeded else DeliveryState.FAILED
    columns: dict[str, Any] = {
        "state": final_state if retry_at is None else DeliveryState.PENDING,
        "next_attempt_at": retry_at,
        "claimed_until": None,
        "delivered_at": result.at if result.succeeded else None,
        "attempts": attempts,
        "last_status": result.status,
        "last_ms": result.milliseconds,
        "last_error": result.error[:300],
        "last_body": result.body,
        "history": [*delivery.history, result.entry()][-_KEPT_ATTEMPTS:],
    }
    with scope.team(delivery.team_id):
        # `claimed_until` is the fencing token: it differs as soon as another worker has claimed the delivery.
        own = WebhookDelivery.objects.filter(pk=delivery.pk, claimed_until=delivery.claimed_until)
        if own.update(**columns) != 1:
            return False
        endpoints = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
        if result.succeeded:
            endpoints.filter(failing_since__isnull=False).update(failing_since=None)
        else:
            # Only the first failure sets the time, so that it marks the start of the outage.
            endpoints.filter(failing_since=None).update(failing_since=result.at)
            # Receivers answer 410 on purpose, to unsubscribe.
            dead, reason = endpoints.filter(enabled=True), DisabledReason.GONE
            if result.status != GONE:
                reason = DisabledReason.FAILING
                dead = dead.filter(failing_since__lte=result.at - _GIVE_UP_ON_ENDPOINT)
            # Several attempts can fail at the same time; only the one that disables the endpoint is audited.
            if dead.update(enabled=False, disabled_at=result.at, disabled_reason=reason) == 1:
                audit(
                    team_id=delivery.team_id,
                    actor="system",
                    action="webhook_endpoint.disabled",
                    target=delivery.endpoint_id,
                    after={"reason": reason.value, "status": result.status, "error": result.error},
                )
    return True


def sweep() -> int:
    """Mark expired deliveries as failed, delete those older than 30 days, and return the number of rows changed."""
    at = now()
    with scope.every_team():
        # A delivery that is due for so long without a claim belongs to a disabled endpoint. Those of enabled endpoints
        # are left to the delivery workers, which record their last attempt.
        waiting = WebhookDelivery.objects.filter(
            state=DeliveryState.PENDING, created_at__lt=at - LIFETIME, next_attempt_at__lt=at - _UNCLAIMED
        )
        expired = waiting.order_by("created_at").values("pk")[:_BATCH_SIZE]
        failed = WebhookDelivery.objects.filter(pk__in=expired).update(
            state=DeliveryState.FAILED, next_attempt_at=None, claimed_until=None
        )
        outdated = WebhookDelivery.objects.filter(created_at__lt=at - RETENTION)
        deleted, _ = WebhookDelivery.objects.filter(
            pk__in=outdated.order_by("created_at").values("pk")[:_BATCH_SIZE]
        ).delete()
    return failed + deleted
