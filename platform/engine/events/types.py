"""Events of a stream: one class per type, with fields in the order of OpenAI's API, and their serialization.

The engine and the adapters create events; the recorder numbers them. `frame` serializes an event as a server-sent
event, which is also its form in the event log.
"""

import secrets
from dataclasses import dataclass, field
from typing import Literal, get_args

import orjson

from engine.events.base import Body, CommandEvent, ItemEvent, PartEvent, ResponseEvent, SummaryEvent
from engine.events.tools import (
    CodeInterpreterCallCodeDelta,
    CodeInterpreterCallCodeDone,
    HostedToolEvent,
    McpCallArgumentsDelta,
)

# Everything about events is imported from here; the base module only exists because the tools' events need it, too.
__all__ = ["Body"]


@dataclass(slots=True)
class ResponseCreated(ResponseEvent):
    """The response exists; always the first event."""

    type: Literal["response.created"] = "response.created"


@dataclass(slots=True)
class ResponseQueued(ResponseEvent):
    """The run waits for a worker."""

    type: Literal["response.queued"] = "response.queued"


@dataclass(slots=True)
class ResponseInProgress(ResponseEvent):
    """The run starts."""

    type: Literal["response.in_progress"] = "response.in_progress"


@dataclass(slots=True)
class ResponseCompleted(ResponseEvent):
    """Terminal: the run succeeded."""

    type: Literal["response.completed"] = "response.completed"


@dataclass(slots=True)
class ResponseIncomplete(ResponseEvent):
    """Terminal: cut by a token limit or a content filter."""

    type: Literal["response.incomplete"] = "response.incomplete"


@dataclass(slots=True)
class ResponseFailed(ResponseEvent):
    """Terminal: the run failed; see `response.error`."""

    type: Literal["response.failed"] = "response.failed"


@dataclass(slots=True)
class ErrorEvent:
    """Error of the run, nested in `error` as the SDKs expect; `response.failed` follows."""

    error: Body
    type: Literal["error"] = "error"


@dataclass(slots=True)
class OutputItemAdded:
    """An item was added, with empty values."""

    output_index: int
    item: Body
    type: Literal["response.output_item.added"] = "response.output_item.added"


@dataclass(slots=True)
class OutputItemDone:
    """An item is complete."""

    output_index: int
    item: Body
    type: Literal["response.output_item.done"] = "response.output_item.done"


@dataclass(slots=True)
class ContentPartAdded(PartEvent):
    """A content part was added, with empty values."""

    part: Body
    type: Literal["response.content_part.added"] = "response.content_part.added"


@dataclass(slots=True)
class ContentPartDone(PartEvent):
    """A content part is complete."""

    part: Body
    type: Literal["response.content_part.done"] = "response.content_part.done"


@dataclass(slots=True)
class OutputTextDelta(PartEvent):
    """Next piece of a text."""

    delta: str
    logprobs: list[Body] = field(default_factory=list)
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


@dataclass(slots=True)
class OutputTextDone(PartEvent):
    """Complete text of a content part."""

    text: str
    logprobs: list[Body] = field(default_factory=list)
    type: Literal["response.output_text.done"] = "response.output_text.done"


@dataclass(slots=True)
class OutputTextAnnotationAdded(PartEvent):
    """A citation was added to a text part, at `annotation_index` of its `annotations`."""

    annotation_index: int
    annotation: Body
    type: Literal["response.output_text.annotation.added"] = "response.output_text.annotation.added"


@dataclass(slots=True)
class RefusalDelta(PartEvent):
    """Next piece of a refusal."""

    delta: str
    type: Literal["response.refusal.delta"] = "response.refusal.delta"


@dataclass(slots=True)
class RefusalDone(PartEvent):
    """Complete refusal."""

    refusal: str
    type: Literal["response.refusal.done"] = "response.refusal.done"


@dataclass(slots=True)
class ReasoningTextDelta(PartEvent):
    """Next piece of raw reasoning."""

    delta: str
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"


@dataclass(slots=True)
class ReasoningTextDone(PartEvent):
    """Complete raw reasoning of a content part."""

    text: str
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"


