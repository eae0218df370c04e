"""Converts items to the messages of a chat completion.

Consecutive calls become one assistant message, each output a `tool` message.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import (
    AssistantMessage,
    InputMessage,
    OutputText,
    StoredItem,
)
from responses.providers.chat_calls import CallExtras, CallWriter, pair_outputs, without_executed_approvals
from responses.providers.chat_parts import PartWriter, user_message
from responses.providers.chat_reasoning import ReasoningWriter

Message = dict[str, Any]


def messages(
    instructions: str | None,
    items: Sequence[StoredItem],
    *,
    parts: PartWriter | None = None,
    reasoning: ReasoningWriter | None = None,
    extras: CallExtras | None = None,
    custom_tools: bool = False,
    developer_role: bool = False,
) -> list[Message]:
    """Return the conversation as chat messages. Without a writer for it, reasoning is not sent back."""
    parts = parts or PartWriter()
    calls = CallWriter(parts=parts, extras=extras or CallExtras(), custom_tools=custom_tools)
    written: list[Message] = []
    pending_media: list[Message] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for item in without_executed_approvals(items):
        match item:
            case InputMessage():
                written += _flush_media(pending_media)
                written.append({"role": _role(item.role, known=developer_role), "content": parts.content(item.parts())})
            case AssistantMessage():
                written += _flush_media(pending_media)
                written.append(_assistant(item))
            case _:
                _add_called(item, calls, written, pending_media)
        if reasoning is not None:
            reasoning.follow(item, written)
    return pair_outputs(written + _flush_media(pending_media))


def _flush_media(parts: list[Message]) -> list[Message]:
    # Images and files of tool outputs. They come after all tool messages, which upstreams require to be consecutive.
    if not parts:
        return []
    flushed, parts[:] = [user_message(parts)], []
    return flushed


def _role(role: str, *, known: bool) -> str:
    # Many servers do not know `developer`, OpenAI's newer name for `system`.
    return "system" if role == "developer" and not known else role


def _assistant(item: AssistantMessage) -> Message:
    text = "".join(part.text for part in item.parts() if isinstance(part, OutputText))
    refusal = "".join(part.refusal for part in item.parts() if not isinstance(part, OutputText))
    message: Message = {"role": "assistant", "content": text or (None if refusal else "")}
    if refusal:
        message["refusal"] = refusal
    return message


def _add_called(item: StoredItem, calls: CallWriter, written: list[Message], pending_media: list[Message]) -> None:
    # An item of a hosted call is both a call and an output. Items that are neither are not for models.
    if (call := calls.call(item)) is not None:
        written += _flush_media(pending_media)
        _add_call(written, call)
    if (answer := calls.output(item)) is not None:
        output, media = answer
        written.append(output)
        pending_media += media


def _add_call(written: list[Message], call: Message) -> None:
    # Text and calls of one turn belong in a single assistant message.
    if not written or written[-1]["role"] != "assistant":
        written.append({"role": "assistant", "content": None})
    written[-1].setdefault("tool_calls", []).append(call)
    written[-1]["content"] = written[-1]["content"] or None
