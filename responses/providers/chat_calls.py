"""Converts calls and outputs to messages of a chat completion.

Upstreams only know functions, so a call of any other tool is written as a call of the function that represents it.
Outputs directly follow their calls, because upstreams reject any other order.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
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
    InputImage,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Reasoning,
    ShellCall,
    ShellCallOutput,
    StoredItem,
    ToolSearchCall,
    ToolSearchOutput,
)
from responses.engine.calls.client_tools import upstream_name
from responses.engine.converter.calls import CUSTOM_INPUT
from responses.engine.converter.reasoning import ReasoningCipher
from responses.providers.chat_parts import PartWriter
from responses.providers.hosted_calls import past_call

Message = dict[str, Any]
NO_OUTPUT = "There is no output yet: the call is still in progress."
"""Placeholder for the output of a call that has none yet."""


class CallExtras:
    """Call extras of one conversation: data that an upstream wants back with its calls, stored in reasoning items."""

    def __init__(self, cipher: ReasoningCipher | None = None, items: Iterable[StoredItem] = ()) -> None:
        self._kept: list[Message] = []
        for item in items:
            # Extras are only stored in items without text; decrypting all others would be too expensive.
            if isinstance(item, Reasoning) and item.encrypted_content and not item.content and not item.summary:
                content = cipher.decrypt(item.encrypted_content) if cipher is not None else None
                self._kept += content.calls if content is not None else ()

    def add_to(self, call: Message) -> Message:
        """Return the call with its extras, if it has any. Each extra is used once."""
        # By id, or else by name: a hosted call is sent with the id of its item instead of the upstream's call id.
        name = (call.get("function") or call.get("custom") or {}).get("name")
        found = next((kept for kept in self._kept if kept["call_id"] == call["id"]), None)
        found = found or next((kept for kept in self._kept if kept["name"] == name), None)
        if found is None:
            return call
        self._kept.remove(found)
        return {**call, **found["extras"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWriter:
    """Writer of the calls and outputs of one turn. `custom_tools`: the upstream supports custom tools."""

    parts: PartWriter = field(default_factory=PartWriter)
    extras: CallExtras = field(default_factory=CallExtras)
    custom_tools: bool = False

    def call(self, item: StoredItem) -> Message | None:
        """Return an entry for the `tool_calls` of an assistant message; None if the item is not a call."""
        if isinstance(item, CustomToolCall) and self.custom_tools:
            custom = {"name": upstream_name(item.namespace, item.name), "input": item.input}
            return self.extras.add_to({"id": item.call_id, "type": "custom", "custom": custom})
        called = _function(item)
        if called is None:
            return None
        call_id, name, arguments = called
        function = {"name": name, "arguments": arguments}
        return self.extras.add_to({"id": call_id, "type": "function", "function": function})

    def output(self, item: StoredItem) -> tuple[Message, list[Message]] | None:
        """Return a tool message and media parts for a user message; None if the item is not an output."""
        media: list[Message] = []
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                text, media = self.parts.tool_output(item.output)
            case ComputerCallOutput():
                text, media = "The screenshot follows in the next message.", [self.parts.part(item.output)]
            case ShellCallOutput():
                text = _json([entry.model_dump(exclude_none=True) for entry in item.output])
            case LocalShellCallOutput():
                return _tool(item.id, item.output), []
            case ApplyPatchCallOutput():
                text = _json({"status": item.status, "output": item.output or ""})
            case McpApprovalResponse(approve=False):
                reason = f" The reason: {item.reason}" if item.reason else ""
                return _tool(item.approval_request_id, f"The user did not approve this call.{reason}"), []
            case ToolSearchOutput():
                return _tool(_search_id(item), _json({"loaded": [*map(_named, item.tools)]})), []
            case _:
                past = past_call(item)
                if past is None or past.output is None:
                    return None
                if past.image is not None:
                    media = [self.parts.part(InputImage(type="input_image", image_url=past.image, detail="auto"))]
                return _tool(past.id, past.output), media
        return _tool(item.call_id, text), media


def _function(item: StoredItem) -> tuple[str, str, str] | None:
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
    past = past_call(item)
    return (past.id, past.name, past.arguments) if past is not None else None


def without_executed_approvals(items: Sequence[StoredItem]) -> Sequence[StoredItem]:
    """Return the items without approval requests whose calls were run.

    Such a request would be written as a call as well, and the model would read the same call twice.
    """
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)} - {None}
    if not made:
        return items
    return [item for item in items if not (isinstance(item, McpApprovalRequest) and item.id in made)]


def _search_id(item: ToolSearchCall | ToolSearchOutput) -> str:
    # Hosted tool searches have no call id. They are answered in order, so a constant is sufficient.
    return item.call_id or "tool_search"


def _named(tool: Mapping[str, Any]) -> Message:
    # Names and a description are enough: a tool that was found is among the functions of the following turns.
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


def pair_outputs(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each output directly after its call, in call order.

    Outputs may come later, or be missing if the tool is asynchronous. A call id may be used several times: some
    upstreams number their calls from 0 in each turn.
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
