"""Request bodies and response objects of `/v1/webhook_endpoints`."""

from typing import Annotated

from pydantic import Field

from core.clock import unix
from core.http.wire import Wire
from responses.webhooks import objects
from responses.webhooks.events import EventType
from responses.webhooks.models import MAX_NAME, MAX_URL, WebhookEndpoint
from responses.webhooks.signing import hint

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
_Url = Annotated[str, Field(min_length=1, max_length=MAX_URL)]
_EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100)]


class CreateWebhookEndpoint(Wire):
    """Body of a request to create an endpoint."""

    name: _Name
    url: _Url
    event_types: _EventTypes


class UpdateWebhookEndpoint(Wire):
    """Body of a request to update an endpoint. `event_types` replaces the previous list."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: _EventTypes | None = None


class RotateSecret(Wire):
    """Body of a request to rotate the signing secret."""

    keep_old_secret_active_for_24_hours: bool | None = None


class SendTest(Wire):
    """Body of a request to send a sample event."""

    event_type: EventType


def public_endpoint(endpoint: WebhookEndpoint) -> objects.WebhookEndpoint:
    """Return the `webhook_endpoint` object of the API."""
    return {
        "id": endpoint.pk,
        "object": "webhook_endpoint",
        "created_at": unix(endpoint.created_at),
        "updated_at": unix(endpoint.updated_at),
        "event_types": endpoint.event_types,
        "name": endpoint.name,
        "url": endpoint.url,
        "signing_secret_hint": hint(endpoint.secret),
    }


def with_secret(endpoint: WebhookEndpoint) -> objects.WebhookEndpointWithSecret:
    """Return the object with its secret, for the response to the request that created the secret."""
    return {**public_endpoint(endpoint), "signing_secret": endpoint.secret}
