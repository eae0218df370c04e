"""Fields that events have in common, in the order of OpenAI's API, and the decorator of their classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

Body = dict[str, Any]
"""Item, content part or response as JSON of the API."""


class BaseEvent:
    """Any event."""

    __slots__ = ()
    type: ClassVar[str]


AnyEvent = TypeVar("AnyEvent", bound=BaseEvent)


@dataclass_transform()
def event_type(kind: str) -> Callable[[type[AnyEvent]], type[AnyEvent]]:
    """Return the decorator of the class of an event: a dataclass with this type."""

    def declare(cls: type[AnyEvent]) -> type[AnyEvent]:
        cls.type = kind
        return dataclass(slots=True)(cls)

    return declare


@dataclass(slots=True)
class ResponseEvent(BaseEvent):
    """Event with the whole response."""

    response: Body


@dataclass(slots=True)
class ItemEvent(BaseEvent):
    """Event inside an item."""

    item_id: str
    output_index: int


@dataclass(slots=True)
class PartEvent(ItemEvent):
    """Event inside a content part of an item."""

    content_index: int


@dataclass(slots=True)
class SummaryEvent(ItemEvent):
    """Event inside a part of a reasoning summary."""

    summary_index: int


@dataclass(slots=True)
class CommandEvent(BaseEvent):
    """Event of a command of a shell call."""

    output_index: int
    command_index: int
