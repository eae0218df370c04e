"""Converter from an upstream's Responses events to ours.

One converter serves one turn. Item ids, output indexes and the order of items are our own: an upstream may interleave
its items, and some send only the finished items or only the finished response.
"""

from abc import abstractmethod
from collections.abc import Callable

from typing_extensions import override

from conversations.items import from_wire
from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.calls import item_events
from responses.engine.converter.base import TurnConverter, UpstreamEvent, citations, reported_usage
from responses.engine.converter.calls import CallSegment
from responses.engine.converter.segments import (
    MessageSegment,
    PartKind,
    PartsSegment,
    ReasoningCipher,
    ReasoningSegment,
    Segment,
)
from responses.engine.events.types import Body, Event
from responses.engine.turn import Finish, Sampling

_CONTRADICTED = Failure(code="server_error", message="The model's server contradicted itself in its answer.")
_TOO_EARLY = Failure(code="server_error", message="The model's server ended its answer too early.")
_DELTAS: dict[str, PartKind] = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning.delta": "reasoning_text",  # the name in the Open Responses specification
    "response.reasoning_summary_text.delta": "summary_text",
}
_PARTS: dict[str, PartKind] = {kind: kind for kind in _DELTAS.values()}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_ENDS = {f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}
ENCRYPTED = "encrypted_content"
"""Type of a reasoning detail that holds the `encrypted_content` of a Responses upstream and the upstream's id."""


class _ContradictionError(ValueError):
    """The final item differs from its deltas."""


