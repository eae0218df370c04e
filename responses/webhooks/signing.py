"""Signatures of Standard Webhooks, which `client.webhooks.unwrap` of the openai SDK verifies."""

import base64
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks import Webhook

from responses.webhooks.models import WebhookEndpoint

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """A fresh secret, as receivers are given it."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def hint(secret: str) -> str:
    """What may be shown of a secret, so that people can tell which one they have."""
    return f"{_PREFIX}…{secret[-4:]}"


def secrets_of(endpoint: WebhookEndpoint, *, at: datetime) -> list[str]:
    """The secrets that sign at this moment, the current one first."""
    overlaps = endpoint.previous_until is not None and at < endpoint.previous_until
    return [endpoint.secret, endpoint.previous_secret] if overlaps else [endpoint.secret]


def signed(body: bytes, *, event_id: str, secrets: list[str], at: datetime) -> Mapping[str, str]:
    """The headers of one attempt. Receivers refuse old timestamps, so that every attempt is signed anew."""
    # The library takes the moment for UTC, whatever zone it is in.
    moment = at.astimezone(UTC)
    signatures = [Webhook(secret).sign(event_id, moment, body.decode()) for secret in secrets]
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
