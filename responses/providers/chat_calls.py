"""Calls and their outputs → the messages of a chat completion.

Upstreams know functions: a call of any other tool is written as one of the function that stands for it, and its output
as that function's. Every call has its output right behind it, since upstreams refuse anything else.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from conversations.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    InputImage,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    ShellCall,
    ShellCallOutput,
    StoredItem,
    ToolSearchCall,
    ToolSearchOutput,
)
from responses.engine.calls.client_tools import upstream_name
from responses.engine.chat.call_segments import CUSTOM_INPUT
from responses.providers import hosted_calls
from responses.providers.chat_extras import CallExtras
from responses.providers.chat_parts import PartWriter

Message = dict[str, Any]
NO_OUTPUT = "There is no output yet: the call is still being worked on."
"""What stands in for an output that has not come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWriter:
    """Writes calls and outputs for one turn. `custom_tools`: the upstream knows custom tools itself."""

    parts: PartWriter = field(default_factory=PartWriter)
    extras: CallExtras = field(default_factory=CallExtras)
    custom_tools: bool = False

    def call(self, item: StoredItem) -> Message | None:
        """A call, as it stands among the `tool_calls` of an assistant message; None for any other item."""
        if isinstance(item, CustomToolCall) and self.custom_tools:
            custom = {"name": upstream_name(item.namespace, item.name), "input": item.input}
            return self.extras.added_to({"id": item.call_id, "type": "custom", "custom": custom})
        called = _function(item)
        if called is None:
            return None
        call_id, name, arguments = called
        function = {"name": name, "arguments": arguments}
        return self.extras.added_to({"id": call_id, "type": "function", "function": function})

    def output(self, item: StoredItem) -> tuple[Message, list[Message]] | None:
        """The output of a call, and what the user has to show beside it; None for any other item."""
        beside: list[Message] = []
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                text, beside = self.parts.tool_output(item.output)
            case ComputerCallOutput():
                text, beside = "The screen is shown next.", [self.parts.part(item.output)]
            case ShellCallOutput():
                text = _json([entry.model_dump(exclude_none=True) for entry in item.output])
            case LocalShellCallOutput():
                return _tool(item.id, item.output), []
            case ApplyPatchCallOutput():
                text = _json({"status": item.status, "output": item.output or ""})
            case McpApprovalResponse(approve=False):
                reason = f" The reason: {item.reason}" if item.reason else ""
                return _tool(item.approval_request_id, f"The user did not approve of this call.{reason}"), []
            case ToolSearchOutput():
                return _tool(_search_id(item), _json({"loaded": [*map(_named, item.tools)]})), []
            case _:
                run = hosted_calls.answered(item)
                return (_tool(*run), self._drawn(item)) if run is not None else None
        return _tool(item.call_id, text), beside

    def _drawn(self, item: StoredItem) -> list[Message]:
        """The picture that a call made; a model that sees none reads a note in its place."""
        if not isinstance(item, ImageGenerationCall) or item.data_url is None:
            return []
        return [self.parts.part(InputImage(type="input_image", image_url=item.data_url, detail="auto"))]


def _function(item: StoredItem) -> tuple[str, str, str] | None:
    """Id, function and arguments of a call."""
    match item:
        case FunctionCall():
            return item.call_id, upstream_name(item.namespace, item.name), item.arguments
        case CustomToolCall():
            return item.call_id, upstream_name(item.namespace, item.name), _json({CUSTOM_INPUT: item.input})
        case ComputerCall():
            return item.call_id, "computer", _json(item.model_dump(include={"action", "actions"}, exclude_none=True))
        case ShellCall():
            return item.call_id, "shell", _json(item.action.model_dump(exclude_none=True))
        case LocalShellCall():
            return item.call_id, "local_shell", _json(item.action.model_dump(exclude={"type"}, exclude_none=True))
        case ApplyPatchCall():
            return item.call_id, "apply_patch", _json({"operation": item.operation.model_dump()})
        case ToolSearchCall():
            return _search_id(item), "tool_search", _json(item.arguments or {})
    return hosted_calls.called(item)


def unrepeated(items: Sequence[StoredItem]) -> Sequence[StoredItem]:
    """The items without the requests for approval whose calls were made: they would be read as calls of their own."""
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)} - {None}
    if not made:
        return items
    return [item for item in items if not (isinstance(item, McpApprovalRequest) and item.id in made)]


def _search_id(item: ToolSearchCall | ToolSearchOutput) -> str:
    """Searches of the server's have no call id of their own; they are answered one after the other."""
    return item.call_id or "tool_search"


def _named(tool: Mapping[str, Any]) -> Message:
    """What a model needs to hear of a tool that was found: the tool itself is among its functions from then on."""
    match tool:
        case {"type": "mcp", "server_label": label, "allowed_tools": list() as names}:
            functions = [upstream_name(label, name) for name in names]
            return {"functions": functions, "description": tool.get("server_description") or ""}
    functions = [upstream_name(tool.get("name"), inner["name"]) for inner in tool.get("tools", ())] or [
        tool.get("name") or tool["type"]
    ]
    return {"functions": functions, "description": tool.get("description") or ""}


def _tool(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def settled(messages: Sequence[Message]) -> list[Message]:
    """The messages with each output behind its call, in the order of the calls.

    Calls may be answered late, or not yet where the tool is asynchronous. An id counts as often as it was used: some
    upstreams begin to count anew in each turn.
    """
    if not any("tool_calls" in message for message in messages):
        return list(messages)
    answers: dict[str, deque[Message]] = defaultdict(deque)
    for message in messages:
        if message["role"] == "tool":
            answers[message["tool_call_id"]].append(message)
    asked = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    written: list[Message] = []
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in asked:
            continue
        written.append(message)
        for call in message.get("tool_calls", ()):
            waiting = answers[call["id"]]
            written.append(waiting.popleft() if waiting else _tool(call["id"], NO_OUTPUT))
    return written
