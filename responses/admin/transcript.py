"""A response's items as its page shows them: who said what, what was called, and what came back.

Everything is text: nothing that a model or a client wrote is ever interpreted as markup, and no image is loaded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from conversations.items import plain_text
from conversations.models import Placement
from kernel.console import Shown, duration, pretty, shown, size
from responses.models import ToolCall

_DATA_URL = re.compile(r"data:([^;,]*)(;base64)?,")

Calls = Mapping[str, ToolCall]
"""The rows of tool calls by the id under which the model asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a message: text, a refusal, or an image or a file that is described and never loaded."""

    kind: str
    body: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something said. `in_context` False: a fragment that no model reads again."""

    kind: ClassVar[str] = "message"
    id: str
    role: str
    status: str
    parts: Sequence[Part]
    in_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Reasoning, raw or summarised."""

    kind: ClassVar[str] = "thinking"
    id: str
    status: str
    body: Shown
    in_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function call, with what is known of its end. `took` is empty while it has not ended."""

    kind: ClassVar[str] = "call"
    id: str
    name: str
    call_id: str
    arguments: Shown
    output: Shown | None
    error: str | None
    status: str
    took: str
    in_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the client brought back for a call of an earlier response; `name` is empty where that is not known."""

    kind: ClassVar[str] = "answer"
    id: str
    name: str
    call_id: str
    output: Shown
    in_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """An item of a kind that this page knows no better form for."""

    kind: ClassVar[str] = "other"
    id: str
    type: str
    body: Shown
    in_context: bool


Entry = Message | Thinking | Call | Answer | Other


def entries(places: Iterable[Placement], calls: Calls) -> list[Entry]:
    """The items at these places. `calls` holds the calls of this response, and those that its input answers."""
    return [_entry(place.item.body, calls, in_context=place.in_context) for place in places]


def _entry(body: dict[str, Any], calls: Calls, *, in_context: bool) -> Entry:
    match body["type"]:
        case "message":
            return _message(body, in_context=in_context)
        case "reasoning":
            text = plain_text({"content": body.get("content") or body.get("summary")})
            status = body.get("status") or ""
            return Thinking(id=body["id"], status=status, body=shown(text), in_context=in_context)
        case "function_call":
            return _call(body, calls.get(body["call_id"]), in_context=in_context)
        case "function_call_output":
            return _answer(body, calls.get(body["call_id"]), in_context=in_context)
        case "mcp_call":
            return _mcp_call(body, in_context=in_context)
        case kind:
            return Other(id=body["id"], type=kind, body=pretty(body), in_context=in_context)


def _message(body: dict[str, Any], *, in_context: bool) -> Message:
    return Message(
        id=body["id"],
        role=body["role"],
        status=body.get("status") or "",
        parts=[_part(part) for part in body["content"]],
        in_context=in_context,
    )


def _part(part: dict[str, Any]) -> Part:
    match part["type"]:
        case "input_text" | "output_text":
            return Part(kind="text", body=shown(part["text"]))
        case "refusal":
            return Part(kind="refusal", body=shown(part["refusal"]))
        case "input_image" | "input_file":
            return Part(kind="image", body=Shown(_source(part)))
    return Part(kind="json", body=pretty(part))


def _source(part: dict[str, Any]) -> str:
    """Where an image or a file comes from, as text; what is brought along is only measured."""
    what = "image" if part["type"] == "input_image" else "file"
    named = f"{part['filename']}, " if part.get("filename") else ""
    source = part.get("file_id") or part.get("file_url") or part.get("image_url")
    if source and not _DATA_URL.match(source):
        return named + shown(source).text
    return named + _measured(source or part.get("file_data") or "", what)


def _measured(data: str, what: str) -> str:
    head = _DATA_URL.match(data)
    length = len(data) - (head.end() if head else 0)
    in_base64 = head is None or head[2]
    kind = (head[1] if head else "") or "unknown type"
    return f"data {what}, {kind}, {size(length * 3 // 4 if in_base64 else length)}"


def _call(body: dict[str, Any], row: ToolCall | None, *, in_context: bool) -> Call:
    spent = row.ended_at - row.started_at if row is not None and row.ended_at is not None else None
    return Call(
        id=body["id"],
        name=body["name"],
        call_id=body["call_id"],
        arguments=pretty(body["arguments"]),
        output=None if row is None or row.output is None else pretty(row.output),
        error=None if row is None else row.error,
        status=(body.get("status") or "") if row is None else row.status,
        took="" if spent is None else duration(max(0, round(spent.total_seconds() * 1000))),
        in_context=in_context,
    )


def _mcp_call(body: dict[str, Any], *, in_context: bool) -> Call:
    """A call that the platform made itself: its item has everything that came of it."""
    error = body.get("error")
    return Call(
        id=body["id"],
        name=f"{body['server_label']}: {body['name']}",
        call_id=body.get("approval_request_id") or body["id"],
        arguments=pretty(body["arguments"]),
        output=None if body.get("output") is None else pretty(body["output"]),
        error=None if error is None else plain_text({"type": "mcp_call", "error": error}),
        status=body.get("status") or "",
        took="",
        in_context=in_context,
    )


def _answer(body: dict[str, Any], row: ToolCall | None, *, in_context: bool) -> Answer:
    output = body["output"]
    return Answer(
        id=body["id"],
        name=row.name if row is not None else "",
        call_id=body["call_id"],
        output=pretty(output if isinstance(output, str) else [_without_data(part) for part in output]),
        in_context=in_context,
    )


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_text":
        return part
    return {"type": part["type"], "source": _source(part)}
