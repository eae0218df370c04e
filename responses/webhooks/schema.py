"""Bodies of requests about endpoints, and endpoints as the wire shows them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kernel.clock import unix
from responses.webhooks.events import EventType
from responses.webhooks.models import MAX_NAME, MAX_URL, WebhookEndpoint
from responses.webhooks.services import NewSecret
from responses.webhooks.signing import hint

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
_Url = Annotated[str, Field(min_length=1, max_length=MAX_URL)]
_EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100)]


class _RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CreateWebhookEndpoint(_RequestBody):
    """A new endpoint."""

    name: _Name
    url: _Url
    event_types: _EventTypes


class UpdateWebhookEndpoint(_RequestBody):
    """What can be changed about one; `event_types` is the complete set."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: _EventTypes | None = None


class RotateSecret(_RequestBody):
    """How to rotate."""

    keep_old_secret_active_for_24_hours: bool | None = None


class SendTest(_RequestBody):
    """What to send as a sample."""

    event_type: EventType


def public_endpoint(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """The endpoint object of the wire."""
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


def with_secret(made: NewSecret) -> dict[str, Any]:
    """The same with its secret, which only those get who have made it."""
    return {**public_endpoint(made.endpoint), "signing_secret": made.secret}
