"""Signatures according to Standard Webhooks, which `client.webhooks.unwrap` of the OpenAI SDK verifies."""

import base64
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks import Webhook

from responses.webhooks.models import WebhookEndpoint

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new signing secret in the format that receivers use."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def hint(secret: str) -> str:
    """Return the prefix and the last four characters of a secret, enough to recognize it."""
    return f"{_PREFIX}…{secret[-4:]}"


def secrets_of(endpoint: WebhookEndpoint, *, at: datetime) -> list[str]:
    """Return the secrets that are valid at a time, the current one first."""
    overlaps = endpoint.previous_until is not None and at < endpoint.previous_until
    return [endpoint.secret, endpoint.previous_secret] if overlaps else [endpoint.secret]


def signed(body: bytes, *, event_id: str, secrets: list[str], at: datetime) -> Mapping[str, str]:
    """Return the headers of one attempt, with a signature for each secret."""
    # Every attempt is signed again, because receivers reject old timestamps. The library ignores the time zone of a
    # datetime and treats it as UTC.
    moment = at.astimezone(UTC)
    signatures = [Webhook(secret).sign(event_id, moment, body.decode()) for secret in secrets]
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
