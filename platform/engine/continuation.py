"""Continuation of an answer that was cut: another answer to the same request gives the rest of its message.

Clients see one message. The other answer either repeats the text that was sent, and is passed on from where it has done
so, or its server was given that text and writes only the rest. Only the text of a message can be continued: arguments
of tool calls of two answers do not fit together, and log probabilities, citations and refusals belong to their answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.compaction import token_estimate
from engine.events.types import (
    Body,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
)
from engine.interrupted_items import close_fragment
from engine.state import Fragment
from engine.turn import TurnRequest, TurnResult


class Diverged(Exception):
    """The other answer does not repeat the text that was sent."""


class RestOfText:
    """The rest of a text, from pieces of a text that repeats the part that was sent, or else only has the rest."""

    def __init__(self, sent: str, *, repeats: bool) -> None:
        self._sent = sent
        self._repeats = repeats
        self._position = 0 if repeats else len(sent)

    @property
    def is_reached(self) -> bool:
        """True if the next piece belongs to the rest."""
        return self._position == len(self._sent)

    def feed(self, text: str) -> str:
        """Return the part of the next piece that belongs to the rest. Raises `Diverged`."""
        repeated = text[: len(self._sent) - self._position]
        if not self._sent.startswith(repeated, self._position):
            raise Diverged
        self._position += len(repeated)
        return text[len(repeated) :]

    def whole(self, text: str) -> str:
        """Return the whole text from the other text when it is complete. Raises `Diverged`."""
        if not self.is_reached:
            raise Diverged
        return text if self._repeats else self._sent + text


@dataclass(slots=True)
class _Message:
    """The message that is being sent. `part` is its text part once that has been added."""

    body: Body
    output_index: int
    part: Body | None = None
    pieces: list[str] = field(default_factory=list)


class SentOutput:
    """Output of a turn that was sent to the client: `follow` is called with all events."""

    def __init__(self) -> None:
        self._has_items = False
        self._has_more_than_text = False
        self._message: _Message | None = None

    def follow(self, events: Sequence[Event]) -> None:
        """Read events that are sent."""
        for event in events:
            self._read(event)

    def _read(self, event: Event) -> None:
        message = self._message
        match event:
            case OutputItemAdded(output_index=index, item=item):
                self._has_items = True
                if item["type"] == "message" and message is None:
                    self._message = _Message(item, index)
                elif item["type"] != "reasoning":
                    self._has_more_than_text = True
            case OutputItemDone(item=item) if item["type"] == "reasoning":
                pass
            case ContentPartAdded(part=part) if message is not None and message.part is None:
                message.part = part
                self._has_more_than_text = self._has_more_than_text or part["type"] != "output_text"
            case OutputTextDelta(delta=delta, logprobs=logprobs) if message is not None and not logprobs:
                message.pieces.append(delta)
            case _ if message is not None:
                # Its text is complete, or has parts that another answer cannot continue.
                self._has_more_than_text = True

    @property
    def is_empty(self) -> bool:
        """True if nothing was sent."""
        return not self._has_items

    @property
    def is_reasoning(self) -> bool:
        """True if only reasoning was sent."""
        return self._has_items and self._message is None and not self._has_more_than_text

    @property
    def is_open_text(self) -> bool:
        """True if the last item is a message whose text can be continued."""
        return self._message is not None and not self._has_more_than_text

    @property
    def text(self) -> str:
        """The text of the message."""
        return "" if self._message is None else "".join(self._message.pieces)

    @property
    def message_id(self) -> str:
        """The id of the message; empty if there is none."""
        return "" if self._message is None else str(self._message.body["id"])

    @property
    def message_index(self) -> int:
        """The output index of the message; -1 if there is none."""
        return -1 if self._message is None else self._message.output_index

    @property
    def has_part(self) -> bool:
        """True if the text part of the message was added."""
        return self._message is not None and self._message.part is not None

    def close(self, status: str) -> tuple[Body, list[Event]]:
        """Return the message with its present text, and the events that complete it with a status."""
        if self._message is None:
            raise RuntimeError("there is no message")
        message, part = self._message, self._message.part
        content = [] if part is None else [{**part, "text": self.text}]
        body = {**message.body, "content": content}
        open_part = None if part is None else 0
        fragment = Fragment(output_index=message.output_index, body=body, is_open=True, open_part=open_part)
        body, events = close_fragment(fragment)
        if status != body["status"]:
            body = {**body, "status": status}
            events[-1] = OutputItemDone(output_index=message.output_index, item=body)
        return body, events


class Continuation:
    """Conversion of another answer, whose message becomes the rest of the message that was sent.

    `repeats`: the other answer begins with the text that was sent. Reasoning before the message is left out. Later
    items keep their ids.
    """

    def __init__(self, sent: SentOutput, *, repeats: bool) -> None:
        self._id, self._index = sent.message_id, sent.message_index
        self._has_part = sent.has_part
        self._rest = RestOfText(sent.text, repeats=repeats)
        self.repeats = repeats
        # The message of the other answer, and the difference of output indexes.
        self._other_id = ""
        self._shift = 0

    @property
    def has_begun(self) -> bool:
        """True if the other answer has a message."""
        return bool(self._other_id)

    def read(self, events: Sequence[Event]) -> list[Event]:
        """Return the events that continue the output that was sent. Raises `Diverged`."""
        passed: list[Event] = []
        for event in events:
            passed += self._read(event) if self._other_id else self._before_message(event)
        return passed

    def _before_message(self, event: Event) -> list[Event]:
        if isinstance(event, OutputItemAdded):
            if event.item["type"] == "message":
                self._other_id, self._shift = event.item["id"], self._index - event.output_index
            elif event.item["type"] != "reasoning":
                raise Diverged
        return []

    def _read(self, event: Event) -> list[Event]:
        if getattr(event, "item_id", None) == self._other_id:
            return self._in_message(event)
        if isinstance(event, OutputItemDone) and event.item["id"] == self._other_id:
            return [OutputItemDone(output_index=self._index, item=self._joined(event.item))]
        # All events of an answer have an output index.
        moved: Any = event
        return [replace(moved, output_index=moved.output_index + self._shift)]

    def _in_message(self, event: Any) -> list[Event]:
        event = replace(event, item_id=self._id, output_index=self._index)
        if getattr(event, "content_index", 0) != 0:
            return [event]
        match event:
            case ContentPartAdded(part=part) if self._has_part:
                if part["type"] != "output_text":
                    raise Diverged
                return []
            case OutputTextDelta(delta=delta):
                rest = self._rest.feed(delta)
                return [replace(event, delta=rest)] if rest else []
            case OutputTextDone(text=text):
                return [replace(event, text=self._rest.whole(text))]
            case ContentPartDone(part=part):
                return [replace(event, part=self._with_text(part))]
        if not self._rest.is_reached:
            # Such as a citation in the text that was sent without it.
            raise Diverged
        return [event]

    def _with_text(self, part: Body) -> Body:
        return {**part, "text": self._rest.whole(part["text"])} if part["type"] == "output_text" else part

    def _joined(self, message: Body) -> Body:
        first, *others = message["content"] or [{"type": "output_text", "text": "", "annotations": []}]
        return {**message, "id": self._id, "content": [self._with_text(first), *others]}

    def items(self, items: Sequence[Body]) -> list[Body]:
        """Return the items of the other answer from its message on, with the whole text. Raises `Diverged`."""
        position = next((index for index, item in enumerate(items) if item["id"] == self._other_id), None)
        if position is None:
            raise Diverged
        return [self._joined(items[position]), *items[position + 1 :]]


class TurnOutput:
    """Output of a turn to which several answers may contribute: the events for the client, and the items.

    The events of a request that is not streamed are held back until an answer is complete.
    """

    def __init__(self, request: TurnRequest) -> None:
        self._request = request
        self._sent = SentOutput()
        # Items of earlier answers that are part of the output.
        self._before: list[Body] = []
        self._continuation: Continuation | None = None
        self._held: list[Event] = []

    def begin(self, *, takes_prefix: bool, repeats_prefix: bool) -> TurnRequest:
        """Return the request for the next answer.

        `takes_prefix`: its server continues an answer whose beginning is in the request, and `repeats_prefix`: it sends
        this beginning again.
        """
        request, text, self._continuation = self._request, self._sent.text, None
        if not self._sent.is_open_text:
            return replace(request, first_output_index=request.first_output_index + len(self._before))
        takes_prefix = takes_prefix and bool(text)
        self._continuation = Continuation(self._sent, repeats=repeats_prefix or not takes_prefix)
        if not takes_prefix:
            return request
        sampling, limit = request.sampling, request.sampling.max_output_tokens
        if limit is not None and not repeats_prefix:
            sampling = replace(sampling, max_output_tokens=max(1, limit - token_estimate.tokens(text)))
        return replace(request, answer_prefix=text, sampling=sampling)

    def read(self, events: list[Event]) -> list[Event]:
        """Return the events to send for the events of the present answer. Raises `Diverged`."""
        if self._continuation is not None:
            events = self._continuation.read(events)
        if not self._request.streamed:
            self._held += events
            return []
        self._sent.follow(events)
        return events

    def complete(self, result: TurnResult) -> tuple[list[Event], TurnResult]:
        """Return the last events and the result of the turn after a complete answer. Raises `Diverged`."""
        continuation = self._continuation
        if continuation is None:
            return self._held, replace(result, items=[*self._before, *result.items])
        if continuation.has_begun:
            return [], replace(result, items=[*self._before, *continuation.items(result.items)])
        if continuation.repeats:
            raise Diverged
        # The answer was complete, and only its end was missing.
        body, events = self._sent.close("completed")
        return events, replace(result, items=[*self._before, body])

    @property
    def open_text(self) -> str:
        """The text that was sent and that another answer can continue."""
        return self._sent.text if self._sent.is_open_text else ""

    def can_continue(self) -> bool:
        """Return true if another answer can follow the output that was sent without a gap or a repetition."""
        return self._sent.is_empty or self._sent.is_reasoning or self._sent.is_open_text

    def cut(self, result: TurnResult, closing: Sequence[Event]) -> list[Event]:
        """Prepare for another answer after one that was cut. Return the events to send before it.

        `closing` are the events that close the items of the answer.
        """
        sent = self._sent
        if sent.is_empty:
            self._held = []
            return []
        if sent.is_open_text:
            if self._continuation is None:
                self._before += [item for item in result.items if item["id"] != sent.message_id]
            # Until the next answer begins, the message is closed as it is.
            self._continuation = Continuation(sent, repeats=True)
            return []
        return self.abandon(result, closing)

    def abandon(self, result: TurnResult, closing: Sequence[Event]) -> list[Event]:
        """Close the items that were sent, which stay in the output, and return the events for this."""
        events, ended = self.interrupt(result, closing)
        self._before, self._sent, self._continuation = ended.items, SentOutput(), None
        return events

    def interrupt(self, result: TurnResult, closing: Sequence[Event]) -> tuple[list[Event], TurnResult]:
        """Return the events that close all items, and the result, after an answer that was cut or interrupted."""
        continuation, sent = self._continuation, self._sent
        if continuation is None:
            return [*self._held, *closing], replace(result, items=[*self._before, *result.items])
        if sent.is_open_text:
            body, events = sent.close("incomplete")
            return events, replace(result, items=[*self._before, body], calls=[])
        return continuation.read(closing), replace(result, items=[*self._before, *continuation.items(result.items)])
