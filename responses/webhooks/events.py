"""The events that endpoints can be told, and what they are told of one: its id, and where to look."""

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
    """A fresh id of an event; deliveries carry it as `webhook-id`."""
    return new_id("evt")


def sample_object_id(event_type: str) -> str:
    """An id that nothing has, of the kind that an event of this type tells of."""
    return new_id(_PREFIXES[event_type.partition(".")[0]])


def payload(*, event_id: str, event_type: str, object_id: str, created_at: datetime) -> bytes:
    """The body of a delivery, byte for byte the same at every attempt. Thin: receivers retrieve the object itself."""
    body: dict[str, Any] = {
        "id": event_id,
        "object": "event",
        "created_at": unix(created_at),
        "type": event_type,
        "data": {"id": object_id},
    }
    return orjson.dumps(body)
