"""The queue that the outbox is: workers claim what is due, and write down how it went.

A claim lasts a little longer than an attempt can. When the worker dies meanwhile, somebody else claims the delivery
again: every event is delivered at least once, under the same id.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from responses.webhooks.attempt import GONE, AttemptResult
from responses.webhooks.models import DeliveryState, DisabledReason, WebhookDelivery, WebhookEndpoint
from responses.webhooks.schedule import GIVE_UP_ON_ENDPOINT, jitter, next_attempt
from tenants import scope
from tenants.audit import audit

PER_ENDPOINT = 4
_CLAIM_MARGIN = timedelta(seconds=5)
_ENDPOINTS_AT_ONCE = 100
_KEPT_ATTEMPTS = 50
# An endpoint that fails gets one attempt at a time, and comes after those that work: however slow it is, it holds
# little, and nobody waits for it. Its row is locked so that two workers do not both fill its places.
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


def claim(*, at: datetime, slots: int) -> Sequence[WebhookDelivery]:
    """Take at most so many deliveries that are due, with their endpoints, of which none gets more than its places."""
    until = at + timedelta(seconds=settings.WEBHOOK_TIMEOUT_SECONDS) + _CLAIM_MARGIN
    limits = {"slots": slots, "places": PER_ENDPOINT, "endpoints": _ENDPOINTS_AT_ONCE}
    with scope.every_team():
        with connection.cursor() as cursor:
            cursor.execute(_CLAIM, {"at": at, "until": until, **limits})
            taken = [row[0] for row in cursor.fetchall()]
        return list(WebhookDelivery.objects.filter(pk__in=taken).select_related("endpoint")) if taken else []


def settle(*, delivery: WebhookDelivery, outcome: AttemptResult) -> bool:
    """Write down how a claimed delivery went; False where somebody else has it, or nobody any more."""
    with scope.team(delivery.team_id):
        mine = WebhookDelivery.objects.filter(pk=delivery.pk, claimed_until=delivery.claimed_until)
        if mine.update(**_columns(delivery, outcome)) != 1:
            return False
        endpoints = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
        if outcome.succeeded:
            endpoints.filter(failing_since__isnull=False).update(failing_since=None)
        else:
            endpoints.filter(failing_since=None).update(failing_since=outcome.at)
            _disable_if_hopeless(delivery, outcome)
    return True


def _columns(delivery: WebhookDelivery, outcome: AttemptResult) -> dict[str, Any]:
    attempts = delivery.attempts + 1
    following = None
    if not outcome.succeeded:
        following = next_attempt(
            created_at=delivery.created_at,
            attempts=attempts,
            at=outcome.at,
            delays=settings.WEBHOOK_RETRY_SECONDS,
            jitter=jitter(),
        )
    over = DeliveryState.DELIVERED if outcome.succeeded else DeliveryState.FAILED
    return {
        "state": over if following is None else DeliveryState.PENDING,
        "next_attempt_at": following,
        "claimed_until": None,
        "delivered_at": outcome.at if outcome.succeeded else None,
        "attempts": attempts,
        "last_status": outcome.status,
        "last_ms": outcome.milliseconds,
        "last_error": outcome.error[:300],
        "last_body": outcome.body,
        "history": [*delivery.history, outcome.entry()][-_KEPT_ATTEMPTS:],
    }


def _disable_if_hopeless(delivery: WebhookDelivery, outcome: AttemptResult) -> None:
    enabled = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id, enabled=True)
    if outcome.status == GONE:
        hopeless, reason = enabled, DisabledReason.GONE
    else:
        hopeless, reason = enabled.filter(failing_since__lte=outcome.at - GIVE_UP_ON_ENDPOINT), DisabledReason.FAILING
    if hopeless.update(enabled=False, disabled_at=outcome.at, disabled_reason=reason) == 1:
        audit(
            team_id=delivery.team_id,
            actor="system",
            action="webhook_endpoint.disabled",
            target=delivery.endpoint_id,
            after={"reason": reason.value, "status": outcome.status, "error": outcome.error},
        )
