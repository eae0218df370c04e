"""The events of a stream: one class per type, fields in the order of the wire, and their bytes.

Engine and adapters make events; the recorder numbers them. `frame` writes an event as server-sent-events bytes, which
is also how the log keeps it. Source: section 4.1 of the API surface specification.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import orjson

from responses.engine.events.mcp import McpCallArgumentsDelta, McpEvent
from responses.engine.events.tools import CodeInterpreterCallCodeDelta, CodeInterpreterCallCodeDone, HostedToolEvent

Body = dict[str, Any]
"""An item, part or response as the wire shows it."""


@dataclass(slots=True)
class ResponseCreated:
    """The run exists; always the first event."""

    response: Body
    type: Literal["response.created"] = "response.created"


@dataclass(slots=True)
class ResponseQueued:
    """The run waits for a worker."""

    response: Body
    type: Literal["response.queued"] = "response.queued"


@dataclass(slots=True)
class ResponseInProgress:
    """The run begins."""

    response: Body
    type: Literal["response.in_progress"] = "response.in_progress"


@dataclass(slots=True)
class ResponseCompleted:
    """Terminal."""

    response: Body
    type: Literal["response.completed"] = "response.completed"


@dataclass(slots=True)
class ResponseIncomplete:
    """Terminal: cut by a limit or a filter."""

    response: Body
    type: Literal["response.incomplete"] = "response.incomplete"


@dataclass(slots=True)
class ResponseFailed:
    """Terminal: `response.error` says why."""

    response: Body
    type: Literal["response.failed"] = "response.failed"


@dataclass(slots=True)
class ErrorEvent:
    """What went wrong, in the nested shape of the wire; `response.failed` follows."""

    error: Body
    type: Literal["error"] = "error"


@dataclass(slots=True)
class OutputItemAdded:
    """An item opens, with zero values."""

    output_index: int
    item: Body
    type: Literal["response.output_item.added"] = "response.output_item.added"


@dataclass(slots=True)
class OutputItemDone:
    """An item is final."""

    output_index: int
    item: Body
    type: Literal["response.output_item.done"] = "response.output_item.done"


@dataclass(slots=True)
class ContentPartAdded:
    """A part opens."""

    item_id: str
    output_index: int
    content_index: int
    part: Body
    type: Literal["response.content_part.added"] = "response.content_part.added"


@dataclass(slots=True)
class ContentPartDone:
    """A part is final."""

    item_id: str
    output_index: int
    content_index: int
    part: Body
    type: Literal["response.content_part.done"] = "response.content_part.done"


@dataclass(slots=True)
class OutputTextDelta:
    """Some more text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Body] = field(default_factory=list)
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


@dataclass(slots=True)
class OutputTextDone:
    """The whole text of a part."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[Body] = field(default_factory=list)
    type: Literal["response.output_text.done"] = "response.output_text.done"


@dataclass(slots=True)
class OutputTextAnnotationAdded:
    """A part of text got a citation; it stands in the part's `annotations` at that index."""

    item_id: str
    output_index: int
    content_index: int
    annotation_index: int
    annotation: Body
    type: Literal["response.output_text.annotation.added"] = "response.output_text.annotation.added"


@dataclass(slots=True)
class RefusalDelta:
    """Some more of a refusal."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    type: Literal["response.refusal.delta"] = "response.refusal.delta"


@dataclass(slots=True)
class RefusalDone:
    """The whole refusal."""

    item_id: str
    output_index: int
    content_index: int
    refusal: str
    type: Literal["response.refusal.done"] = "response.refusal.done"


@dataclass(slots=True)
class ReasoningTextDelta:
    """Some more raw reasoning."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"


