"""Segments: items of a turn while they are being written. This module has the queue, messages and reasoning.

The output of a turn is a queue of segments. Only the head is live: its deltas are emitted immediately, and deltas of
later segments wait. So items never interleave on the wire, even if an upstream interleaves parallel calls. A message
is complete as soon as another segment starts; a call stays open until the end of the turn, because upstreams may
continue it later.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from typing_extensions import override

from core.ids import new_id
from engine.events.types import (
    Body,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    ReasoningSummaryTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Segment(ABC):
    """Item that is being written. It has no output index, and emits no events, until `open_at` is called."""

    prefix: str
    # True if the upstream may continue the segment after another one has started.
    stays_open = False
    # True if the upstream said that the segment is complete.
    is_done = False

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.output_index = -1
        self.status: ItemStatus = "in_progress"
        # Final status. Set before the segment is closed, and also for segments that do not become items.
        self.outcome: ItemStatus | None = None
        # Fields of the upstream's item that the platform does not define. Final once `outcome` is set.
        self.additional: Body = {}

    @property
    def live(self) -> bool:
        """True once `output_item.added` was emitted."""
        return self.output_index >= 0

    def open_at(self, output_index: int) -> list[Event]:
        """Return `output_item.added` and the events that were held back."""
        self.output_index = output_index
        return [OutputItemAdded(output_index=output_index, item=self.body(empty=True)), *self.flush()]

    def close(self, status: ItemStatus) -> list[Event]:
        """Return the closing events. The item is final afterwards."""
        self.status = status
        return [*self.finish(), OutputItemDone(output_index=self.output_index, item=self.item())]

    @property
    def ready(self) -> bool:
        """True if the segment can be opened."""
        return True

    @property
    def hidden(self) -> bool:
        """True if the segment will certainly not become an item, so that later segments need not wait for it."""
        return False

    @property
    def is_empty(self) -> bool:
        """True if the segment does not become an item; only valid once `outcome` is set."""
        return False

    @property
    def is_whole(self) -> bool:
        """True if the segment is complete even in a turn that was cut; only valid once another segment has started."""
        return True

    @abstractmethod
    def body(self, *, empty: bool = False) -> Body:
        """Return the current item. `empty`: with empty values, as in `output_item.added`."""

    def item(self) -> Body:
        """Return the finished item."""
        return {**self.body(), **self.additional} if self.additional else self.body()

    def flush(self) -> list[Event]:
        """Return the deltas that were held back until the segment became live."""
        return []

    def finish(self) -> list[Event]:
        """Return the `done` events inside the item."""
        return []


PartKind = Literal["output_text", "refusal", "reasoning_text", "summary_text"]


class Part:
    """Part of an item that is being written. `key` is the upstream's key of the part, `index` the platform's index."""

    def __init__(self, kind: PartKind, *, index: int, key: int | None) -> None:
        self.kind = kind
        self.index = index
        self.key = key
        self.text: list[str] = []
        self.logprobs: list[Body] = []
        self.annotations: list[Body] = []
        self.additional: Body = {}

    def body(self, *, empty: bool = False) -> Body:
        """Return the part as in the API. `empty`: as in the event that announces it."""
        text = "" if empty else "".join(self.text)
        if self.kind != "output_text":
            additional = {} if empty else self.additional
            return {"type": self.kind, "refusal" if self.kind == "refusal" else "text": text, **additional}
        if empty:
            return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        body: Body = {"type": "output_text", "text": text, "annotations": self.annotations, "logprobs": self.logprobs}
        return {**body, **self.additional} if self.additional else body

    def added(self, item_id: str, output_index: int) -> Event:
        """Return the event that announces the part."""
        added = ReasoningSummaryPartAdded if self.kind == "summary_text" else ContentPartAdded
        return added(item_id, output_index, self.index, self.body(empty=True))

    def delta(self, item_id: str, output_index: int, text: str, logprobs: list[Body]) -> Event:
        """Return the event that adds text to the part."""
        # The common case comes first and is kept cheap: one delta per token.
        match self.kind:
            case "output_text":
                return OutputTextDelta(item_id, output_index, self.index, text, logprobs)
            case "refusal":
                return RefusalDelta(item_id, output_index, self.index, text)
            case "reasoning_text":
                return ReasoningTextDelta(item_id, output_index, self.index, text)
            case "summary_text":
                return ReasoningSummaryTextDelta(item_id, output_index, self.index, text)

    def done(self, item_id: str, output_index: int) -> list[Event]:
        """Return the closing events of the part."""
        # Citations are emitted last, because their positions refer to the whole text.
        place = (item_id, output_index, self.index)
        cited = [
            OutputTextAnnotationAdded(*place, number, annotation) for number, annotation in enumerate(self.annotations)
        ]
        return [*cited, *part_done(*place, self.body())]


def part_done(item_id: str, output_index: int, index: int, part: Body) -> list[Event]:
    """Return the events that close a complete part."""
    place = (item_id, output_index, index)
    match part["type"]:
        case "refusal":
            return [RefusalDone(*place, part["refusal"]), ContentPartDone(*place, part)]
        case "reasoning_text":
            return [ReasoningTextDone(*place, part["text"]), ContentPartDone(*place, part)]
        case "summary_text":
            return [ReasoningSummaryTextDone(*place, part["text"]), ReasoningSummaryPartDone(*place, part)]
    return [OutputTextDone(*place, part["text"], part["logprobs"]), ContentPartDone(*place, part)]


class PartsSegment(Segment):
    """Item that consists of text parts. The last part is the one that is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Part] = []

    def begin(self, kind: PartKind, key: int | None = None) -> list[Event]:
        """Start a part, unless it is the current one."""
        if self.parts and (self.parts[-1].kind, self.parts[-1].key) == (kind, key):
            return []
        closed = self.finish() if self.live else []
        # Parts of the summary and of the content are numbered separately.
        index = sum((part.kind == "summary_text") is (kind == "summary_text") for part in self.parts)
        part = Part(kind, index=index, key=key)
        self.parts.append(part)
        return [*closed, part.added(self.id, self.output_index)] if self.live else []

    def append(self, text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the current part."""
        part = self.parts[-1]
        part.text.append(text)
        if logprobs:
            part.logprobs += logprobs
        return [part.delta(self.id, self.output_index, text, logprobs)] if self.live else []

    @override
    def flush(self) -> list[Event]:
        events: list[Event] = []
        for position, part in enumerate(self.parts):
            events.append(part.added(self.id, self.output_index))
            if part.text or part.logprobs:
                events.append(part.delta(self.id, self.output_index, "".join(part.text), list(part.logprobs)))
            if position + 1 < len(self.parts):
                events += part.done(self.id, self.output_index)
        return events

    @override
    def finish(self) -> list[Event]:
        return self.parts[-1].done(self.id, self.output_index) if self.parts else []


class MessageSegment(PartsSegment):
    """Message of the model: text and refusal parts in the order of their arrival."""

    prefix = "msg"

    def __init__(self, *, hold_blank: bool = False, phase: str | None = None) -> None:
        super().__init__()
        self.phase = phase
        # Some upstreams write "\n\n" between reasoning and a call. White space is held back until text follows, and
        # dropped if no text follows.
        self._hold_blank = hold_blank

    @property
    @override
    def is_empty(self) -> bool:
        return not self.parts or (self._hold_blank and not self.live)

    @property
    @override
    def ready(self) -> bool:
        return bool(self.parts) and not self._hold_blank

    @property
    def has_words(self) -> bool:
        """True if there is more than white space."""
        return any(piece.strip() for part in self.parts for piece in part.text)

    def write(self, kind: PartKind, text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the current part, or to a new part if the kind changes."""
        if self._hold_blank and text.strip():
            self._hold_blank = False
        if self.parts and self.parts[-1].kind == kind:
            return self.append(text, logprobs)
        return self.begin(kind) + self.append(text, logprobs)

    @override
    def body(self, *, empty: bool = False) -> Body:
        content = [] if empty else [part.body() for part in self.parts]
        body: Body = {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}
        return {**body, "phase": self.phase} if self.phase else body


class SegmentQueue:
    """Segments of one turn. Methods return the events to emit."""

    def __init__(self, *, first_output_index: int) -> None:
        self._next_index = first_output_index
        self._waiting: list[Segment] = []
        self._hidden: list[Segment] = []
        self.closed: list[Segment] = []

    @property
    def tail(self) -> Segment | None:
        """The newest segment that is still open."""
        return self._waiting[-1] if self._waiting else None

    @property
    def began(self) -> bool:
        """True if the turn has any segment."""
        return bool(self._waiting or self._hidden or self.closed)

    @property
    def has_message(self) -> bool:
        """True if the turn has a message with text."""
        return any(isinstance(segment, MessageSegment) and segment.has_words for segment in self._segments)

    @property
    def has_output(self) -> bool:
        """True if the turn has any output other than reasoning."""
        return self.has_message or any(not isinstance(segment, PartsSegment) for segment in self._segments)

    @property
    def _segments(self) -> list[Segment]:
        return [*self.closed, *self._waiting, *self._hidden]

    @property
    def sent(self) -> list[Segment]:
        """Segments whose events were emitted."""
        return [*self.closed, *(segment for segment in self._waiting if segment.live)]

    def drop_unsent(self) -> None:
        """Remove the segments without emitted events."""
        self._waiting = [segment for segment in self._waiting if segment.live]
        self._hidden = []

    def push(self, segment: Segment) -> list[Event]:
        """Append a segment. Closes the segments before it that cannot be continued."""
        self._waiting.append(segment)
        return self.advance()

    def advance(self) -> list[Event]:
        """Close complete segments, and open the head if it is ready.

        To be called after each write to a segment that is not live.
        """
        events: list[Event] = []
        while self._waiting:
            head = self._waiting[0]
            if head.hidden:
                # A hidden segment never blocks the segments after it.
                self._hidden.append(self._waiting.pop(0))
            elif head.is_done or (len(self._waiting) > 1 and not head.stays_open):
                events += self._close_head("completed", head)
            else:
                if not head.live and head.ready:
                    events += self._open(head)
                break
        return events

    def end(self, status: ItemStatus) -> list[Event]:
        """End the turn and close all segments.

        The status `incomplete` applies to the last item, and to earlier calls whose arguments were cut.
        """
        events: list[Event] = []
        while self._waiting:
            head = self._waiting[0]
            is_complete = len(self._waiting) > 1 and head.is_whole
            events += self._close_head("completed" if is_complete else status, head)
        for segment in self._hidden:
            segment.outcome = status
        return events

    def _close_head(self, status: ItemStatus, head: Segment) -> list[Event]:
        self._waiting.pop(0)
        head.outcome = status
        if head.is_empty:
            return []
        # A segment that never became live is opened directly before it is closed.
        events = [] if head.live else self._open(head)
        self.closed.append(head)
        return events + head.close(status)

    def _open(self, head: Segment) -> list[Event]:
        index = self._next_index
        self._next_index += 1
        return head.open_at(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningContent:
    """Encrypted content of a reasoning item.

    `text` is the raw reasoning, `details` the upstream's own entries, which are sent back unchanged. `calls` is the
    data that the upstream wants back with its calls, each entry with `call_id`, `name` and `extras`.
    """

    text: str = ""
    details: Sequence[Body] = ()
    calls: Sequence[Body] = ()


class ReasoningCipher(Protocol):
    """Encrypts reasoning so that only this server can read it."""

    def encrypt(self, content: ReasoningContent) -> str:
        """Return the `encrypted_content` of a reasoning item."""
        ...

    def decrypt(self, token: str) -> ReasoningContent | None:
        """Return the content; None if it was not encrypted by this server for this team."""
        ...


class ReasoningSegment(PartsSegment):
    """Reasoning item: parts of a summary, and parts of the raw reasoning if clients may see it (`shown`)."""

    prefix = "rs"
    # True if the item has its list of raw parts even when there are none.
    lists_content = False

    def __init__(self, *, cipher: ReasoningCipher | None = None, shown: bool = True) -> None:
        super().__init__()
        self.shown = shown
        self.hidden_text: list[str] = []
        self._cipher = cipher
        self._encrypted: str | None = None

    def content(self) -> ReasoningContent:
        """Return the content to encrypt."""
        return ReasoningContent(text=self.raw_text(), details=self.details())

    def details(self) -> Sequence[Body]:
        """Return the upstream's own entries."""
        return ()

    def raw_text(self) -> str:
        """Return the raw reasoning, shown or not."""
        shown = [text for part in self.parts if part.kind == "reasoning_text" for text in part.text]
        return "".join(shown if self.shown else self.hidden_text)

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        if self._cipher is not None:
            self._encrypted = self._cipher.encrypt(self.content())
        return super().close(status)

    @override
    def body(self, *, empty: bool = False) -> Body:
        parts = [] if empty else [part.body() for part in self.parts]
        summary = [part for part in parts if part["type"] == "summary_text"]
        body: Body = {"id": self.id, "type": "reasoning", "status": self.status, "summary": summary}
        content = [part for part in parts if part["type"] == "reasoning_text"]
        if content or (self.lists_content and self.shown):
            body["content"] = content
        return body if self._encrypted is None else {**body, "encrypted_content": self._encrypted}
