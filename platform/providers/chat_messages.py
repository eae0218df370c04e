"""Converts items to the messages of a chat completion: calls with their outputs, earlier reasoning, and the rest.

Consecutive calls become one assistant message, each output a `tool` message.
"""

import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

import orjson

from conversations.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    AssistantMessage,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    InputImage,
    InputMessage,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    OutputText,
    Reasoning,
    ShellCall,
    ShellCallOutput,
    StoredItem,
    ToolSearchCall,
    ToolSearchOutput,
    known_fields,
)
from core.records import record
from engine.calls.client_tools import called_name, upstream_name
from engine.converter.calls import CUSTOM_INPUT
from engine.converter.segments import ReasoningCipher, ReasoningContent
from engine.converter.upstream_items import ENCRYPTED
from providers import dialects
from providers.chat_parts import Media, PartWriter
from providers.dialects import Dialect
from providers.hosted_calls import past_call, upstream_call_ids

Message = dict[str, Any]
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
UNREADABLE_ARGUMENTS = "unreadable_arguments"
"""Property that holds the arguments of an earlier call that are not a JSON object."""
NO_OUTPUT = "There is no output yet: the call is still in progress."
"""Placeholder for the output of a call that is still in progress."""


class CallExtras:
    """Call extras of a conversation: data that an upstream wants back with its calls. Stored in reasoning items."""

    def __init__(self, cipher: ReasoningCipher | None = None, items: Iterable[StoredItem] = ()) -> None:
        self._kept: list[Message] = []
        for item in items:
            # Extras are only stored in items without text. Decrypting all other items would be too expensive.
            if isinstance(item, Reasoning) and item.encrypted_content and not item.content and not item.summary:
                content = cipher.decrypt(item.encrypted_content) if cipher is not None else None
                self._kept += content.calls if content is not None else ()

    def add_to(self, call: Message, *, upstream_call_id: str | None = None) -> Message:
        """Return the call with its extras, if it has any. Each extra is used once."""
        # By id, or else by name: clients that keep the conversation themselves do not send the upstream's ids of hosted
        # calls.
        call_id = upstream_call_id or call["id"]
        name = (call.get("function") or call.get("custom") or {}).get("name")
        found = next((kept for kept in self._kept if kept["call_id"] == call_id), None)
        found = found or next((kept for kept in self._kept if kept["name"] == name), None)
        if found is None:
            return call
        self._kept.remove(found)
        return {**call, **found["extras"]}


@record
class CallWriter:
    """Writer of the calls and outputs of one turn. `custom_tools`: the upstream supports custom tools."""

    parts: PartWriter = field(default_factory=PartWriter)
    extras: CallExtras = field(default_factory=CallExtras)
    custom_tools: bool = False

    def call(self, item: StoredItem) -> Message | None:
        """Return an entry for the `tool_calls` of an assistant message; None if the item is not a call."""
        if isinstance(item, CustomToolCall) and self.custom_tools:
            custom = {"name": called_name(item.namespace, item.name), "input": item.input}
            return self.extras.add_to({"id": item.call_id, "type": "custom", "custom": custom})
        called = _function(item)
        if called is None:
            return None
        call_id, name, arguments = called
        function = {"name": name, "arguments": as_object(arguments)}
        upstream_call_id = item.upstream_call_id if isinstance(item, HostedCall) else None
        return self.extras.add_to(
            {"id": call_id, "type": "function", "function": function}, upstream_call_id=upstream_call_id
        )

    def output(self, item: StoredItem) -> tuple[Message, list[Media]] | None:
        """Return a tool message and the media for a user message; None if the item is not an output."""
        media: list[Media] = []
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                text, media = self.parts.tool_output(item.output)
            case ComputerCallOutput():
                text, media = self.parts.tool_output([item.output])
            case ShellCallOutput():
                text = _json(known_fields(item.output))
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
                    image = InputImage(type="input_image", image_url=past.image, detail="auto")
                    placeholder, media = self.parts.tool_output([image])
                    return _tool(past.id, f"{past.output}\n{placeholder}"), media
                return _tool(past.id, past.output), []
        return _tool(item.call_id, text), media


def _function(item: StoredItem) -> tuple[str, str, str] | None:
    match item:
        case FunctionCall():
            return item.call_id, called_name(item.namespace, item.name), item.arguments
        case CustomToolCall():
            return item.call_id, called_name(item.namespace, item.name), _json({CUSTOM_INPUT: item.input})
        case ComputerCall():
            return item.call_id, "computer", _json(_actions(item))
        case ShellCall():
            return item.call_id, "shell", _json(known_fields(item.action))
        case LocalShellCall():
            action = known_fields(item.action)
            return item.call_id, "local_shell", _json({key: action[key] for key in action if key != "type"})
        case ApplyPatchCall():
            return item.call_id, "apply_patch", _json({"operation": known_fields(item.operation)})
        case ToolSearchCall():
            arguments = item.arguments if item.query is None else {"query": item.query}
            return _search_id(item), "tool_search", _json(arguments or {})
    past = past_call(item)
    return (past.id, past.name, past.arguments) if past is not None else None