class ResponsesConverter(TurnConverter):
    """Conversion of one turn.

    `upstream_id` is stored with encrypted reasoning, which only that upstream can read. `to_failure` maps an error in
    the upstream's stream to a failure.
    """

    malformed = Failure(code="server_error", message="The model's server sent something that is not a Responses event.")

    def __init__(
        self,
        *,
        first_output_index: int,
        sampling: Sampling,
        upstream_id: str,
        to_failure: Callable[[object], Failure],
        cipher: ReasoningCipher | None = None,
        show_raw: bool = True,
    ) -> None:
        super().__init__(first_output_index=first_output_index, sampling=sampling, cipher=cipher, show_raw=show_raw)
        self._upstream_id = upstream_id
        self._failure_of = to_failure
        self._segments: dict[int, Segment | None] = {}

    @override
    def _as_event(self, answer: UpstreamEvent) -> UpstreamEvent:
        return {"type": f"response.{answer['status']}", "response": answer} if "status" in answer else answer

    @override
    def end(self, *, done: bool = False) -> list[Event]:
        if not self.over:
            self.fail(_TOO_EARLY)
        return self._close_all()

    @override
    def _read(self, event: UpstreamEvent, events: list[Event]) -> None:
        try:
            self._convert(event, events)
        except _ContradictionError:
            self.fail(_CONTRADICTED)

    def _convert(self, event: UpstreamEvent, events: list[Event]) -> None:
        kind = event.get("type") or "error"
        if kind in _DELTAS:
            self._delta(_DELTAS[kind], event, events)
        elif kind in _CALL_DELTAS:
            call = self._segments[event["output_index"]]
            if isinstance(call, CallSegment):
                events += call.write(None, _text(event["delta"]))
                self._show(call, events)
        elif kind in _ENDS:
            self._ended(event["response"], kind.removeprefix("response."), events)
        else:
            # All other events repeat known content (`.done`) or report the progress of the upstream's own tools.
            match kind:
                case "error":
                    self.fail(self._failure_of(event.get("error") or event))
                case "response.output_item.added":
                    self._added(event["output_index"], event["item"], events)
                case "response.output_item.done":
                    self._done(event["output_index"], event["item"], events)
                case "response.content_part.added":
                    self._part(event, event["content_index"], events)
                case "response.reasoning_summary_part.added":
                    self._part(event, event["summary_index"], events)
                case "response.output_text.annotation.added":
                    message = self._segments[event["output_index"]]
                    if isinstance(message, _UpstreamMessage):
                        events += message.begin("output_text", event["content_index"])
                        message.parts[-1].annotations += citations([event["annotation"]])
                        self._show(message, events)

    def _delta(self, kind: PartKind, event: UpstreamEvent, events: list[Event]) -> None:
        segment = self._segments[event["output_index"]]
        if not isinstance(segment, _UpstreamParts):
            raise TypeError(kind)
        index = event["summary_index" if kind == "summary_text" else "content_index"]
        logprobs = self._logprobs(event.get("logprobs")) if kind == "output_text" else []
        text = _text(event["delta"])
        if kind == "output_text":
            text = self._before_stop(text)
        events += segment.receive(kind, index, text, logprobs)
        self._show(segment, events)

    def _part(self, event: UpstreamEvent, index: int, events: list[Event]) -> None:
        segment, kind = self._segments[event["output_index"]], _PARTS.get(event["part"]["type"])
        if isinstance(segment, _UpstreamParts) and kind is not None:
            events += segment.begin(kind, index)
            self._show(segment, events)

    def _added(self, index: int, item: Body, events: list[Event]) -> None:
        if index in self._segments:
            raise _ContradictionError
        # None for an item that is only emitted when it is complete, and for a call beyond the allowed number.
        segment: Segment | None = None
        match item["type"]:
            case "message":
                segment = _UpstreamMessage(phase=_phase(item), read_logprobs=self._logprobs)
            case "reasoning":
                segment = _UpstreamReasoning(self._upstream_id, cipher=self._cipher, shown=self._show_raw)
            case "function_call" | "custom_tool_call" as kind if len(self._made) != self._max_calls:
                segment = self._new_call(_text(item["call_id"]), native=kind == "custom_tool_call")
                segment.write(_text(item["name"]), None)
        self._segments[index] = segment
        if segment is not None:
            events += self._queue.push(segment)

    def _done(self, index: int, item: Body, events: list[Event]) -> None:
        if index not in self._segments:
            self._added(index, item, events)
        segment = self._segments[index]
        if isinstance(segment, _UpstreamMessage):
            events += segment.complete(self._cut(item))
        elif isinstance(segment, _UpstreamParts):
            events += segment.complete(item)
        elif isinstance(segment, CallSegment):
            events += segment.write(None, _remainder("".join(segment.arguments), item[_CALLS[item["type"]]]))
        elif item["type"] not in _CALLS:
            # Typed clients fail to parse items of unknown types.
            try:
                known = from_wire({**item, "id": new_id("item")})
            except ValueError:
                message = f"The model's server sent an item of the unknown type {str(item['type'])[:60]!r}."
                self.fail(Failure(code="server_error", message=message))
                raise
            segment = self._segments[index] = _UpstreamItem({**known.wire(), "id": new_id(known.prefix)})
            events += self._queue.push(segment)
        if segment is not None:
            segment.is_done = item.get("status") != "incomplete"
            self._show(segment, events)

    def _cut(self, message: Body) -> Body:
        """Return the upstream's final message without the text from the first stop sequence on."""
        if self._stop is None:
            return message
        # The deltas contained no sequence, or the turn would be over. Text may have come without deltas, however.
        self._stop.end()
        content: list[Body] = []
        for part in message.get("content") or ():
            if self.over:
                break
            is_text = part["type"] == "output_text"
            content.append({**part, "text": self._before_stop(part["text"]) + self._stop.end()} if is_text else part)
        return {**message, "content": content}

    def _show(self, segment: Segment, events: list[Event]) -> None:
        if not segment.live or segment.is_done:
            events += self._queue.advance()

    def _ended(self, response: UpstreamEvent, kind: str, events: list[Event]) -> None:
        if not self._segments:
            # Some servers send only this event. Otherwise its output repeats what was streamed.
            for index, item in enumerate(response.get("output") or ()):
                self._done(index, item, events)
        self._usage = reported_usage(response.get("usage"), read="input", written="output")
        self._read_tier(response.get("service_tier"))
        if self.over:
            # One of the items ended at a stop sequence.
            return
        # Some send `response.completed` for an answer that was cut; only the status inside is right.
        status = response["status"] if f"response.{response.get('status')}" in _ENDS else kind
        reason = (response.get("incomplete_details") or {}).get("reason")
        self.finish_reason = str(reason or status)
        match status, reason:
            case "completed", _:
                self._finish = Finish.STOP
            case "incomplete", "max_output_tokens":
                self._finish = Finish.LENGTH
            case "incomplete", "content_filter":
                self._finish = Finish.CONTENT_FILTER
            case "failed", _:
                self.fail(self._failure_of(response.get("error")))
            case _:
                self.fail(_TOO_EARLY)
        self.over = True


