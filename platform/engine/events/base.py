"""Fields that events have in common, in the order of OpenAI's API. Subclasses add `type` as the last field."""

from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
"""Item, content part or response as JSON of the API."""


@dataclass(slots=True)
class ResponseEvent:
    """Event with the whole response."""

    response: Body


@dataclass(slots=True)
class ItemEvent:
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
class CommandEvent:
    """Event of a command of a shell call."""

    output_index: int
    command_index: int
