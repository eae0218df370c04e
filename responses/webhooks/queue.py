"""The delivery queue on top of the outbox: workers claim due deliveries and record the result of each attempt.

A claim lasts a little longer than an attempt can take. If a worker dies, its claims expire and another worker claims
the deliveries again. Every event is therefore delivered at least once, always under the same id.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from kernel.leases import Claim
from responses.webhooks.attempt import GONE, AttemptResult
from responses.webhooks.models import DeliveryState, DisabledReason, WebhookDelivery, WebhookEndpoint
from responses.webhooks.schedule import GIVE_UP_ON_ENDPOINT, jitter, next_attempt
from tenants import scope
from tenants.audit import audit

PER_ENDPOINT = 4
_CLAIM_MARGIN = timedelta(seconds=5)
_ENDPOINTS_AT_ONCE = 100
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
        retry_at = next_attempt(
            created_at=delivery.created_at,
            attempts=attempts,
            at=result.at,
            delays=settings.WEBHOOK_RETRY_SECONDS,
            jitter=jitter(),
        )
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
            _disable_if_dead(delivery, result)
    return True


def _disable_if_dead(delivery: WebhookDelivery, result: AttemptResult) -> None:
    enabled = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id, enabled=True)
    if result.status == GONE:
        # Receivers answer 410 on purpose, to unsubscribe.
        dead, reason = enabled, DisabledReason.GONE
    else:
        dead, reason = enabled.filter(failing_since__lte=result.at - GIVE_UP_ON_ENDPOINT), DisabledReason.FAILING
    # Several attempts can fail at the same time; only the one that disables the endpoint writes to the audit log.
    if dead.update(enabled=False, disabled_at=result.at, disabled_reason=reason) == 1:
        audit(
            team_id=delivery.team_id,
            actor="system",
            action="webhook_endpoint.disabled",
            target=delivery.endpoint_id,
            after={"reason": reason.value, "status": result.status, "error": result.error},
        )
