"""Converter from an upstream's Responses events to ours.

One converter serves one turn. Item ids, output indexes and the order of items are our own: an upstream may interleave
its items, and some send only the finished items or only the finished response.

Events that match no item, or an item of another type, are ignored. The output of the finished response then decides: if
it agrees with the emitted events, the rest of it is emitted; otherwise the turn fails. The output also completes items
that were not finished, and items whose text no event contained.
"""

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from conversations.items import CustomToolCall, FunctionCall, from_wire, project
from core.errors import Failure, UpstreamError
from core.ids import new_id
from engine.converter.base import TurnConverter, UpstreamEvent, citations, reported_usage
from engine.converter.calls import CallSegment, arguments_text
from engine.converter.finish_reasons import FinishKind, finish_kind
from engine.converter.joined_text import Text, event_with_text, text_of_event
from engine.converter.output_bound import OutputBound
from engine.converter.output_matching import Written, matched, wanted, with_parts
from engine.converter.segments import PartKind, ReasoningCipher, Segment
from engine.converter.upstream_items import (
    ContradictionError,
    UpstreamItem,
    UpstreamMessage,
    UpstreamParts,
    UpstreamReasoning,
    additional_fields,
    phase_of,
    remainder,
)
from engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from engine.turn import Finish, Sampling

_CONTRADICTED = Failure.of(UpstreamError("The model's server contradicted itself in its answer."))
_TOO_EARLY = Failure.of(UpstreamError("The model's server ended its answer too early."))
_DELTAS: dict[str, PartKind] = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning.delta": "reasoning_text",  # the name in the Open Responses specification
    "response.reasoning_summary_text.delta": "summary_text",
}
_REASONING: set[PartKind] = {"reasoning_text", "summary_text"}
_PARTS: dict[str, PartKind] = {kind: kind for kind in _DELTAS.values()}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_SEGMENTS = {"message": UpstreamMessage, "function_call": CallSegment, "custom_tool_call": CallSegment}
_ENDS = {f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}
_SegmentT = TypeVar("_SegmentT", bound=Segment)


