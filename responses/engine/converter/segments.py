"""Segments: items of a turn while they are being written. This module has the queue and messages.

The output of a turn is a queue of segments. Only the head is live: its deltas are emitted immediately, those of later
segments wait. Items therefore never interleave on the wire, even if an upstream interleaves parallel calls. A message
is complete as soon as another segment starts; a call stays open until the end of the turn, because upstreams may
continue it later.
"""

from abc import ABC, abstractmethod
from typing import Literal

from typing_extensions import override

from kernel.ids import new_id
from responses.engine.events.types import (
    Body,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
    RefusalDelta,
    RefusalDone,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Segment(ABC):
    """Item that is being written. It has no output index, and emits no events, until `open_at` is called."""

    prefix: str
    # True if the upstream may continue the segment after another one has started.
    stays_open = False

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.output_index = -1
        self.status: ItemStatus = "in_progress"
        # Final status. Set before the segment is closed, and also for segments that become no item.
        self.outcome: ItemStatus | None = None

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
        return [*self.finish(), OutputItemDone(output_index=self.output_index, item=self.body())]

    @property
    def ready(self) -> bool:
        """True if the segment can be opened."""
        return True

    @property
    def hidden(self) -> bool:
        """True if the segment certainly becomes no item, so that later segments need not wait for it."""
        return False

    @property
    def is_empty(self) -> bool:
        """True if the segment becomes no item; only valid once `outcome` is set."""
        return False

    @property
    def is_whole(self) -> bool:
        """True if nothing can be missing although the turn was cut; only valid once another segment has started."""
        return True

    @abstractmethod
    def body(self, *, empty: bool = False) -> Body:
        """Return the current item. `empty`: with empty values, as in `output_item.added`."""

    @abstractmethod
    def flush(self) -> list[Event]:
        """Return the deltas that were held back until the segment became live."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """Return the `done` events inside the item."""


class _TextPart:
    """Content part of a message that is being written: output text or a refusal."""

    def __init__(self, kind: Literal["output_text", "refusal"]) -> None:
        self.kind = kind
        self.text: list[str] = []
        self.logprobs: list[Body] = []
        self.annotations: list[Body] = []

    def body(self, *, empty: bool = False) -> Body:
        text = "" if empty else "".join(self.text)
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        if empty:
            return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return {"type": "output_text", "text": text, "annotations": self.annotations, "logprobs": self.logprobs}


class MessageSegment(Segment):
    """Message of the model: text and refusal parts in the order of their arrival."""

    prefix = "msg"

    def __init__(self, *, hold_blank: bool) -> None:
        super().__init__()
        self.parts: list[_TextPart] = []
        # Some upstreams write "\n\n" between reasoning and a call. White space is held back until text follows, and
        # dropped if none does.
        self._hold_blank = hold_blank

    @property
    @override
    def is_empty(self) -> bool:
        return not self.parts or (self._hold_blank and not self.live)

    @property
    @override
    def ready(self) -> bool:
        return bool(self.parts) and not self._hold_blank

    def write(self, kind: Literal["output_text", "refusal"], text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the current part, or to a new part if the kind changes."""
        if self._hold_blank and text.strip():
            self._hold_blank = False
        # The common case comes first and is kept cheap: one delta per token.
        if self.live and self.parts and self.parts[-1].kind == kind:
            part = self.parts[-1]
            part.text.append(text)
            if logprobs:
                part.logprobs.extend(logprobs)
            return [self._delta(kind, text, logprobs)]
        return self._begin_or_wait(kind, text, logprobs)

    def cite(self, annotations: list[Body]) -> bool:
        """Add citations to the current text part; return False if there is none.

        Their events are emitted when the part is complete, since positions refer to the whole text.
        """
        if not self.parts or self.parts[-1].kind != "output_text":
            return False
        self.parts[-1].annotations += annotations
        return True

    def _begin_or_wait(self, kind: Literal["output_text", "refusal"], text: str, logprobs: list[Body]) -> list[Event]:
        events: list[Event] = []
        if not self.parts or self.parts[-1].kind != kind:
            if self.live:
                events += self._close_part()
            self.parts.append(_TextPart(kind))
            if self.live:
                events.append(self._part_added())
        part = self.parts[-1]
        part.text.append(text)
        part.logprobs.extend(logprobs)
        if self.live:
            events.append(self._delta(kind, text, logprobs))
        return events

    @override
    def flush(self) -> list[Event]:
        events: list[Event] = []
        parts, self.parts = self.parts, []
        for part in parts:
            if self.parts:
                events += self._close_part()
            self.parts.append(part)
            text = "".join(part.text)
            events += [self._part_added(), self._delta(part.kind, text, list(part.logprobs))]
        return events

    @override
    def finish(self) -> list[Event]:
        return self._close_part() if self.parts else []

    @override
    def body(self, *, empty: bool = False) -> Body:
        content = [] if empty else [part.body() for part in self.parts]
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def _part_added(self) -> ContentPartAdded:
        index = len(self.parts) - 1
        part = self.parts[-1].body(empty=True)
        return ContentPartAdded(item_id=self.id, output_index=self.output_index, content_index=index, part=part)

    def _close_part(self) -> list[Event]:
        index = len(self.parts) - 1
        part = self.parts[-1]
        text = "".join(part.text)
        done: Event
        cited: list[Event] = []
        if part.kind == "refusal":
            done = RefusalDone(item_id=self.id, output_index=self.output_index, content_index=index, refusal=text)
        else:
            place = (self.id, self.output_index, index)
            cited = [OutputTextAnnotationAdded(*place, number, one) for number, one in enumerate(part.annotations)]
            done = OutputTextDone(
                item_id=self.id,
                output_index=self.output_index,
                content_index=index,
                text=text,
                logprobs=part.logprobs,
            )
        closed = ContentPartDone(item_id=self.id, output_index=self.output_index, content_index=index, part=part.body())
        return [*cited, done, closed]

    def _delta(self, kind: Literal["output_text", "refusal"], text: str, logprobs: list[Body]) -> Event:
        index = len(self.parts) - 1
        if kind == "refusal":
            return RefusalDelta(item_id=self.id, output_index=self.output_index, content_index=index, delta=text)
        return OutputTextDelta(
            item_id=self.id, output_index=self.output_index, content_index=index, delta=text, logprobs=logprobs
        )


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

    def push(self, segment: Segment) -> list[Event]:
        """Append a segment. Closes the segments before it that cannot be continued."""
        self._waiting.append(segment)
        return self._advance()

    def show(self) -> list[Event]:
        """Open the head if it is ready. To be called after each write to a segment that is not live."""
        return self._advance()

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

    def _advance(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting:
            head = self._waiting[0]
            if head.hidden:
                # It never blocks the segments after it.
                self._hidden.append(self._waiting.pop(0))
            elif len(self._waiting) > 1 and not head.stays_open:
                events += self._close_head("completed", head)
            else:
                if not head.live and head.ready:
                    events += self._open(head)
                return events
        return events

    def _close_head(self, status: ItemStatus, head: Segment) -> list[Event]:
        self._waiting.pop(0)
        head.outcome = status
        if head.is_empty:
            return []
        # A segment that never became live is opened and closed in one go.
        events = [] if head.live else self._open(head)
        self.closed.append(head)
        return events + head.close(status)

    def _open(self, head: Segment) -> list[Event]:
        index = self._next_index
        self._next_index += 1
        return head.open_at(index)