class _UpstreamParts(PartsSegment):
    """Item of text parts, each with the upstream's index as its key.

    Upstreams name the item and the part of each delta, and repeat the whole item at its end. Here the parts of an item
    are written one after the other. If the final item has more content than its deltas, the rest is emitted as one
    more delta.
    """

    stays_open = True

    @override
    def begin(self, kind: PartKind, key: int | None = None) -> list[Event]:
        if any((part.kind, part.key) == (kind, key) for part in self.parts[:-1]):
            raise _ContradictionError
        return super().begin(kind, key)

    def receive(self, kind: PartKind, key: int | None, text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the upstream's part `key`."""
        events = self.begin(kind, key)
        return events + self.append(text, logprobs) if text or logprobs else events

    @abstractmethod
    def complete(self, item: Body) -> list[Event]:
        """Return the events of what the upstream's final item adds to its deltas."""

    def complete_part(self, kind: PartKind, position: int, final: Body) -> list[Event]:
        """Return the same for one part. `position` counts the parts of the same list: the summary or the content."""
        same_list = [part for part in self.parts if (part.kind == "summary_text") is (kind == "summary_text")]
        known = same_list[position] if position < len(same_list) else None
        if known is not None and known.kind != kind:
            raise _ContradictionError
        rest = _remainder("".join(known.text) if known else "", final.get("refusal" if kind == "refusal" else "text"))
        if known is None:
            # A part without deltas. The negative number cannot collide with an index of the upstream.
            return self.receive(kind, -1 - position, rest, [])
        return self.receive(kind, known.key, rest, []) if rest else []


class _UpstreamMessage(_UpstreamParts, MessageSegment):
    """Message of the model."""

    def __init__(self, *, phase: str | None, read_logprobs: Callable[[object], list[Body]]) -> None:
        super().__init__(phase=phase)
        self._read_logprobs = read_logprobs

    @override
    def complete(self, item: Body) -> list[Event]:
        events: list[Event] = []
        for position, final in enumerate(item.get("content") or ()):
            kind = final["type"]
            if kind not in {"output_text", "refusal"}:
                raise ValueError(kind)
            events += self.complete_part(kind, position, final)
            part = self.parts[position]
            # Some upstreams send citations and log probabilities only in the final item.
            part.annotations = citations(final.get("annotations") or ()) or part.annotations
            part.logprobs = part.logprobs or self._read_logprobs(final.get("logprobs"))
        self.phase = _phase(item) or self.phase
        return events


class _UpstreamReasoning(_UpstreamParts, ReasoningSegment):
    """Reasoning: parts of its summary, the raw text if the upstream sends it, and the encrypted content.

    The upstream's encrypted content is encrypted again together with the upstream's id, because no other upstream can
    read it.
    """

    def __init__(self, upstream_id: str, *, cipher: ReasoningCipher | None, shown: bool) -> None:
        super().__init__(cipher=cipher, shown=shown)
        self._upstream_id = upstream_id
        self._upstream_content: object = None

    @override
    def begin(self, kind: PartKind, key: int | None = None) -> list[Event]:
        return [] if self._hides(kind) else super().begin(kind, key)

    @override
    def receive(self, kind: PartKind, key: int | None, text: str, logprobs: list[Body]) -> list[Event]:
        if not self._hides(kind):
            return super().receive(kind, key, text, logprobs)
        self.hidden_text.append(text)
        return []

    def _hides(self, kind: PartKind) -> bool:
        return kind == "reasoning_text" and not self.shown

    @override
    def complete(self, item: Body) -> list[Event]:
        events: list[Event] = []
        for position, final in enumerate(item.get("summary") or ()):
            events += self.complete_part("summary_text", position, final)
        raw = item.get("content") or ()
        if self.shown:
            for position, final in enumerate(raw):
                events += self.complete_part("reasoning_text", position, final)
        else:
            self.hidden_text.append(_remainder("".join(self.hidden_text), "".join(final["text"] for final in raw)))
        self._upstream_content = item.get("encrypted_content")
        return events

    @override
    def details(self) -> list[Body]:
        if not self._upstream_content or not isinstance(self._upstream_content, str):
            return []
        return [{"type": ENCRYPTED, "upstream": self._upstream_id, "data": self._upstream_content}]


class _UpstreamItem(Segment):
    """Complete item of the upstream, passed on unchanged."""

    prefix = "item"
    stays_open = True
    is_done = True

    def __init__(self, item: Body) -> None:
        super().__init__()
        self.id = item["id"]
        self._item = item

    @override
    def body(self, *, empty: bool = False) -> Body:
        if not empty:
            return self._item
        emptied = item_events.announced(self._item)
        return {**emptied, "status": "in_progress"} if "status" in emptied else emptied

    @override
    def flush(self) -> list[Event]:
        return item_events.before_result(self._item, output_index=self.output_index)

    @override
    def finish(self) -> list[Event]:
        return item_events.after_result(self._item, output_index=self.output_index)


def _remainder(written: str, whole: object) -> str:
    # The part of the final text that no delta had. Some upstreams leave the final text empty instead of repeating it.
    if not isinstance(whole, str) or not whole:
        return ""
    if not whole.startswith(written):
        raise _ContradictionError
    return whole[len(written) :]


def _phase(item: Body) -> str | None:
    phase = item.get("phase")
    return phase if phase in {"commentary", "final_answer"} else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