@dataclass(slots=True)
class ReasoningSummaryPartAdded(SummaryEvent):
    """A part of a reasoning summary was added."""

    part: Body
    type: Literal["response.reasoning_summary_part.added"] = "response.reasoning_summary_part.added"


@dataclass(slots=True)
class ReasoningSummaryPartDone(SummaryEvent):
    """A part of a reasoning summary is complete."""

    part: Body
    type: Literal["response.reasoning_summary_part.done"] = "response.reasoning_summary_part.done"


@dataclass(slots=True)
class ReasoningSummaryTextDelta(SummaryEvent):
    """Next piece of a reasoning summary."""

    delta: str
    type: Literal["response.reasoning_summary_text.delta"] = "response.reasoning_summary_text.delta"


@dataclass(slots=True)
class ReasoningSummaryTextDone(SummaryEvent):
    """Complete text of a part of a reasoning summary."""

    text: str
    type: Literal["response.reasoning_summary_text.done"] = "response.reasoning_summary_text.done"


@dataclass(slots=True)
class FunctionCallArgumentsDelta(ItemEvent):
    """Next piece of a call's arguments."""

    delta: str
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"


@dataclass(slots=True)
class FunctionCallArgumentsDone(ItemEvent):
    """Complete arguments. `name` is not in OpenAI's current schema, but older SDKs read it."""

    name: str
    arguments: str
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"


@dataclass(slots=True)
class CustomToolCallInputDelta(ItemEvent):
    """Next piece of a custom tool's input."""

    delta: str
    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"


@dataclass(slots=True)
class CustomToolCallInputDone(ItemEvent):
    """Complete input of a custom tool."""

    input: str
    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"


@dataclass(slots=True)
class ShellCallCommandAdded(CommandEvent):
    """A command of a shell call was added."""

    command: str
    type: Literal["response.shell_call_command.added"] = "response.shell_call_command.added"


@dataclass(slots=True)
class ShellCallCommandDelta(CommandEvent):
    """Next piece of a shell command."""

    delta: str
    type: Literal["response.shell_call_command.delta"] = "response.shell_call_command.delta"


@dataclass(slots=True)
class ShellCallCommandDone(CommandEvent):
    """Complete shell command."""

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
    | HostedToolEvent
    | CodeInterpreterCallCodeDone
)

# Padding against side-channel attacks on encrypted streams, see `frame`. Its content carries no meaning. 16 characters.
NOISE = secrets.token_urlsafe(12).encode()
DONE_FRAME = b"data: [DONE]\n\n"
# Text deltas are by far the most frequent events. A template avoids serializing their constant part each time.
_TEXT_DELTA = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,'
    b'"item_id":"%b","output_index":%d,"content_index":%d,"delta":%b,"logprobs":%b%b}\n\n'
)
_DELTAS = get_args(Delta)
# Padding to the next multiple of 16 characters, by the remainder. Only its length matters, so deltas share the noise.
_PADDINGS = [b',"obfuscation":"%b"' % NOISE[: 16 - left] for left in range(16)]


def frame(event: Event, sequence_number: int, *, obfuscate: bool = False) -> bytes:
    """Return the event as one server-sent event.

    `obfuscate` pads deltas: from the sizes of encrypted packets, an observer could otherwise infer the lengths of
    tokens and thereby the text.
    """
    if isinstance(event, OutputTextDelta):
        return _TEXT_DELTA % (
            sequence_number,
            event.item_id.encode(),
            event.output_index,
            event.content_index,
            orjson.dumps(event.delta),
            orjson.dumps(event.logprobs) if event.logprobs else b"[]",
            _PADDINGS[len(event.delta) % 16] if obfuscate else b"",
        )
    body = orjson.dumps(event)
    padding = _PADDINGS[len(event.delta) % 16] if obfuscate and isinstance(event, _DELTAS) else b""
    kind = event.type.encode()
    return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b%b}\n\n' % (
        kind,
        kind,
        sequence_number,
        # `type` is the last field of every class: it is cut off here, because on the wire it comes first.
        body[1 : -len(kind) - 11],
        padding,
    )