class ResponsesConverter(TurnConverter):
    """Conversion of one turn.

    `upstream_id` is stored with encrypted reasoning, which only that upstream can read. `to_failure` maps an error in
    the upstream's stream to a failure.
    """

    malformed = Failure.of(UpstreamError("The model's server sent something that is not a Responses event."))

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
        self._include = sampling.include
        self._segments: dict[Any, Segment | None] = {}
        # Items of the upstream's own tools, by its ids.
        self._theirs: dict[str, UpstreamItem] = {}
        self._by_id: dict[str, Segment] = {}
        # The type of each item.
        self._kinds: list[str] = []
        # Keys of items whose text was lost because it came before the item, each with the type of the expected segment.
        self._lost: set[tuple[Any, type[Segment]]] = set()
        # Finished items without text so far. They stay open until the end of the response, which may contain the text.
        self._blank: list[Segment] = []
        self._lost_reasoning = False
        self._defect: Failure | None = None
        self._is_ending = False
        # Counts the texts of finished items separately, because they repeat the deltas.
        self._whole_bound = copy(self._bound)

    @override
    def shown(self, events: list[Event]) -> list[Event]:
        # Only a Responses upstream has tools of its own, whose items contain fields that clients have to request.
        for position, event in enumerate(events):
            if isinstance(event, OutputItemAdded | OutputItemDone):
                events[position] = replace(event, item=project(event.item, self._include))
        return events

    @override
    def _as_event(self, answer: UpstreamEvent) -> UpstreamEvent:
        return {"type": f"response.{answer['status']}", "response": answer} if "status" in answer else answer

    @override
    def end(self, *, done: bool = False) -> list[Event]:
        if not self.over:
            self.fail(_TOO_EARLY)
        return self._close_all()

    @override
    def _text_of(self, event: UpstreamEvent) -> Text | None:
        return text_of_event(event)

    @override
    def _with_text(self, event: UpstreamEvent, text: str) -> UpstreamEvent:
        return event_with_text(event, text)

    @override
    def _read(self, event: UpstreamEvent, events: list[Event]) -> None:
        try:
            self._convert(event, events)
        except ContradictionError:
            self._contradicted(_CONTRADICTED)
            if self._is_ending:
                self.fail(_CONTRADICTED)

    def _contradicted(self, failure: Failure) -> None:
        self._defect = self._defect or failure

    def _convert(self, event: UpstreamEvent, events: list[Event]) -> None:
        kind = event.get("type") or "error"
        if kind in _DELTAS:
            self._delta(_DELTAS[kind], event, events)
        elif kind in _CALL_DELTAS:
            call = self._target(event, CallSegment)
            if call is not None:
                events += call.write(None, self._within_limit(_text(event["delta"]), self._bound))
                self._show(call, events)
            elif not self._is_ignored(event):
                self._lose(event, CallSegment)
        elif kind in _ENDS:
            self._is_ending = True
            self._ended(event["response"], kind.removeprefix("response."), events)
        else:
            # All other events repeat known content (`.done`) or report the progress of the upstream's own tools.
            match kind:
                case "error":
                    self.fail(self._failure_of(event.get("error") or event))
                case "response.output_item.added":
                    self._added(_place(event), event["item"], events)
                case "response.output_item.done":
                    self._done(_place(event), with_parts(event["item"]), events)
                case "response.content_part.added":
                    self._part(event, event.get("content_index") or 0, events)
                case "response.reasoning_summary_part.added":
                    self._part(event, event.get("summary_index") or 0, events)
                case "response.output_text.annotation.added":
                    message = self._target(event, UpstreamMessage)
                    if message is not None:
                        events += message.begin("output_text", event.get("content_index") or 0)
                        message.parts[-1].annotations += citations([event["annotation"]], additional=True)
                        self._show(message, events)

    def _target(self, event: UpstreamEvent, cls: type[_SegmentT]) -> _SegmentT | None:
        """Return the segment that an event writes to. Some upstreams send wrong indexes but correct ids."""
        place = _place(event)
        if (place, cls) in self._lost:
            return None
        for segment in (self._segments.get(place), self._by_id.get(str(event.get("item_id")))):
            if isinstance(segment, cls) and not segment.is_done:
                return segment
        return None

    def _is_ignored(self, event: UpstreamEvent) -> bool:
        place = _place(event)
        return place in self._segments and self._segments[place] is None

    def _lose(self, event: UpstreamEvent, cls: type[Segment]) -> None:
        place = _place(event)
        if place in self._segments and (place, cls) not in self._lost:
            self._contradicted(_CONTRADICTED)
        else:
            # The item may follow. It is only emitted when it is complete.
            self._lost.add((place, cls))

    def _delta(self, kind: PartKind, event: UpstreamEvent, events: list[Event]) -> None:
        text = _text(event["delta"])
        segment = self._target(event, UpstreamReasoning if kind in _REASONING else UpstreamMessage)
        if segment is None:
            if kind in _REASONING:
                # The answer is complete without the reasoning.
                self._lost_reasoning = True
            elif text:
                self._lose(event, UpstreamMessage)
            return
        index = event.get("summary_index" if kind == "summary_text" else "content_index") or 0
        logprobs = self._logprobs(event.get("logprobs")) if kind == "output_text" else []
        if self._bound is not None and kind != "summary_text":
            text = self._within_limit(text, self._bound)
        if kind == "output_text":
            text = self._before_stop(text)
        events += segment.receive(kind, index, text, logprobs)
        self._show(segment, events)

    def _part(self, event: UpstreamEvent, index: int, events: list[Event]) -> None:
        kind = _PARTS.get(event["part"]["type"])
        if kind is None:
            return
        segment = self._target(event, UpstreamReasoning if kind in _REASONING else UpstreamMessage)
        if segment is not None:
            events += segment.begin(kind, index)
            self._show(segment, events)

    def _added(self, index: Any, item: Body, events: list[Event]) -> None:
        if index in self._segments:
            # Some upstreams use one index for all items.
            earlier = self._segments[index]
            if earlier is not None and not earlier.is_done and earlier not in self._blank:
                self._contradicted(_CONTRADICTED)
        # None for an item that is only emitted when it is complete, and for a call beyond the allowed number.
        segment: Segment | None = None
        match item["type"]:
            case "message":
                segment = UpstreamMessage(phase=phase_of(item), read_logprobs=self._logprobs)
            case "reasoning":
                segment = UpstreamReasoning(self._upstream_id, cipher=self._cipher, shown=self._show_raw)
            case "function_call" | "custom_tool_call" as kind if len(self._made) != self._max_calls:
                # Some upstreams send the id and the name only at the end of the call.
                call_id = item.get("call_id")
                native = kind == "custom_tool_call"
                segment = self._new_call(_text(call_id) if call_id else None, native=native)
                segment.write(_text(item.get("name") or ""), None)
        self._segments[index] = segment
        self._kinds.append(str(item["type"]))
        if segment is not None:
            self._by_id[str(_id_of(item))] = segment
            events += self._queue.push(segment)

    def _segment_of(self, index: Any, item: Body, events: list[Event]) -> Segment | None:
        """Return the segment of a finished item, which is created if no event has announced the item."""
        if index not in self._segments:
            self._added(index, item, events)
        segment = self._segments[index]
        if segment is None or (_holds(segment, item) and not segment.is_done):
            return segment
        other = self._by_id.get(str(_id_of(item)))
        if other is not None and not other.is_done and _holds(other, item):
            return other
        self._added(index, item, events)
        return self._segments[index]

    def _done(self, index: Any, item: Body, events: list[Event]) -> None:
        segment = self._segment_of(index, item, events)
        awaits_text = segment is not None and self._awaits_text(index, segment, item)
        if not awaits_text:
            self._lost = {(place, cls) for place, cls in self._lost if place != index}
        if self._whole_bound is not None:
            item = self._limited(item, self._whole_bound)
        if isinstance(segment, UpstreamMessage):
            events += segment.complete(self._cut(item))
        elif isinstance(segment, UpstreamParts):
            events += segment.complete(item)
        elif isinstance(segment, CallSegment):
            if not segment.upstream_id and (upstream_id := item.get("call_id")):
                segment.adopt(_text(upstream_id), self._usable_id(upstream_id))
            name = None if segment.name else _text(item["name"])
            whole = arguments_text(item[_CALLS[item["type"]]])
            events += segment.write(name, remainder("".join(segment.arguments), whole))
            additional = additional_fields(item, CustomToolCall if segment.native else FunctionCall)
            segment.additional = {**_origin(item), **additional}
        elif item["type"] not in _CALLS:
            # Typed clients fail to parse items of unknown types.
            try:
                known = from_wire({**item, "id": new_id("item")})
            except ValueError:
                message = f"The model's server sent an item of the unknown type {str(item['type'])[:60]!r}."
                self.fail(Failure.of(UpstreamError(message)))
                raise
            segment = self._segments[index] = UpstreamItem({**known.wire(), "id": new_id(known.prefix)})
            if isinstance(upstream_id := item.get("id"), str):
                self._theirs[upstream_id] = segment
            events += self._queue.push(segment)
        if segment is not None:
            is_done = item.get("status") != "incomplete" and self._finish is not Finish.LENGTH
            if awaits_text and is_done:
                self._blank.append(segment)
            segment.is_done = is_done and not awaits_text
            self._show(segment, events)

    def _awaits_text(self, index: Any, segment: Segment, item: Body) -> bool:
        """Return True if the text of a finished item can only come with the output of the finished response."""
        if self._is_ending or not _is_blank(item):
            return False
        return (index, type(segment)) in self._lost or not _has_text(segment)

    def _limited(self, item: Body, bound: OutputBound) -> Body:
        """Return the upstream's final item with as much text as the output limit allows."""
        if (field := _CALLS.get(item["type"])) is not None:
            text = item[field]
            return {**item, field: self._within_limit(text, bound)} if isinstance(text, str) else item
        if item["type"] not in {"message", "reasoning"} or not isinstance(item.get("content"), list):
            return item
        content = [
            {**part, "text": self._within_limit(part["text"], bound)} if isinstance(part.get("text"), str) else part
            for part in item["content"]
        ]
        return {**item, "content": content}

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
        output = [with_parts(item) for item in response.get("output") or ()]
        self._usage = reported_usage(response.get("usage"), read="input", written="output")
        if self._whole_bound is not None and self._usage is not None:
            self._whole_bound.report(self._usage.output_tokens)
        for item in output:
            if (hosted := self._theirs.get(str(item.get("id")))) is not None:
                hosted.add(item)
        self._read_output(output, events)
        for segment in self._blank:
            segment.is_done = True
        self._read_tier(response.get("service_tier"))
        if self.over:
            # One of the items ended at a stop sequence or at the output limit.
            return
        # Some send `response.completed` for an answer that was cut; only the status inside is right.
        status = response["status"] if f"response.{response.get('status')}" in _ENDS else kind
        reason = (response.get("incomplete_details") or {}).get("reason")
        self.finish_reason = str(reason or status)
        kind_of_end = finish_kind(str(reason or ""))
        match status, kind_of_end:
            case "completed", _ if response.get("error"):
                self.fail(self._failure_of(response["error"]))
            case "completed" | "incomplete", FinishKind.LENGTH:
                self._finish = Finish.LENGTH
            case "completed" | "incomplete", FinishKind.CONTENT_FILTER:
                self._finish = Finish.CONTENT_FILTER
            case "completed", _:
                self._finish = Finish.STOP
            case "failed", _:
                self.fail(self._failure_of(response.get("error")))
            case _:
                self.fail(_TOO_EARLY)
        if self._failure is None and self._defect is not None:
            self.fail(self._defect)
        if self._finish is Finish.STOP and any(call.is_cut and not call.is_done for call in self._made):
            self.fail(_TOO_EARLY)
        self.over = True

    def _read_output(self, output: list[Body], events: list[Event]) -> None:
        if self._lost:
            self._contradicted(self.malformed)
        if not self._segments:
            # Some servers send only this event. Otherwise its output repeats what was streamed.
            for index, item in enumerate(output):
                self._done(index, item, events)
        elif self._defect is None and not self._lost_reasoning and not self._adds(output):
            return
        elif not self._reconcile(output, events):
            if self._lacks(output):
                self._contradicted(_CONTRADICTED)
            return
        if output:
            self._defect = None

    def _adds(self, output: list[Body]) -> bool:
        """Return True if the output may have content that was in no event, and contains everything that was emitted."""
        if self._lacks(output):
            return True
        is_open = any(segment is not None and not segment.is_done for segment in self._segments.values())
        return is_open and not Counter(self._kinds) - Counter(item["type"] for item in output)

    def _lacks(self, output: list[Body]) -> bool:
        """Return True if the output has calls or a text that no event announced."""
        missing = Counter(item["type"] for item in output) - Counter(self._kinds)
        return any(missing[kind] for kind in _CALLS) or ("message" not in self._kinds and missing["message"] > 0)

    def _reconcile(self, output: list[Body], events: list[Event]) -> bool:
        """Emit the content that is only in the output. Return False if the output contradicts the emitted events."""
        if any(cls is _SEGMENTS.get(item["type"]) and _is_blank(item) for item in output for _, cls in self._lost):
            return False
        sent = self._queue.sent
        pairs = matched([_written(segment) for segment in sent], output)
        if pairs is None:
            return False
        self._queue.drop_unsent()
        self._made = [call for call in self._made if call in sent]
        self._call_ids = {call.call_id for call in self._made}
        self._segments = {}
        for position, segment in enumerate(sent):
            if position in pairs and not segment.is_done and segment.outcome is None:
                self._segments[position] = segment
                self._done(position, output[pairs[position]], events)
        used = set(pairs.values())
        for position, item in enumerate(output):
            if position not in used:
                self._done(("output", position), item, events)
        return True