@dataclass(slots=True)
class ReasoningTextDone:
    """The whole raw reasoning."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"


@dataclass(slots=True)
class ReasoningSummaryPartAdded:
    """A paragraph of a reasoning summary opens."""

    item_id: str
    output_index: int
    summary_index: int
    part: Body
    type: Literal["response.reasoning_summary_part.added"] = "response.reasoning_summary_part.added"


@dataclass(slots=True)
class ReasoningSummaryPartDone:
    """A paragraph of a reasoning summary is final."""

    item_id: str
    output_index: int
    summary_index: int
    part: Body
    type: Literal["response.reasoning_summary_part.done"] = "response.reasoning_summary_part.done"


@dataclass(slots=True)
class ReasoningSummaryTextDelta:
    """Some more of a reasoning summary."""

    item_id: str
    output_index: int
    summary_index: int
    delta: str
    type: Literal["response.reasoning_summary_text.delta"] = "response.reasoning_summary_text.delta"


@dataclass(slots=True)
class ReasoningSummaryTextDone:
    """The whole text of a paragraph of a reasoning summary."""

    item_id: str
    output_index: int
    summary_index: int
    text: str
    type: Literal["response.reasoning_summary_text.done"] = "response.reasoning_summary_text.done"


@dataclass(slots=True)
class FunctionCallArgumentsDelta:
    """Some more of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"


@dataclass(slots=True)
class FunctionCallArgumentsDone:
    """The whole arguments. `name` is an extra that older SDKs read."""

    item_id: str
    output_index: int
    name: str
    arguments: str
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"


@dataclass(slots=True)
class CustomToolCallInputDelta:
    """Some more of the input of a custom tool."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"


@dataclass(slots=True)
class CustomToolCallInputDone:
    """The whole input of a custom tool."""

    item_id: str
    output_index: int
    input: str
    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"


@dataclass(slots=True)
class ShellCallCommandAdded:
    """A command of a shell call opens."""

    output_index: int
    command_index: int
    command: str
    type: Literal["response.shell_call_command.added"] = "response.shell_call_command.added"


@dataclass(slots=True)
class ShellCallCommandDelta:
    """Some more of a command."""

    output_index: int
    command_index: int
    delta: str
    type: Literal["response.shell_call_command.delta"] = "response.shell_call_command.delta"


@dataclass(slots=True)
class ShellCallCommandDone:
    """The whole command."""

    output_index: int
    command_index: int
    command: str
    type: Literal["response.shell_call_command.done"] = "response.shell_call_command.done"


Delta = (
    OutputTextDelta
    | RefusalDelta
    | ReasoningTextDelta
    | ReasoningSummaryTextDelta
    | FunctionCallArgumentsDelta
    | CustomToolCallInputDelta
    | ShellCallCommandDelta
    | McpCallArgumentsDelta
    | CodeInterpreterCallCodeDelta
)
Terminal = ResponseCompleted | ResponseIncomplete | ResponseFailed
Event = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | Terminal
    | ErrorEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | Delta
    | OutputTextDone
    | OutputTextAnnotationAdded
    | RefusalDone
    | ReasoningTextDone
    | ReasoningSummaryPartAdded
    | ReasoningSummaryPartDone
    | ReasoningSummaryTextDone
    | FunctionCallArgumentsDone
    | CustomToolCallInputDone
    | ShellCallCommandAdded
    | ShellCallCommandDone
    | McpEvent
    | HostedToolEvent
    | CodeInterpreterCallCodeDone
)

_NOISE = secrets.token_urlsafe(12).encode()
DONE_FRAME = b"data: [DONE]\n\n"
_TEXT_DELTA = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,'
    b'"item_id":"%b","output_index":%d,"content_index":%d,"delta":%b,"logprobs":%b%b}\n\n'
)
_DELTAS = get_args(Delta)


def frame(event: Event, sequence_number: int, *, obfuscate: bool = False) -> bytes:
    """The event as one server-sent event. `obfuscate` pads deltas, so that their length tells nothing on the wire."""
    if isinstance(event, OutputTextDelta):
        return _TEXT_DELTA % (
            sequence_number,
            event.item_id.encode(),
            event.output_index,
            event.content_index,
            orjson.dumps(event.delta),
            orjson.dumps(event.logprobs) if event.logprobs else b"[]",
            _padding(event.delta) if obfuscate else b"",
        )
    body = orjson.dumps(event)
    padding = _padding(event.delta) if obfuscate and isinstance(event, _DELTAS) else b""
    kind = event.type.encode()
    return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b%b}\n\n' % (
        kind,
        kind,
        sequence_number,
        # `type` is the last field of every class, so that it can be cut off here and stand first on the wire.
        body[1 : -len(kind) - 11],
        padding,
    )


def _padding(delta: str) -> bytes:
    """Noise up to the next multiple of 16 characters. Only its length matters, so all deltas share it."""
    return b',"obfuscation":"%b"' % _NOISE[: 16 - len(delta) % 16]