def _actions(call: ComputerCall) -> Message:
    named = {"action": call.action, "actions": call.actions}
    return {name: known_fields(action) for name, action in named.items() if action is not None}


def as_object(arguments: str) -> str:
    """Return the arguments of a call as the text of one JSON object, which strict servers require.

    Models write half objects, several objects in a row, or values that only some parsers accept. vLLM, llama.cpp and
    Ollama parse the arguments of earlier calls, and refuse the whole conversation if any of them are not an object.
    Unreadable arguments are kept as a string, so that the model sees its own text.
    """
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except orjson.JSONDecodeError:
        # Python's parser accepts NaN and line ends in strings.
        with suppress(ValueError, TypeError, RecursionError):
            value = json.loads(arguments, strict=False)
            if isinstance(value, dict):
                return orjson.dumps(value).decode()
    return _json({UNREADABLE_ARGUMENTS: arguments}) if arguments.strip() else "{}"


def rename_calls(messages: Iterable[Message], new_ids: Mapping[str, str]) -> None:
    """Replace the ids of calls and of their outputs. `new_ids` maps old ids to new ids."""
    if not new_ids:
        return
    for message in messages:
        if (answered := message.get("tool_call_id")) is not None:
            message["tool_call_id"] = new_ids.get(answered, answered)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{**call, "id": new_ids.get(call["id"], call["id"])} for call in calls]


def shorten_call_ids(messages: Iterable[Message]) -> None:
    """Replace the ids of calls that Mistral's servers refuse: only ids of nine letters or digits are accepted."""
    for message in messages:
        if (answered := message.get("tool_call_id")) is not None:
            message["tool_call_id"] = _short_id(answered)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in calls]


def _short_id(call_id: str) -> str:
    return call_id if _SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def without_executed_approvals(items: Sequence[StoredItem]) -> Sequence[StoredItem]:
    """Return the items without approval requests for calls that were run.

    Both the request and the item of the call would be written as calls, so the model would read the same call twice.
    """
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)} - {None}
    if not made:
        return items
    return [item for item in items if not (isinstance(item, McpApprovalRequest) and item.id in made)]


def _search_id(item: ToolSearchCall | ToolSearchOutput) -> str:
    # Hosted tool searches have no call id. They are answered in order, so a constant is sufficient.
    return item.call_id or "tool_search"


def _named(tool: Mapping[str, Any]) -> Message:
    # Names and a description are enough: the tools that were found are among the functions of later turns.
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


# Reasoning fields that contain the upstream's own entries, with signatures, instead of text.
_ENTRY_FIELDS = {"reasoning_details", "thinking_blocks"}


