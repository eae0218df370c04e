"""Converts items to the input of a Responses request.

Item ids are omitted, because the upstream stores no items. Calls are written as calls of the functions that are offered
to upstreams, as for chat completions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from conversations.items import (
    AssistantMessage,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    InputPart,
    InputText,
    OutputText,
    Reasoning,
    StoredItem,
)
from engine.attachments import AttachmentMap
from engine.converter.upstream_items import ENCRYPTED
from engine.turn import TurnRequest
from providers.chat_messages import (
    NO_OUTPUT,
    CallWriter,
    Message,
    after_last_user_message,
    without_executed_approvals,
)
from providers.chat_parts import Media, PartWriter, single_text
from providers.hosted_calls import upstream_call_ids
from tenants.directory import Route

Entry = dict[str, Any]
_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


class InputWriter:
    """Writer of the input of one turn."""

    def __init__(self, route: Route, request: TurnRequest, attachments: AttachmentMap) -> None:
        self._upstream_id = route.upstream.id
        self._can = route.capabilities
        self._cipher = request.cipher
        self._all_turns = request.sampling.reasoning_context == "all_turns"
        self._parts = PartWriter(attachments=attachments)
        self._calls = CallWriter(parts=self._parts, custom_tools=self._can.custom_tools)
        self._custom: set[str] = set()

    def write(self, items: Sequence[StoredItem]) -> list[Entry]:
        """Return the conversation as input entries."""
        items = without_executed_approvals(items)
        # Reasoning before the last user message is only sent if the client asks for it.
        since = 0 if self._all_turns else after_last_user_message(items)
        entries = [
            entry
            for position, item in enumerate(items)
            if position >= since or not isinstance(item, Reasoning)
            for entry in self._item(item)
        ]
        # Upstreams reject a call without an output, so a call that is still in progress gets a placeholder.
        outputs = Counter(entry["call_id"] for entry in entries if entry["type"] in _CALLS.values())
        written: list[Entry] = []
        for entry in entries:
            written.append(entry)
            if entry["type"] in _CALLS:
                outputs[entry["call_id"]] -= 1
                if outputs[entry["call_id"]] < 0:
                    kind = _CALLS[entry["type"]]
                    written.append({"type": kind, "call_id": entry["call_id"], "output": NO_OUTPUT})
        # After the pairing above: upstreams may use an id several times, but the ids of items are unique.
        if new_ids := upstream_call_ids(items):
            for entry in written:
                if (call_id := entry.get("call_id")) in new_ids:
                    entry["call_id"] = new_ids[call_id]
        return written

    def _item(self, item: StoredItem) -> list[Entry]:
        match item:
            case InputMessage():
                parts = item.parts()
                role = "system" if item.role == "developer" and not self._can.developer_role else item.role
                content: str | list[Entry] | None = single_text(parts)
                if content is None or any(part.additional for part in parts):
                    content = [self._part(part) for part in parts]
                message: Entry = {"type": "message", "role": role, "content": content}
                return [_with_phase(message, item)]
            case AssistantMessage():
                return _assistant(item)
            case Reasoning():
                return self._reasoning(item)
        # An item of a hosted call is both a call and an output. Items that are neither are not for models.
        entries: list[Entry] = []
        if (call := self._calls.call(item)) is not None:
            kind = "custom_tool_call" if call["type"] == "custom" else "function_call"
            if kind == "custom_tool_call":
                self._custom.add(call["id"])
            entry: Entry = {"type": kind, "call_id": call["id"], **call[call["type"]]}
            if isinstance(item, FunctionCall | CustomToolCall) and item.caller is not None:
                entry["caller"] = item.caller.model_dump()
            entries.append(entry)
        if (answer := self._calls.output(item)) is not None:
            entries.append(self._answer(item, *answer))
        # If an item becomes two entries, its additional fields belong to neither of them.
        return [{**item.additional, **entries[0]}] if len(entries) == 1 and item.additional else entries

    def _answer(self, item: StoredItem, output_message: Message, media: Sequence[Media]) -> Entry:
        output: str | list[Entry] = output_message["content"]
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            output = item.output if isinstance(item.output, str) else [self._part(part) for part in item.output]
        elif media:
            # Here an output may contain images, so they do not follow in another message.
            text = output_message["content"]
            for medium in media:
                text = text.replace(medium.placeholder, f"[{medium.label}]")
            output = [{"type": "input_text", "text": text}, *(_from_chat(medium.part) for medium in media)]
        call_id = output_message["tool_call_id"]
        kind = "custom_tool_call_output" if call_id in self._custom else "function_call_output"
        return {"type": kind, "call_id": call_id, "output": output}

    def _reasoning(self, item: Reasoning) -> list[Entry]:
        # Encrypted reasoning can only be read by the upstream that created it. Raw reasoning is only sent to upstreams
        # whose capabilities name a field for it.
        content = self._cipher.decrypt(item.encrypted_content) if self._cipher and item.encrypted_content else None
        summary = [{"type": "summary_text", "text": part.text, **part.additional} for part in item.summary]
        reasoning: Entry = {**item.additional, "type": "reasoning", "summary": summary}
        for detail in content.details if content else ():
            if detail.get("type") == ENCRYPTED and detail.get("upstream") == self._upstream_id:
                return [{**reasoning, "encrypted_content": detail["data"]}]
        raw = "".join(part.text for part in item.content or ()) or (content.text if content else "")
        if not self._can.reasoning_field or not raw:
            return []
        return [{**reasoning, "content": [{"type": "reasoning_text", "text": raw}]}]

    def _part(self, part: InputPart) -> Entry:
        entry = {**part.additional, **_from_chat(self._parts.part(part))}
        detail = None if isinstance(part, InputText) else part.detail
        if entry["type"] == "input_text" or (entry["type"] == "input_file" and detail is None):
            return entry
        return {**entry, "detail": detail or "auto"}


def _assistant(item: AssistantMessage) -> list[Entry]:
    # Text alone is sent as a string, which every server accepts.
    parts = item.parts()
    content: str | list[Entry] = "".join(part.text for part in parts if isinstance(part, OutputText))
    if any(not isinstance(part, OutputText) or part.additional for part in parts):
        content = [
            {"type": "output_text", "text": part.text, **part.additional}
            if isinstance(part, OutputText)
            else {"type": "refusal", "refusal": part.refusal, **part.additional}
            for part in parts
        ]
    # Some servers refuse a message without content, as of an answer that was cut before its first word.
    return [_with_phase({"type": "message", "role": "assistant", "content": content}, item)] if content else []


def _with_phase(entry: Entry, message: InputMessage | AssistantMessage) -> Entry:
    return {**message.additional, **entry, **({"phase": message.phase} if message.phase else {})}


def _from_chat(part: Message) -> Entry:
    marks = {name: part[name] for name in ("prompt_cache_breakpoint",) if name in part}
    match part["type"]:
        case "image_url":
            image = part["image_url"]
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto"), **marks}
        case "file":
            return {"type": "input_file", **part["file"], **marks}
    return {"type": "input_text", "text": part["text"], **marks}
