"""Events of a stream: one class per type, with fields in the order of OpenAI's API, and their serialization.

The engine and the adapters create events; the recorder numbers them. `frame` serializes an event as a server-sent
event, which is also its form in the event log.
"""

import secrets
from dataclasses import field
from typing import get_args

import orjson

from engine.events.base import (
    BaseEvent,
    Body,
    CommandEvent,
    ItemEvent,
    PartEvent,
    ResponseEvent,
    SummaryEvent,
    event_type,
)
from engine.events.tools import (
    CodeInterpreterCallCodeDelta,
    CodeInterpreterCallCodeDone,
    HostedToolEvent,
    McpCallArgumentsDelta,
)

# Other packages import everything about events from here. The base module exists because `tools` needs it too.
__all__ = ["Body"]


@event_type("response.created")
class ResponseCreated(ResponseEvent):
    """The response exists; always the first event."""


@event_type("response.queued")
class ResponseQueued(ResponseEvent):
    """The run waits for a worker."""


@event_type("response.in_progress")
class ResponseInProgress(ResponseEvent):
    """The run starts."""


@event_type("response.completed")
class ResponseCompleted(ResponseEvent):
    """Terminal: the run succeeded."""


@event_type("response.incomplete")
class ResponseIncomplete(ResponseEvent):
    """Terminal: cut by a token limit or a content filter."""


@event_type("response.failed")
class ResponseFailed(ResponseEvent):
    """Terminal: the run failed; see `response.error`."""


@event_type("error")
class ErrorEvent(BaseEvent):
    """Error of the run, nested in `error` as the SDKs expect; `response.failed` follows."""

    error: Body


@event_type("response.output_item.added")
class OutputItemAdded(BaseEvent):
    """An item was added, with empty values."""

    output_index: int
    item: Body


@event_type("response.output_item.done")
class OutputItemDone(BaseEvent):
    """An item is complete."""

    output_index: int
    item: Body


@event_type("response.content_part.added")
class ContentPartAdded(PartEvent):
    """A content part was added, with empty values."""

    part: Body


@event_type("response.content_part.done")
class ContentPartDone(PartEvent):
    """A content part is complete."""

    part: Body


@event_type("response.output_text.delta")
class OutputTextDelta(PartEvent):
    """Next piece of a text."""

    delta: str
    logprobs: list[Body] = field(default_factory=list)


@event_type("response.output_text.done")
class OutputTextDone(PartEvent):
    """Complete text of a content part."""

    text: str
    logprobs: list[Body] = field(default_factory=list)


@event_type("response.output_text.annotation.added")
class OutputTextAnnotationAdded(PartEvent):
    """A citation was added to a text part, at `annotation_index` of its `annotations`."""

    annotation_index: int
    annotation: Body


@event_type("response.refusal.delta")
class RefusalDelta(PartEvent):
    """Next piece of a refusal."""

    delta: str


@event_type("response.refusal.done")
class RefusalDone(PartEvent):
    """Complete refusal."""

    refusal: str


@event_type("response.reasoning_text.delta")
class ReasoningTextDelta(PartEvent):
    """Next piece of raw reasoning."""

    delta: str


@event_type("response.reasoning_text.done")
class ReasoningTextDone(PartEvent):
    """Complete raw reasoning of a content part."""

    text: str


@event_type("response.reasoning_summary_part.added")
class ReasoningSummaryPartAdded(SummaryEvent):
    """A part of a reasoning summary was added."""

    part: Body


@event_type("response.reasoning_summary_part.done")
class ReasoningSummaryPartDone(SummaryEvent):
    """A part of a reasoning summary is complete."""

    part: Body


@event_type("response.reasoning_summary_text.delta")
class ReasoningSummaryTextDelta(SummaryEvent):
    """Next piece of a reasoning summary."""

    delta: str


@event_type("response.reasoning_summary_text.done")
class ReasoningSummaryTextDone(SummaryEvent):
    """Complete text of a part of a reasoning summary."""

    text: str


@event_type("response.function_call_arguments.delta")
class FunctionCallArgumentsDelta(ItemEvent):
    """Next piece of a call's arguments."""

    delta: str


@event_type("response.function_call_arguments.done")
class FunctionCallArgumentsDone(ItemEvent):
    """Complete arguments. `name` is not in OpenAI's current schema, but older SDKs read it."""

    name: str
    arguments: str


@event_type("response.custom_tool_call_input.delta")
class CustomToolCallInputDelta(ItemEvent):
    """Next piece of a custom tool's input."""

    delta: str


@event_type("response.custom_tool_call_input.done")
class CustomToolCallInputDone(ItemEvent):
    """Complete input of a custom tool."""

    input: str


@event_type("response.shell_call_command.added")
class ShellCallCommandAdded(CommandEvent):
    """A command of a shell call was added."""

    command: str


@event_type("response.shell_call_command.delta")
class ShellCallCommandDelta(CommandEvent):
    """Next piece of a shell command."""

    delta: str


@event_type("response.shell_call_command.done")
class ShellCallCommandDone(CommandEvent):
    """Complete shell command."""

    command: str


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
        body[1:-1],
        padding,
    )
