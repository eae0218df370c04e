"""A response's items as its page shows them: who said what, what was called, and what came back.

Everything is text: nothing that a model or a client wrote is ever interpreted as markup, and no image is loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from conversations.items import plain_text
from conversations.models import Placement
from kernel.console import Shown, shown, size
from responses.admin.deeds import Deed, read_deed
from responses.admin.parts import Part, read_part
from responses.models import ToolCall

Calls = Mapping[str, ToolCall]
"""The rows of tool calls by the id under which the model asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something said. `in_context` False: a fragment that no model reads again."""

    kind: ClassVar[str] = "message"
    id: str
    role: str
    status: str
    phase: str
    parts: Sequence[Part]
    in_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Reasoning, raw or summarised; `note` says what else there is of it."""

    kind: ClassVar[str] = "thinking"
    id: str
    status: str
    body: Shown
    note: str
    in_context: bool


Entry = Message | Thinking | Deed


def entries(places: Iterable[Placement], calls: Calls) -> list[Entry]:
    """The items at these places. `calls` holds the calls of this response, and those that its input answers."""
    return [_entry(place.item.body, calls, in_context=place.in_context) for place in places]


def told_before(instructions: str | Sequence[dict[str, Any]] | None) -> list[Message]:
    """What a request told the model before its input: a text, or the messages of its prompt."""
    if not instructions:
        return []
    if isinstance(instructions, str):
        part = Part(kind="text", body=shown(instructions))
        return [Message(id="", role="instructions", status="", phase="", parts=[part], in_context=True)]
    return [_message({"id": "", **body}, in_context=True) for body in instructions]


def _entry(body: dict[str, Any], calls: Calls, *, in_context: bool) -> Entry:
    match body["type"]:
        case "message":
            return _message(body, in_context=in_context)
        case "reasoning":
            return _thinking(body, in_context=in_context)
    return read_deed(body, calls.get(body.get("call_id") or ""), in_context=in_context)


def _message(body: dict[str, Any], *, in_context: bool) -> Message:
    content = body["content"]
    return Message(
        id=body["id"],
        role=body["role"],
        status=body.get("status") or "",
        phase=(body.get("phase") or "").replace("_", " "),
        parts=[Part(kind="text", body=shown(content))] if isinstance(content, str) else [*map(read_part, content)],
        in_context=in_context,
    )


def _thinking(body: dict[str, Any], *, in_context: bool) -> Thinking:
    raw, summary = (plain_text({"content": body.get(name)}) for name in ("content", "summary"))
    notes = [
        f"In short: {summary}" if raw and summary else "",
        f"Its sealed form has {size(len(body['encrypted_content']))}." if body.get("encrypted_content") else "",
    ]
    return Thinking(
        id=body["id"],
        status=body.get("status") or "",
        body=shown(raw or summary),
        note=" ".join(filter(None, notes)),
        in_context=in_context,
    )
