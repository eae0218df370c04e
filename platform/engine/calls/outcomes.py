"""Decisions on calls and results of hosted tools: values shared by the tools, the loop and the recorder."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from core.json.storable_json import is_too_deep, without_nul
from engine.events.types import Body

OUTCOME_UNKNOWN = "outcome_unknown"
"""Status and error code of a call that was sent to its tool and never answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a hosted call. A failure is a result too: the model reads `output` and may try something else.

    `error` is a short code of a failure, for the tool call's row. `parts` are images, which the model reads after the
    output. `fields` is JSON, from which the tool builds its item. `cost` is the price key of a call that costs money.
    """

    output: str
    error: str | None = None
    parts: tuple[Body, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    cost: str | None = None

    @property
    def status(self) -> str:
        """Status of the ended call in its row."""
        if self.error == OUTCOME_UNKNOWN:
            return OUTCOME_UNKNOWN
        return "failed" if self.error else "completed"

    def stored(self) -> dict[str, Any]:
        """Return the result as JSON, for a process that resumes the run."""
        return {
            "output": self.output,
            "error": self.error,
            "parts": [*self.parts],
            "fields": {**self.fields},
            "cost": self.cost,
        }

    def storable(self) -> "ToolResult":
        """Return the result without NUL characters, which PostgreSQL can store neither as text nor as JSON."""
        return ToolResult.restored(without_nul(self.stored()))

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "ToolResult":
        """Return the result from the JSON that `stored` returned."""
        return cls(**{**stored, "parts": tuple(stored["parts"])})


@dataclass(frozen=True, slots=True)
class InputRequired:
    """Question that a tool has asked instead of returning a result. `question` is JSON of the tool.

    If the run can wait, a person answers, and the call is sent again with the answer as its `input`.
    """

    question: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one call: its duration, and the length of the output that the model reads."""

    seconds: float = 60
    characters: int = 100_000


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the call."""


@dataclass(frozen=True, slots=True)
class RequireApproval:
    """Wait for the client's approval: `item` asks for it in the output, and the run ends.

    `definition` is a digest of the tool's definition. If the definition has changed by the time of the approval, the
    call is not run.
    """

    item: Body
    definition: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the call; the model reads `reason` as its output."""

    reason: str


CallDecision = Execute | RequireApproval | Refuse


def parse_object(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call without NUL characters; None unless they are a storable JSON object."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or is_too_deep(found, arguments.encode()):
        return None
    # Arguments become part of an item, which has to be storable as JSON.
    storable: dict[str, Any] = without_nul(found)
    return storable


def request_digest(item: Body) -> str:
    """Return a digest of an approval request's content: server, tool and arguments."""
    content = [item["server_label"], item["name"], item["arguments"]]
    return hashlib.sha256(orjson.dumps(content)).hexdigest()
