"""One attempt of a webhook delivery: post an event to an endpoint."""

import time

from django.conf import settings

from core.clock import shared_now
from core.egress import Egress
from core.errors import EgressFailed, EgressRefused
from deliveries.outbox.attempt import BODY_LENGTH, AttemptResult
from responses.webhooks.events import payload
from responses.webhooks.models import WebhookDelivery
from responses.webhooks.signing import secrets_of, signed

GONE = 410
_SNIPPET_BYTES = 2048


async def send(delivery: WebhookDelivery, *, egress: Egress) -> AttemptResult:
    """Post the event of the delivery to its endpoint, signed with the current time."""
    at, started, endpoint = shared_now(), time.monotonic(), delivery.endpoint
    body = payload(delivery)
    headers = signed(body, event_id=delivery.event_id, secrets=secrets_of(endpoint, at=at), at=at)
    try:
        answer = await egress.post(
            endpoint.url,
            content=body,
            headers=headers,
            timeout=settings.WEBHOOK_TIMEOUT_SECONDS,
            # The body is only shown to the team for debugging.
            max_bytes=_SNIPPET_BYTES,
            truncate=True,
        )
    except (EgressRefused, EgressFailed) as error:
        return AttemptResult(at=at, milliseconds=_since(started), error=error.message)
    # PostgreSQL stores no NUL.
    text = answer.content.decode(errors="replace").replace("\x00", "")[:BODY_LENGTH]
    return AttemptResult(at=at, milliseconds=_since(started), status=answer.status, body=text)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
