"""Webhooks as a channel of the outbox: claim deliveries, and update endpoints according to the results."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from typing_extensions import override

from core.egress import Egress
from deliveries.notifications import Message, notify
from deliveries.outbox.attempt import AttemptResult
from deliveries.outbox.delivery_worker import DeliveryChannel
from deliveries.outbox.queue import ClaimedDelivery, claimed, record_attempt
from responses.webhooks.attempt import GONE, send
from responses.webhooks.models import DisabledReason, WebhookDelivery, WebhookEndpoint
from tenants.audit import audit
from tenants.models import NotificationKind

PER_ENDPOINT = 4
_CLAIM_MARGIN = timedelta(seconds=5)
_ENDPOINTS_AT_ONCE = 100
_GIVE_UP_ON_ENDPOINT = timedelta(days=5)
_REASONS = {
    DisabledReason.GONE: "the receiver answered 410 Gone",
    DisabledReason.FAILING: "no delivery has succeeded for five days",
}
# A failing endpoint gets only one attempt at a time and comes after the healthy endpoints, so that a slow endpoint
# occupies at most one slot and delays no other endpoint. The row of the endpoint is locked, because otherwise two
# workers together could exceed its limit. Each slot goes to the team with the fewest attempts in relation to its
# weight, so that a team with many endpoints does not occupy all slots.
_CLAIM = """
WITH ready AS (
    SELECT endpoint.id, endpoint.team_id, endpoint.failing_since IS NOT NULL AS is_failing,
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
), held AS (
    SELECT team_id, count(*) AS attempts FROM responses_webhookdelivery WHERE claimed_until > %(at)s GROUP BY team_id
), due AS (
    SELECT due.id, due.next_attempt_at, ready.team_id, ready.is_failing FROM ready CROSS JOIN LATERAL (
        SELECT delivery.id, delivery.next_attempt_at FROM responses_webhookdelivery AS delivery
        WHERE delivery.endpoint_id = ready.id AND delivery.state = 'pending' AND delivery.next_attempt_at <= %(at)s
        ORDER BY delivery.next_attempt_at
        LIMIT ready.places
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
), picked AS (
    SELECT ranked.id FROM (
        SELECT due.*, row_number() OVER (PARTITION BY team_id, is_failing ORDER BY next_attempt_at) AS place FROM due
    ) AS ranked
    JOIN tenants_team AS team ON team.id = ranked.team_id
    LEFT JOIN held ON held.team_id = ranked.team_id
    ORDER BY ranked.is_failing, (coalesce(held.attempts, 0) + ranked.place)::real / team.weight, ranked.next_attempt_at
    LIMIT %(slots)s
)
UPDATE responses_webhookdelivery AS delivery SET claimed_until = %(until)s, next_attempt_at = %(until)s
FROM picked WHERE delivery.id = picked.id
RETURNING delivery.id
"""


class WebhookChannel(DeliveryChannel):
    """Posts events to endpoints, at most `PER_ENDPOINT` at the same time to each of them."""

    name = "webhooks"

    def __init__(self, *, slots: int, egress: Egress) -> None:
        super().__init__(slots=slots)
        self._egress = egress

    @override
    def claim(self, *, at: datetime, slots: int) -> list[ClaimedDelivery]:
        until = at + timedelta(seconds=settings.WEBHOOK_TIMEOUT_SECONDS) + _CLAIM_MARGIN
        limits = {"slots": slots, "places": PER_ENDPOINT, "endpoints": _ENDPOINTS_AT_ONCE}
        with connection.cursor() as cursor:
            cursor.execute(_CLAIM, {"at": at, "until": until, **limits})
            ids = [row[0] for row in cursor.fetchall()]
        rows = WebhookDelivery.objects.filter(pk__in=ids).select_related("endpoint") if ids else []
        return claimed(rows, until=until, channel=self.name, labels={"event": "event_id", "endpoint": "endpoint_id"})

    @override
    async def send(self, delivery: WebhookDelivery) -> AttemptResult:
        return await send(delivery, egress=self._egress)

    @override
    def record(self, delivery: WebhookDelivery, result: AttemptResult) -> None:
        if not record_attempt(delivery=delivery, result=result):
            return
        endpoints = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
        if result.succeeded:
            endpoints.filter(failing_since__isnull=False).update(failing_since=None)
            return
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
            notify(
                team_id=delivery.team_id,
                kind=NotificationKind.ENDPOINT_DISABLED,
                key=f"{delivery.endpoint_id} {result.at.isoformat()}",
                message=Message(
                    subject=f"Webhook endpoint {delivery.endpoint.name} was disabled",
                    text=f"The webhook endpoint {delivery.endpoint.name} receives no more events: "
                    f"{_REASONS[reason]}. Enable it again in the console once its receiver works. Pending events are "
                    "kept until 72 hours after they happened.",
                    path=f"/admin/responses/webhookendpoint/{delivery.endpoint_id}/change/",
                ),
                details={"endpoint_id": delivery.endpoint_id, "reason": reason.value},
            )
