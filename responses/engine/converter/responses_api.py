"""Converter from an upstream's Responses events to ours.

One converter serves one turn. Item ids, output indexes and the order of items are our own: an upstream may interleave
its items, and some send only the finished items or only the finished response.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from typing_extensions import override

from conversations.items import from_wire
from kernel.clock import now
from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.converter.calls import CallSegment
from responses.engine.converter.logprobs import read_logprobs
from responses.engine.converter.reasoning import ReasoningCipher
from responses.engine.converter.segments import ItemStatus, Segment, SegmentQueue
from responses.engine.converter.upstream_segments import (
    Contradiction,
    PartKind,
    UpstreamItem,
    UpstreamMessage,
    UpstreamReasoning,
    UpstreamText,
    remainder,
)
from responses.engine.events.types import Body, Event
from responses.engine.turn import Finish, Sampling, TurnResult, Usage

# OpenAI limits call ids to 64 characters; clients send them back to us.
_MAX_CALL_ID = 64
_MAX_TIER = 20
# Token counts are stored in 32-bit integer columns.
_MAX_TOKENS = 2**31 - 1
_MALFORMED = Failure(code="server_error", message="The model's server sent something that is not a Responses event.")
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
UpstreamEvent = dict[str, Any]


class _ResponsesQueue(SegmentQueue):
    """Queue in which an item ends when the upstream says so, not when another one starts."""

    @override
    def _advance(self) -> list[Event]:
        events = super()._advance()
        while self._waiting and not self._waiting[0].stays_open:
            events += self._close_head("completed", self._waiting[0])
            events += super()._advance()
        return events


class ResponsesConverter:
    """Conversion of one turn.

    `show_raw`: clients may see raw reasoning. `upstream_id` is stored with encrypted reasoning, which only that
    upstream can read. `to_failure` maps an error in the upstream's stream to a failure.
    """

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
        self._queue = _ResponsesQueue(first_output_index=first_output_index)
        self._tools = {tool.name: tool for tool in sampling.tools}
        self._max_calls = sampling.max_calls
        self._top_logprobs = (sampling.top_logprobs or 0) if sampling.logprobs else None
        self._upstream_id = upstream_id
        self._failure_of = to_failure
        self._cipher = cipher
        self._show_raw = show_raw
        self._segments: dict[int, Segment | None] = {}
        self._made: list[CallSegment] = []
        self._usage: Usage | None = None
        self._service_tier: str | None = None
        self._finish: Finish | None = None
        self._failure: Failure | None = None
        self.finish_reason: str | None = None
        self.first_token_at: datetime | None = None

    def feed(self, upstream: Iterable[UpstreamEvent]) -> list[Event]:
        """Return the events of the upstream's events of one network read."""
        events: list[Event] = []
        for event in upstream:
            try:
                self._event(event, events)
            except Contradiction:
                self.fail(_CONTRADICTED)
                break
            except (AttributeError, LookupError, TypeError, ValueError):
                # An upstream may send any JSON. Catching errors here is simpler and safer than checking every access.
                self.fail(_MALFORMED)
                break
            if self.over:
                break
        if events and self.first_token_at is None:
            self.first_token_at = now()
        return events

    def whole(self, response: UpstreamEvent) -> list[Event]:
        """Return the events of an answer that was not streamed."""
        if "status" not in response:
            return self.feed([response])
        return self.feed([{"type": f"response.{response['status']}", "response": response}])

    @property
    def over(self) -> bool:
        """True if the turn has ended or failed, and the rest of the stream is not needed."""
        return self._finish is not None or self._failure is not None

    def end(self) -> list[Event]:
        """End the turn and return the closing events."""
        if not self.over:
            self.fail(_TOO_EARLY)
        status: ItemStatus = "completed" if self._ending() is Finish.STOP else "incomplete"
        return self._queue.end(status)

    def fail(self, failure: Failure) -> None:
        """Set the failure of the turn; the first one counts."""
        self._failure = self._failure or failure

    def interrupt(self) -> list[Event]:
        """Return the events that close open items of an interrupted turn."""
        return self._queue.end("incomplete")

    def result(self, *, interrupted: bool = False, upstream_request_id: str | None = None) -> TurnResult:
        """Return the result of the turn; only valid after `end` or `interrupt`."""
        return TurnResult(
            finish=Finish.INTERRUPTED if interrupted else self._ending(),
            items=[segment.body() for segment in self._queue.closed],
            # A call that was cut is shown but never run.
            calls=[call.as_call() for call in self._made if call.outcome == "completed"],
            usage=self._usage,
            failure=self._failure,
            finish_reason=self.finish_reason,
            first_token_at=self.first_token_at,
            upstream_request_id=upstream_request_id,
            service_tier=self._service_tier,
        )

    def _ending(self) -> Finish:
        return Finish.ERROR if self._failure is not None else self._finish or Finish.ERROR

    # -- events --------------------------------------------------------------------------------------------------------

    def _event(self, event: UpstreamEvent, events: list[Event]) -> None:
        kind = event.get("type") or "error"
        if kind in _DELTAS:
            self._delta(_DELTAS[kind], event, events)
        elif kind in _CALL_DELTAS:
            call = self._segments[event["output_index"]]
            if isinstance(call, CallSegment):
                events += call.write(None, _text(event["delta"]))
                self._show(call, events)
        elif kind == "error":
            self.fail(self._failure_of(event.get("error") or event))
        elif kind.startswith("response.output_item."):
            at = self._added if kind.endswith(".added") else self._done
            at(event["output_index"], event["item"], events)
        elif kind in _ENDS:
            self._ended(event["response"], kind.removeprefix("response."), events)
        else:
            self._detail(kind, event, events)

    def _detail(self, kind: str, event: UpstreamEvent, events: list[Event]) -> None:
        # All other events repeat known content (`.done`) or report the progress of the upstream's own tools.
        match kind:
            case "response.content_part.added":
                self._part(event, event["content_index"], events)
            case "response.reasoning_summary_part.added":
                self._part(event, event["summary_index"], events)
            case "response.output_text.annotation.added":
                message = self._segments[event["output_index"]]
                if isinstance(message, UpstreamMessage):
                    events += message.cite(event["content_index"], event["annotation"])
                    self._show(message, events)

    def _delta(self, kind: PartKind, event: UpstreamEvent, events: list[Event]) -> None:
        segment = self._segments[event["output_index"]]
        if not isinstance(segment, UpstreamText):
            raise TypeError(kind)
        index = event["summary_index" if kind == "summary_text" else "content_index"]
        logprobs = self._logprobs(event.get("logprobs")) if kind == "output_text" else []
        events += segment.write(kind, index, _text(event["delta"]), logprobs)
        self._show(segment, events)

    def _part(self, event: UpstreamEvent, index: int, events: list[Event]) -> None:
        segment, kind = self._segments[event["output_index"]], _PARTS.get(event["part"]["type"])
        if isinstance(segment, UpstreamText) and kind is not None:
            events += segment.begin(kind, index)
            self._show(segment, events)

    def _added(self, index: int, item: Body, events: list[Event]) -> None:
        if index in self._segments:
            raise Contradiction
        segment = self._segments[index] = self._segment(item)
        if segment is not None:
            events += self._queue.push(segment)

    def _segment(self, item: Body) -> Segment | None:
        # None for an item that is only emitted when it is complete, and for a call beyond the allowed number.
        match item["type"]:
            case "message":
                return UpstreamMessage(item, read_logprobs=self._logprobs)
            case "reasoning":
                return UpstreamReasoning(show_raw=self._show_raw, cipher=self._cipher, upstream_id=self._upstream_id)
            case "function_call" | "custom_tool_call" if len(self._made) != self._max_calls:
                return self._call(item)
        return None

    def _call(self, item: Body) -> CallSegment:
        call_id = _text(item["call_id"])
        taken = {call.call_id for call in self._made}
        call = CallSegment(
            upstream_id=None,
            # The upstream's id of the call, unless it is too long or another call of this turn has the same one.
            call_id=call_id if len(call_id) <= _MAX_CALL_ID and call_id not in taken else None,
            tools=self._tools,
            native=item["type"] == "custom_tool_call",
        )
        call.write(_text(item["name"]), None)
        self._made.append(call)
        return call

    def _done(self, index: int, item: Body, events: list[Event]) -> None:
        if index not in self._segments:
            self._added(index, item, events)
        segment = self._segments[index]
        if isinstance(segment, UpstreamText):
            events += segment.complete(item)
        elif isinstance(segment, CallSegment):
            events += segment.write(None, remainder("".join(segment.arguments), item[_CALLS[item["type"]]]))
        elif item["type"] not in _CALLS:
            segment = self._segments[index] = self._other(item)
            events += self._queue.push(segment)
        if segment is not None:
            segment.stays_open = item.get("status") == "incomplete"
            self._show(segment, events)

    def _other(self, item: Body) -> Segment:
        # Typed clients fail to parse items of unknown types.
        try:
            known = from_wire({**item, "id": new_id("item")})
        except ValueError:
            message = f"The model's server sent an item of the unknown type {str(item['type'])[:60]!r}."
            self.fail(Failure(code="server_error", message=message))
            raise
        return UpstreamItem({**known.wire(), "id": new_id(known.prefix)})

    def _show(self, segment: Segment, events: list[Event]) -> None:
        if not segment.live or not segment.stays_open:
            events += self._queue.show()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _ended(self, response: UpstreamEvent, kind: str, events: list[Event]) -> None:
        if not self._segments:
            # Some servers send only this event. Otherwise its output repeats what was streamed.
            for index, item in enumerate(response.get("output") or ()):
                self._done(index, item, events)
        if isinstance(usage := response.get("usage"), dict):
            self._usage = read_usage(usage)
        if isinstance(tier := response.get("service_tier"), str):
            self._service_tier = tier[:_MAX_TIER]
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

    # -- values --------------------------------------------------------------------------------------------------------

    def _logprobs(self, entries: object) -> list[Body]:
        return [] if self._top_logprobs is None else read_logprobs(entries, top=self._top_logprobs)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage of a response's `usage` object. Values that are not numbers count as 0."""
    read = usage.get("input_tokens_details") or {}
    written = usage.get("output_tokens_details") or {}
    return Usage(
        input_tokens=_count(usage.get("input_tokens")),
        cached_tokens=_count(read.get("cached_tokens")),
        cache_write_tokens=_count(read.get("cache_write_tokens")),
        output_tokens=_count(usage.get("output_tokens")),
        reasoning_tokens=_count(written.get("reasoning_tokens")),
    )


def _count(tokens: object) -> int:
    return min(max(int(tokens), 0), _MAX_TOKENS) if isinstance(tokens, int | float) else 0


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
