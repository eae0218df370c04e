"""Event types of webhooks, and the payload of a delivery: event id, type and id of the object."""

from datetime import datetime
from typing import Any, Literal, get_args

import orjson

from kernel.clock import unix
from kernel.ids import new_id

EventType = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
_PREFIXES = {"response": "resp", "batch": "batch"}


def new_event_id() -> str:
    """Return a new event id, which deliveries carry in the header `webhook-id`."""
    return new_id("evt")


def sample_object_id(event_type: str) -> str:
    """Return an id of a non-existing object of the kind that this event type concerns."""
    return new_id(_PREFIXES[event_type.partition(".")[0]])


def payload(*, event_id: str, event_type: str, object_id: str, created_at: datetime) -> bytes:
    """Return the body of a delivery as JSON. It is identical at every attempt."""
    # Only the id: receivers retrieve the object, with its current state and their own permissions.
    body: dict[str, Any] = {
        "id": event_id,
        "object": "event",
        "created_at": unix(created_at),
        "type": event_type,
        "data": {"id": object_id},
    }
    return orjson.dumps(body)
