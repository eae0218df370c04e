"""The items of one turn while they are being written: messages; reasoning and calls have modules of their own.

A turn's output is a queue of segments. Only the head is live, its deltas leave at once; what belongs to a later segment
waits, so that items never interleave on the wire even when an upstream mixes parallel calls. A segment of text is over
as soon as another one begins; a call stays open to the end of the turn, since upstreams may come back to it.
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
    """An item that is being written. `events` collects what has not been handed out yet, without an output index
    until `open_at` has given it one."""

    prefix: str
    # Whether more of it may come after another segment has begun.
    stays_open = False

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.output_index = -1
        self.status: ItemStatus = "in_progress"
        # How it ends, known before it is closed, and of what becomes no item as well.
        self.outcome: ItemStatus | None = None

    @property
    def live(self) -> bool:
        """Whether the segment has been opened on the wire."""
        return self.output_index >= 0

    def open_at(self, output_index: int) -> list[Event]:
        """Open the item on the wire, with everything that waited."""
        self.output_index = output_index
        return [OutputItemAdded(output_index=output_index, item=self.body(empty=True)), *self.flush()]

    def close(self, status: ItemStatus) -> list[Event]:
        """End the item; it is final from here on."""
        self.status = status
        return [*self.finish(), OutputItemDone(output_index=self.output_index, item=self.body())]

    @property
    def ready(self) -> bool:
        """Whether there is something to show."""
        return True

    @property
    def hidden(self) -> bool:
        """Whether it is known that this becomes no item, and nobody has to wait for its end."""
        return False

    @property
    def is_empty(self) -> bool:
        """Nothing worth an item was written; asked when `outcome` is known."""
        return False

    @property
    def is_whole(self) -> bool:
        """Nothing of it can be missing, though the turn was cut; asked once another segment has begun."""
        return True

    @abstractmethod
    def body(self, *, empty: bool = False) -> Body:
        """The item as the wire shows it now; `empty`: with the zero values of `output_item.added`."""

    @abstractmethod
    def flush(self) -> list[Event]:
        """The deltas that waited for the segment to become live."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The `done` events inside of the item."""


class _TextPart:
    """A part of a message that grows: output text or a refusal."""

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
    """A message of the model: parts of text and refusal in the order of their arrival."""

    prefix = "msg"

    def __init__(self, *, hold_blank: bool) -> None:
        super().__init__()
        self.parts: list[_TextPart] = []
        # Some upstreams write "\n\n" between reasoning and a call: blanks wait for words, and vanish without any.
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
        """Append to the current part, or begin one where the kind changes."""
        if self._hold_blank and text.strip():
            self._hold_blank = False
        if self.live and self.parts and self.parts[-1].kind == kind:
            part = self.parts[-1]
            part.text.append(text)
            if logprobs:
                part.logprobs.extend(logprobs)
            return [self._delta(kind, text, logprobs)]
        return self._begin_or_wait(kind, text, logprobs)

    def cite(self, annotations: list[Body]) -> bool:
        """(11) Put these to the text that is being written; false when there is none. They are told when it is done."""
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
    """The segments of one turn, and the events that leave as they grow."""

    def __init__(self, *, first_output_index: int) -> None:
        self._next_index = first_output_index
        self._waiting: list[Segment] = []
        self._aside: list[Segment] = []
        self.closed: list[Segment] = []

    @property
    def tail(self) -> Segment | None:
        """The newest segment; text that continues goes there."""
        return self._waiting[-1] if self._waiting else None

    @property
    def began(self) -> bool:
        """Whether anything was written in this turn."""
        return bool(self._waiting or self._aside or self.closed)

    def push(self, segment: Segment) -> list[Event]:
        """Begin a segment. A head that cannot grow any more is closed."""
        self._waiting.append(segment)
        return self._advance()

    def show(self) -> list[Event]:
        """Open the head if it has become showable; call after each write to a segment that is not live."""
        return self._advance()

    def end(self, status: ItemStatus) -> list[Event]:
        """Close everything: the turn is over. `incomplete` marks the last item, and calls that were cut before it."""
        events: list[Event] = []
        while self._waiting:
            head = self._waiting[0]
            over = len(self._waiting) > 1 and head.is_whole
            events += self._close_head("completed" if over else status, head)
        for segment in self._aside:
            segment.outcome = status
        return events

    def _advance(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting:
            head = self._waiting[0]
            if head.hidden:
                self._aside.append(self._waiting.pop(0))
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
        events = [] if head.live else self._open(head)
        self.closed.append(head)
        return events + head.close(status)

    def _open(self, head: Segment) -> list[Event]:
        index = self._next_index
        self._next_index += 1
        return head.open_at(index)
