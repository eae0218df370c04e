"""The events that endpoints can be told, and what they are told of one: its id, and where to look."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson

from kernel.clock import unix
from kernel.ids import new_id


class EventType(StrEnum):
    """What can happen, in the names of the wire."""

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    RESPONSE_COMPLETED = "response.completed"
    RESPONSE_FAILED = "response.failed"
    RESPONSE_CANCELLED = "response.cancelled"
    RESPONSE_INCOMPLETE = "response.incomplete"


EVENT_TYPES = tuple(kind.value for kind in EventType)
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
