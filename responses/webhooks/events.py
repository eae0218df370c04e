"""Event types of webhooks, and the payload of a delivery: event id, type and id of the object."""

from typing import Any, Literal, get_args

import orjson

from core.clock import unix
from core.ids import new_id
from responses.webhooks.models import WebhookDelivery

EventType = Literal[
    "approval.requested",
    "approval.decided",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "budget.alert",
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
_PREFIXES = {"response": "resp", "batch": "batch", "budget": "ntf", "approval": "mcpr"}
_SAMPLE_APPROVAL = {
    "response_id": "resp_sample",
    "kind": "approval",
    "url": "https://responses.example.com/admin/approvals/mcpr_sample/",
}


def new_event_id() -> str:
    """Return a new event id, which deliveries carry in the header `webhook-id`."""
    return new_id("evt")


def sample_object_id(event_type: str) -> str:
    """Return a valid id of an object that does not exist, of the kind to which this event type belongs."""
    return new_id(_PREFIXES[event_type.partition(".")[0]])


def sample_data(event_type: str) -> dict[str, Any]:
    """Return the data of a sample event in addition to the id of its object."""
    match event_type:
        case "approval.requested":
            return {**_SAMPLE_APPROVAL, "expires_at": 1767830400}
        case "approval.decided":
            return {**_SAMPLE_APPROVAL, "decision": "granted"}
        case "budget.alert":
            pass
        case _:
            return {}
    return {
        "team": {"id": "team_sample", "name": "Sample"},
        "subject": {"type": "team", "id": "team_sample", "name": "Sample"},
        "period": {"unit": "month", "start": "2026-01-01T00:00:00+00:00", "end": "2026-02-01T00:00:00+00:00"},
        "spent": "80.5000000000",
        "amount": "100.0000000000",
        "currency": "usd",
        "percent": 80,
        "is_hard": True,
    }


def payload(delivery: WebhookDelivery) -> bytes:
    """Return the body of a delivery as JSON. It is the same for every attempt."""
    # Only the id of the object is sent: receivers retrieve the object in its current state, with their own permissions.
    body: dict[str, Any] = {
        "id": delivery.event_id,
        "object": "event",
        "created_at": unix(delivery.created_at),
        "type": delivery.event_type,
        "data": {"id": delivery.object_id, **delivery.data},
    }
    return orjson.dumps(body)
