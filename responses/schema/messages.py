"""Convert `previous_input_messages`, a conversation in the format of `engine.messages`, back to items.

Messages that this server itself has generated, such as descriptions of tools, are skipped, because each request
contains its tools.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import regex
from pydantic import Field

from conversations.items import (
    MAX_TEXT,
    AssistantMessage,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    InputPart,
    InputText,
    OutputPart,
    OutputText,
    Reasoning,
    ReasoningText,
    StoredItem,
)
from core.errors import InvalidValue, MissingParameter
from core.http.wire import STRING_OR, Wire
from core.ids import new_id
from engine.calls.client_tools import upstream_name
from engine.messages import FUNCTIONS, LEGEND, TOOLS_TITLE
from responses.schema.tools import CustomToolParam, NamespaceToolParam, ToolParam

Role = Literal["system", "developer", "user", "assistant", "tool"]
_PARAM = "previous_input_messages"
_NOT_IN_NAMES = regex.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME = 64
# Recipients of messages that are not tool calls.
_NON_TOOL_RECIPIENTS = {None, "user", "assistant", "all"}


class TextPart(Wire):
    """A text part of a message."""

    type: Literal["text"]
    text: Annotated[str, Field(max_length=MAX_TEXT)]


class Author(Wire):
    """The author of a message. Tools have a name."""

    role: Role
    name: str | None = None


class PreviousMessage(Wire):
    """A message of the conversation so far. The role is set in `role`, in `author`, or in both."""

    role: Role | None = None
    author: Author | None = None
    name: str | None = None
    content: Annotated[Annotated[str, Field(max_length=MAX_TEXT)] | list[TextPart], STRING_OR]
    channel: Literal["analysis", "commentary", "final"] | None = None
    recipient: str | None = None
    call_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    content_type: str | None = None

    def texts(self) -> list[str]:
        """Return the text of each part."""
        return [self.content] if isinstance(self.content, str) else [part.text for part in self.content]


def history(messages: Sequence[PreviousMessage], *, instructed: bool, tools: Sequence[ToolParam]) -> list[StoredItem]:
    """Convert messages to items.

    `instructed` is true if the request has its own instructions, which replace the system message. `tools` are the
    tools of the request; calls of its custom tools become custom tool calls.
    """
    custom = frozenset(_custom(tools))
    items: list[StoredItem] = []
    # Calls without an output, by name, in order.
    waiting: dict[str, deque[str]] = defaultdict(deque)
    for index, message in enumerate(messages):
        where, texts = f"{_PARAM}[{index}]", message.texts()
        match _role(message, where=where):
            # The instructions of the request replace the system message of the earlier conversation.
            case "system" if instructed:
                continue
            case "system" | "developer" | "user" as role:
                if role != "user":
                    # Skip messages that this server adds when it shows a conversation.
                    texts = [text for text in texts if text != LEGEND and not text.startswith(TOOLS_TITLE)]
                if texts:
                    items.append(InputMessage(role=role, content=[InputText(text=text) for text in texts]))
            case "assistant" if message.recipient not in _NON_TOOL_RECIPIENTS:
                name, call_id = _function(message.recipient or ""), message.call_id or new_id("call")
                waiting[name].append(call_id)
                if name in custom:
                    items.append(CustomToolCall(call_id=call_id, name=name, input="".join(texts)))
                else:
                    items.append(FunctionCall(call_id=call_id, name=name, arguments="".join(texts)))
            case "assistant" if message.channel == "analysis":
                items.append(Reasoning(summary=[], content=[ReasoningText(text=text) for text in texts]))
            case "assistant":
                parts: list[OutputPart] = [OutputText(text=text) for text in texts]
                phase: Literal["commentary"] | None = "commentary" if message.channel == "commentary" else None
                items.append(AssistantMessage(content=parts, phase=phase))
            case "tool":
                given = message.name or (message.author.name if message.author else None)
                if given is None:
                    raise MissingParameter(f"{where}.name")
                name = _function(given)
                # An output without an id belongs to the oldest call of this tool that has no output.
                if not waiting[name] or (message.call_id is not None and message.call_id not in waiting[name]):
                    raise InvalidValue(f"No tool call found for this output of '{given}'.", param=where)
                call_id = message.call_id or waiting[name][0]
                waiting[name].remove(call_id)
                output: list[InputPart] = [InputText(text=text) for text in texts]
                kind = CustomToolCallOutput if name in custom else FunctionCallOutput
                items.append(kind(call_id=call_id, output=output))
    return items


def _custom(tools: Sequence[ToolParam]) -> Iterator[str]:
    for tool in tools:
        if isinstance(tool, CustomToolParam):
            yield tool.name
        elif isinstance(tool, NamespaceToolParam):
            yield from (
                upstream_name(tool.name, inner.name) for inner in tool.tools if isinstance(inner, CustomToolParam)
            )


def _role(message: PreviousMessage, *, where: str) -> Role:
    author = message.author.role if message.author else None
    role = message.role or author
    if role is None:
        raise MissingParameter(f"{where}.role")
    if author is not None and role != author:
        raise InvalidValue(f"Invalid role: 'role' is '{role}' but 'author.role' is '{author}'.", param=f"{where}.role")
    return role


def _function(recipient: str) -> str:
    # Recipients may contain characters that upstreams reject in function names.
    return _NOT_IN_NAMES.sub("__", recipient.removeprefix(FUNCTIONS))[:_MAX_NAME] or "tool"