def _place(event: UpstreamEvent) -> Any:
    """Return the key of an event's item: its index, or its id for servers without indexes."""
    index = event.get("output_index")
    if index is not None:
        return index
    item = event.get("item")
    return None, event.get("item_id") if item is None else _id_of(item)


def _id_of(item: Body) -> Any:
    # Calls of versions of llama.cpp from before June 2026 have no id, and their deltas name the id of the call.
    return item.get("id") or item.get("call_id")


def _is_blank(item: Body) -> bool:
    """Return True if a message or a call of the upstream has no text."""
    if (field := _CALLS.get(item["type"])) is not None:
        return not item.get(field)
    return item["type"] == "message" and not any(part.get("text") or part.get("refusal") for part in wanted(item))


def _has_text(segment: Segment) -> bool:
    if isinstance(segment, CallSegment):
        return any(segment.arguments)
    return not isinstance(segment, UpstreamMessage) or any(part.text for part in segment.parts)


def _origin(call: Body) -> Body:
    """Return the fields that name the origin of a call, if they are valid."""
    fields = {name: call[name] for name in ("caller", "created_by") if call.get(name) is not None}
    try:
        FunctionCall.model_validate({"call_id": "call", "name": "name", "arguments": "", **fields})
    except ValueError:
        return {}
    return fields


def _holds(segment: Segment, item: Body) -> bool:
    """Return True if the segment has the type of a finished item."""
    kind = str(item["type"])
    if isinstance(segment, UpstreamParts):
        return kind == ("message" if isinstance(segment, UpstreamMessage) else "reasoning")
    return isinstance(segment, CallSegment) and kind == ("custom_tool_call" if segment.native else "function_call")


def _written(segment: Segment) -> Written:
    is_closed = segment.outcome is not None
    if isinstance(segment, UpstreamParts):
        kind = "message" if isinstance(segment, UpstreamMessage) else "reasoning"
        texts = [(part.kind, "".join(part.text)) for part in segment.parts]
        return Written(kind=kind, parts=texts, is_whole=is_closed)
    if isinstance(segment, CallSegment):
        kind = "custom_tool_call" if segment.native else "function_call"
        text = "".join(segment.arguments)
        return Written(kind=kind, parts=[(_CALLS[kind], text)], is_whole=is_closed, call_id=segment.upstream_id)
    return Written(kind=str(segment.body()["type"]), parts=[], is_whole=True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
