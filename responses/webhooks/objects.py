"""The objects that the endpoints of `/v1/webhook_endpoints` return."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from core.http.objects import Deleted, UnixTime, one_of
from responses.webhooks.events import EVENT_TYPES

EventType = Annotated[str, one_of(*EVENT_TYPES)]


class WebhookEndpoint(TypedDict):
    """A webhook endpoint."""

    id: str
    object: Literal["webhook_endpoint"]
    created_at: UnixTime
    updated_at: UnixTime
    event_types: list[EventType]
    name: str
    url: str
    signing_secret_hint: str


class WebhookEndpointWithSecret(WebhookEndpoint):
    """A webhook endpoint with its signing secret."""

    signing_secret: Annotated[str, Field(description="Returned only by this request.")]


class WebhookEndpointTest(TypedDict):
    """Result of a test."""

    object: Literal["webhook_endpoint.test"]
    event_type: EventType
    status_code: Annotated[int, Field(description="HTTP status of the endpoint's response.")]
    success: Literal[True]
    webhook_endpoint_id: str


class WebhookEventTypeList(TypedDict):
    """List of event types."""

    object: Literal["list"]
    data: list[str]


DeletedWebhookEndpoint = Deleted[WebhookEndpoint, Literal["webhook_endpoint.deleted"]]
