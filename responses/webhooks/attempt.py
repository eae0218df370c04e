"""One delivery attempt: post an event to an endpoint. Failures are part of the result, not exceptions."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from kernel.clock import now
from kernel.egress import Egress
from kernel.errors import EgressFailed, EgressRefused
from responses.webhooks.events import payload
from responses.webhooks.models import WebhookDelivery
from responses.webhooks.signing import secrets_of, signed

GONE = 410
_SNIPPET = 500
_SNIPPET_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """Result of an attempt. If there was no HTTP response, `status` is None and `error` has the reason."""

    at: datetime
    milliseconds: int
    status: int | None = None
    error: str = ""
    body: str = ""

    @property
    def succeeded(self) -> bool:
        """True for a 2xx status."""
        # Redirects are not followed: the target could be an internal address, and was not configured by the team.
        return self.status is not None and 200 <= self.status < 300

    def entry(self) -> dict[str, Any]:
        """Return the attempt as an entry of a delivery's history."""
        return {
            "at": self.at.isoformat(),
            "status": self.status,
            "ms": self.milliseconds,
            "error": self.error,
            "body": self.body,
        }


async def send(delivery: WebhookDelivery, *, egress: Egress) -> AttemptResult:
    """Post the event of the delivery to its endpoint, signed with the current time."""
    at, started, endpoint = now(), time.monotonic(), delivery.endpoint
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
    text = answer.content.decode(errors="replace").replace("\x00", "")[:_SNIPPET]
    return AttemptResult(at=at, milliseconds=_since(started), status=answer.status, body=text)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
