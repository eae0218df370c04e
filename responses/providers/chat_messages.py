"""Items → the messages of a chat completion.

A lone text part becomes a plain string, calls in a row become one assistant message, each output a `tool` message.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import (
    AssistantMessage,
    InputMessage,
    OutputText,
    StoredItem,
)
from responses.providers.chat_calls import CallWriter, settled, unrepeated
from responses.providers.chat_extras import CallExtras
from responses.providers.chat_parts import PartWriter, shown_by_user
from responses.providers.chat_reasoning import ThoughtWriter

Message = dict[str, Any]


def messages(
    instructions: str | None,
    items: Sequence[StoredItem],
    *,
    parts: PartWriter | None = None,
    thoughts: ThoughtWriter | None = None,
    extras: CallExtras | None = None,
    custom_tools: bool = False,
    developer_role: bool = False,
) -> list[Message]:
    """The conversation as an upstream reads it. Without `thoughts`, reasoning is not sent back."""
    parts = parts or PartWriter()
    calls = CallWriter(parts=parts, extras=extras or CallExtras(), custom_tools=custom_tools)
    written: list[Message] = []
    shown: list[Message] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for item in unrepeated(items):
        match item:
            case InputMessage():
                written += _shown(shown)
                written.append({"role": _role(item.role, known=developer_role), "content": parts.content(item.parts())})
            case AssistantMessage():
                written += _shown(shown)
                written.append(_assistant(item))
            case _:
                _add_called(item, calls, written, shown)
        if thoughts is not None:
            thoughts.follow(item, written)
    return settled(written + _shown(shown))


def _shown(parts: list[Message]) -> list[Message]:
    """What tools gave beside their words: behind all of their messages, which upstreams want in a row."""
    if not parts:
        return []
    shown, parts[:] = [shown_by_user(parts)], []
    return shown


def _role(role: str, *, known: bool) -> str:
    """`developer` is OpenAI's newer name for it, which many servers do not know."""
    return "system" if role == "developer" and not known else role


def _assistant(item: AssistantMessage) -> Message:
    text = "".join(part.text for part in item.parts() if isinstance(part, OutputText))
    refusal = "".join(part.refusal for part in item.parts() if not isinstance(part, OutputText))
    message: Message = {"role": "assistant", "content": text or (None if refusal else "")}
    if refusal:
        message["refusal"] = refusal
    return message


def _add_called(item: StoredItem, calls: CallWriter, written: list[Message], shown: list[Message]) -> None:
    """A call, an output, or both in one; other items are settings, or for nobody but clients."""
    if (call := calls.call(item)) is not None:
        written += _shown(shown)
        _add_call(written, call)
    if (answer := calls.output(item)) is not None:
        output, beside = answer
        written.append(output)
        shown += beside


def _add_call(written: list[Message], call: Message) -> None:
    """A call joins the assistant message before it: a model says its words and its calls in one turn."""
    if not written or written[-1]["role"] != "assistant":
        written.append({"role": "assistant", "content": None})
    written[-1].setdefault("tool_calls", []).append(call)
    written[-1]["content"] = written[-1]["content"] or None