class ReasoningWriter:
    """Adds reasoning to the messages of one turn while they are written.

    `context`: the client's choice between `current_turn` and `all_turns`; None without a choice.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        cipher: ReasoningCipher | None = None,
        items: Sequence[StoredItem],
        context: str | None = None,
    ) -> None:
        self._field = dialect.reasoning_field
        self._needs_field = dialect.needs_reasoning
        self._cipher = cipher
        self._waiting: list[ReasoningContent] = []
        self._size = (0, 0)
        # Reasoning before the last user message is only sent to models that were trained with it, or if the client asks
        # for it: it costs tokens and rarely helps to answer a new question.
        chosen = {"all_turns": True, "current_turn": dialect.needs_reasoning}
        all_turns = chosen.get(context or "", dialect.all_turns)
        earlier = 0 if all_turns else after_last_user_message(items)
        self._skip_until = items[earlier - 1] if earlier else None

    def follow(self, item: StoredItem, written: list[Message]) -> None:
        """Process an item that was just written: keep its reasoning, or add kept reasoning to its assistant message."""
        if self._skip_until is not None:
            if item is self._skip_until:
                self._skip_until = None
        elif isinstance(item, Reasoning):
            self._waiting.append(self._content(item))
        before, self._size = self._size, _size(written)
        if not self._waiting or before == self._size:
            return
        message = _assistant_message(written, before[0], may_join=not isinstance(item, InputMessage))
        if message is not None:
            self._add(message)
        self._waiting.clear()

    def complete(self, written: Sequence[Message]) -> None:
        """Add an empty reasoning field to messages with calls that lack it, if the upstream requires the field."""
        if self._needs_field:
            for message in written:
                if "tool_calls" in message:
                    message.setdefault(self._field, "")

    def _content(self, item: Reasoning) -> ReasoningContent:
        content = self._cipher.decrypt(item.encrypted_content) if self._cipher and item.encrypted_content else None
        if content is not None:
            return content
        return ReasoningContent(text="".join(part.text for part in item.content or ()))

    def _add(self, message: Message) -> None:
        if self._field in _ENTRY_FIELDS:
            details = (entry for content in self._waiting for entry in content.details)
            # Encrypted content of a Responses upstream cannot be read by any other upstream.
            entries = [entry for entry in details if entry.get("type") != ENCRYPTED]
            if entries:
                message[self._field] = [*message.get(self._field, ()), *entries]
            return
        text = "\n\n".join(content.text for content in self._waiting if content.text)
        if not text:
            return
        content = message["content"]
        match self._field:
            case dialects.THINKING_PARTS:
                thinking = {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
                parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
                message["content"] = [thinking, *parts]
            case dialects.THINK_TAGS:
                message["content"] = f"<think>\n{text}\n</think>\n\n{content or ''}"
            case field:
                message[field] = "\n\n".join(filter(None, (message.get(field), text)))


def after_last_user_message(items: Sequence[StoredItem]) -> int:
    """Return the index after the last message of the user; 0 if there is none."""
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        if isinstance(item, InputMessage) and item.role == "user":
            return position + 1
    return 0


def _size(written: list[Message]) -> tuple[int, int]:
    # The number of messages, and of calls in the last message. One of them changes if an item has added anything.
    return len(written), len(written[-1].get("tool_calls", ())) if written else 0


def _assistant_message(written: list[Message], first: int, *, may_join: bool) -> Message | None:
    # The new assistant message, or the earlier one into which a call was merged.
    new = next((message for message in written[first:] if message["role"] == "assistant"), None)
    if new is None and may_join and first and written[first - 1]["role"] == "assistant":
        return written[first - 1]
    return new


@record
class MessageFormat:
    """Format of messages that an upstream understands, by default a format that all upstreams understand.

    `short_call_ids`: ids of calls have nine letters and digits.
    """

    custom_tools: bool = False
    developer_role: bool = False
    short_call_ids: bool = False


_PLAIN = MessageFormat()


def messages(
    instructions: str | None,
    items: Sequence[StoredItem],
    *,
    parts: PartWriter | None = None,
    reasoning: ReasoningWriter | None = None,
    extras: CallExtras | None = None,
    message_format: MessageFormat = _PLAIN,
) -> list[Message]:
    """Return the conversation as chat messages. Without a `reasoning` writer, no reasoning is sent back."""
    parts = parts or PartWriter()
    calls = CallWriter(parts=parts, extras=extras or CallExtras(), custom_tools=message_format.custom_tools)
    written: list[Message] = []
    pending_media: list[Message] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for item in without_executed_approvals(items):
        match item:
            case InputMessage():
                written += _flush_media(pending_media)
                # Many servers do not know `developer`, OpenAI's newer name for `system`.
                role = "system" if item.role == "developer" and not message_format.developer_role else item.role
                written.append({"role": role, "content": parts.content(item.parts())})
            case AssistantMessage():
                written += _flush_media(pending_media)
                written += _assistant(item)
            case _:
                _add_called(item, calls, written, pending_media)
        if reasoning is not None:
            reasoning.follow(item, written)
    paired = pair_outputs(written + _flush_media(pending_media))
    if reasoning is not None:
        reasoning.complete(paired)
    # After the pairing: pairing needs the unique ids of items, and upstreams may use an id several times.
    rename_calls(paired, upstream_call_ids(items))
    if message_format.short_call_ids:
        shorten_call_ids(paired)
    return paired


def _flush_media(parts: list[Message]) -> list[Message]:
    # Images and files of tool outputs. They come after all tool messages, which upstreams require to be consecutive.
    if not parts:
        return []
    flushed: list[Message] = [{"role": "user", "content": [*parts]}]
    parts.clear()
    return flushed


def _assistant(item: AssistantMessage) -> list[Message]:
    text = "".join(part.text for part in item.parts() if isinstance(part, OutputText))
    refusal = "".join(part.refusal for part in item.parts() if not isinstance(part, OutputText))
    if refusal:
        return [{"role": "assistant", "content": text or None, "refusal": refusal}]
    # The text is empty if the answer was cut before its first word, for example. Many servers refuse an empty message.
    return [{"role": "assistant", "content": text}] if text else []


def _add_called(item: StoredItem, calls: CallWriter, written: list[Message], pending_media: list[Message]) -> None:
    # An item of a hosted call is both a call and an output. Items that are neither are not for models.
    if (call := calls.call(item)) is not None:
        written += _flush_media(pending_media)
        _add_call(written, call)
    if (answer := calls.output(item)) is not None:
        output, media = answer
        if media:
            # Several calls may have images, so each image names its call.
            source = _call_description(written, output["tool_call_id"])
            for medium in media:
                pending_media += [{"type": "text", "text": f"{medium.label} of the output of {source}:"}, medium.part]
        written.append(output)


def _call_description(written: Sequence[Message], call_id: str) -> str:
    called = (call for message in reversed(written) for call in message.get("tool_calls", ()))
    call: Message = next((call for call in called if call["id"] == call_id), {})
    name = (call.get("function") or call.get("custom") or {}).get("name")
    return f"'{name}' (call {call_id})" if name else f"call {call_id}"


def _add_call(written: list[Message], call: Message) -> None:
    # Text and calls of one turn belong in a single assistant message.
    if not written or written[-1]["role"] != "assistant":
        written.append({"role": "assistant", "content": None})
    written[-1].setdefault("tool_calls", []).append(call)
    written[-1]["content"] = written[-1]["content"] or None
