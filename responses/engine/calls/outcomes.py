"""What became of calls of hosted tools: values that the port, the loop and the recorder share."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from kernel.storable_json import is_too_deep, without_nul
from responses.engine.events.types import Body, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a hosted call gave. A failure is a result, too: the model reads `output` and may try otherwise.

    `error` is a short word for it, for the rows. `parts` are content that text cannot hold (images), which the model
    reads after the output. `fields` is whatever the tool needs to make its item of it; all of it is JSON. `cost` is
    what the ledger calls it, where somebody has to pay for the call.
    """

    output: str
    error: str | None = None
    parts: tuple[Body, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    cost: str | None = None

    def stored(self) -> dict[str, Any]:
        """The result as JSON, for whoever takes the run over."""
        return {
            "output": self.output,
            "error": self.error,
            "parts": [*self.parts],
            "fields": {**self.fields},
            "cost": self.cost,
        }

    def storable(self) -> "ToolResult":
        """The result without what no database takes, wherever its server has put it."""
        return ToolResult.restored(without_nul(self.stored()))

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "ToolResult":
        """The result that was stored."""
        return cls(**{**stored, "parts": tuple(stored["parts"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """How long one call may take, and how much of its output a model gets to read."""

    seconds: float = 60
    characters: int = 100_000


@dataclass(frozen=True, slots=True)
class Execute:
    """The call is to be made."""


@dataclass(frozen=True, slots=True)
class RequireApproval:
    """The call waits until somebody approves of it; `item` says so in the output, and the run ends.

    `definition` is a digest of the tool as it is now: no other will be called.
    """

    item: Body
    definition: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The call is not made; the model reads why."""

    reason: str


CallDecision = Execute | RequireApproval | Refuse


def parse_object(arguments: str) -> dict[str, Any] | None:
    """The arguments of a call, if they are a JSON object: as it can be stored, and written again."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or is_too_deep(found, arguments.encode()):
        return None
    kept: dict[str, Any] = without_nul(found)
    return kept


def request_digest(item: Body) -> str:
    """A digest of what a person is asked to approve of: which tool of which server, with which arguments."""
    asked = [item["server_label"], item["name"], item["arguments"]]
    return hashlib.sha256(orjson.dumps(asked)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedItem:
    """How the item of a call ends: its final body, the events before its `output_item.done`, and the items that belong
    behind it."""

    item: Body
    events: list[Event] = field(default_factory=list)
    more: tuple[Body, ...] = ()
