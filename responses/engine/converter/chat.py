"""Converter from chat-completion chunks to Responses events.

One converter serves one turn. Comments mark the behaviour of real upstreams that makes a rule necessary; see also
docs/reference/upstream-quirks.md.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from typing_extensions import override

from kernel.errors import Failure
from responses.engine.converter.base import TurnConverter, citations, later_usage, nested_usage
from responses.engine.converter.calls import CallSegment
from responses.engine.converter.chat_reasoning import (
    ChatReasoning,
    ExtrasSegment,
    ReasoningDelta,
    extras_of,
    read_reasoning,
)
from responses.engine.converter.search_sources import Source, cited, read_sources
from responses.engine.converter.segments import MessageSegment, PartKind, ReasoningCipher
from responses.engine.converter.think_tags import ThinkTags
from responses.engine.events.types import Body, Event
from responses.engine.turn import Finish, Sampling

_CALLED = {"tool_calls", "function_call"}
_FINISHES = {"length": Finish.LENGTH, "content_filter": Finish.CONTENT_FILTER}
Chunk = dict[str, Any]


class ChatConverter(TurnConverter):
    """Conversion of one turn. `think_tags`: the text may start with `<think>…</think>`."""

    malformed = Failure(code="server_error", message="The model's server sent something that is not a chat completion.")

    def __init__(
        self,
        *,
        first_output_index: int,
        sampling: Sampling | None = None,
        cipher: ReasoningCipher | None = None,
        show_raw: bool = True,
        think_tags: bool = False,
    ) -> None:
        super().__init__(first_output_index=first_output_index, sampling=sampling, cipher=cipher, show_raw=show_raw)
        self._think_tags = ThinkTags() if think_tags else None
        # The last call of each index, and the indexes of calls that are ignored.
        self._calls: dict[int, CallSegment] = {}
        self._surplus_calls: set[int] = set()
        self._late_extras: list[tuple[CallSegment, Body]] = []
        self._loose_logprobs: list[Body] = []
        self._citations: list[Body] = []
        self._sources: list[Source] = []

    @override
    def _read(self, event: Chunk, events: list[Event]) -> None:
        if usage := event.get("usage"):
            # The last one wins: some upstreams send cumulative usage with every chunk.
            self._usage = later_usage(self._usage, usage)
        # `choices` is empty in the usage chunk, and in Azure's first chunk with content filter results. `n` is never
        # sent, but some upstreams return several choices anyway.
        if (choices := event.get("choices")) and not choices[0].get("index"):
            self._choice(choices[0], events)
            if self.finish_reason is not None and not usage:
                self._usage = later_usage(self._usage, nested_usage(event))
        if self.finish_reason is not None or usage:
            # Those of a search: some repeat them in each chunk, others send them only at the end.
            self._sources = read_sources(event) or self._sources
        if tier := event.get("service_tier"):
            self._read_tier(tier)

    @override
    def _as_event(self, answer: Chunk) -> Chunk:
        choices = answer.get("choices") or []
        if not choices:
            self.fail(Failure(code="server_error", message="The model's server sent an answer without choices."))
            return {}
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        reason = choice.get("finish_reason") or "stop"
        return {**answer, "choices": [{**choice, "delta": choice.get("message"), "finish_reason": reason}]}

    @override
    def end(self, *, done: bool = False) -> list[Event]:
        if defect := self._defect(done=done):
            self.fail(Failure(code="server_error", message=defect))
        events = self._end_text()
        if self._loose_logprobs and isinstance(self._queue.tail, MessageSegment):
            # Some upstreams send the last log probabilities without text.
            self._write_text("output_text", "", [], events)
        if self._sources:
            self._cite_sources()
        if self._late_extras and self._cipher is not None:
            events += self._queue.push(ExtrasSegment(self._cipher, self._late_extras))
        return events + self._close_all()

    def _defect(self, *, done: bool) -> str | None:
        # Some upstreams send only `[DONE]`, others only a finish reason. A stream with neither was cut.
        if not done and self.finish_reason is None:
            return "The model's server ended its answer too early."
        if self._surplus_calls and not self._queue.began:
            return "The model called a tool although no call was allowed, and wrote no text."
        if self.finish_reason in _CALLED and not (self._calls or self._surplus_calls):
            return "The model's server announced tool calls but sent none."
        if self._finish is Finish.STOP and any(not call.name for call in self._calls.values()):
            return "The model's server sent a tool call without a name."
        return None

    def _cite_sources(self) -> None:
        tail = self._queue.tail
        if isinstance(tail, MessageSegment) and tail.parts and tail.parts[-1].kind == "output_text":
            part = tail.parts[-1]
            part.annotations += cited("".join(part.text), self._sources, known=part.annotations)

    def closed_reasoning(self, item_id: str) -> ChatReasoning | None:
        """Return a reasoning item that is complete."""
        found = (segment for segment in self._queue.closed if segment.id == item_id)
        segment = next(found, None)
        return segment if isinstance(segment, ChatReasoning) else None

    @override
    def interrupt(self) -> list[Event]:
        return self._end_text() + super().interrupt()

    def _end_text(self) -> list[Event]:
        events: list[Event] = []
        if self._think_tags is not None:
            # Text that could have been the start of a tag was held back.
            self._write_split(self._think_tags.end(), [], events)
        self._write_held(events)
        self._made = [call for call in self._made if call.name]
        return events

    def _choice(self, choice: Chunk, events: list[Event]) -> None:
        logprobs: list[Body] = []
        if self._top_logprobs is not None:
            logprobs = self._logprobs((choice.get("logprobs") or {}).get("content"))
        delta = choice.get("delta")
        if delta or logprobs:
            self._delta(delta or {}, logprobs, events)
        if (reason := choice.get("finish_reason")) and not self.over:
            self.finish_reason = str(reason)
            # Some upstreams send "stop" although there are calls, so calls are recognized by themselves.
            self._finish = _FINISHES.get(self.finish_reason, Finish.STOP)

    def _delta(self, delta: Chunk, logprobs: list[Body], events: list[Event]) -> None:
        content = delta.get("content")
        is_plain = len(delta) == 1 and self._think_tags is None and not self._citations
        if is_plain and content and isinstance(content, str):
            # Nearly every delta is a token of text and nothing else, for which the rest would find nothing to do: 64 of
            # them take 94 us, and 111 us without this.
            self._write_answer(content, logprobs, events)
            return
        # Reasoning first: if one delta has both, the model reasoned before it wrote the text.
        if reasoning := read_reasoning(delta):
            self._write_held(events)
            self._write_reasoning(reasoning, events)
        if content:
            text = content
            if not isinstance(content, str):
                # Some upstreams send content as a list of parts of various types.
                text = "".join(
                    part.get("text") or part.get("thinking") or part.get("summary") or "" for part in content
                )
            if self._think_tags is None:
                self._write_answer(text, logprobs, events)
            else:
                self._write_split(self._think_tags.feed(text), logprobs, events)
        elif logprobs:
            # Some upstreams send log probabilities one chunk before their text.
            self._loose_logprobs += logprobs
        if self._citations or delta.get("annotations"):
            self._citations += citations(delta.get("annotations") or ())
            # Citations refer to the text before them. If there is none yet, they wait for the first text.
            tail = self._queue.tail
            if isinstance(tail, MessageSegment) and tail.parts and tail.parts[-1].kind == "output_text":
                tail.parts[-1].annotations += self._citations
                self._citations = []
        if self.over:
            return
        if refusal := delta.get("refusal"):
            self._write_held(events)
            self._write_text("refusal", str(refusal), [], events)
        if calls := delta.get("tool_calls"):
            self._write_held(events)
            for position, call in enumerate(calls):
                self._call(call, position, events)
        # The format of function calls before `tool_calls`, which some servers still use.
        if legacy := delta.get("function_call"):
            self._call({"index": 0, "function": legacy}, 0, events)

    def _write_answer(self, text: str, logprobs: list[Body], events: list[Event]) -> None:
        if text := self._before_stop(text):
            self._write_text("output_text", text, logprobs, events)
        else:
            self._loose_logprobs += logprobs

    def _write_held(self, events: list[Event]) -> None:
        # What follows is no text, so the text before it is complete.
        if self._stop is not None and (held := self._stop.end()):
            self._write_text("output_text", held, [], events)

    def _write_text(self, kind: PartKind, text: str, logprobs: list[Body], events: list[Event]) -> None:
        if self._loose_logprobs and kind == "output_text":
            logprobs, self._loose_logprobs = self._loose_logprobs + logprobs, []
        tail = self._queue.tail
        if isinstance(tail, MessageSegment):
            events += tail.write(kind, text, logprobs)
            if not tail.live:
                events += self._queue.advance()
            return
        # Some models write blank lines between reasoning and calls. Only at the start of a turn is white space shown
        # immediately.
        message = MessageSegment(hold_blank=self._queue.began)
        message.write(kind, text, logprobs)
        events += self._queue.push(message)

    def _write_reasoning(self, piece: ReasoningDelta, events: list[Event]) -> None:
        tail = self._queue.tail
        if isinstance(tail, ChatReasoning) and tail.takes(piece):
            events += tail.write(piece)
        elif piece.begins_item:
            # Also after text or calls: models with interleaved thinking return to reasoning, which is a new item then.
            reasoning = ChatReasoning(cipher=self._cipher, shown=self._show_raw)
            reasoning.write(piece)
            events += self._queue.push(reasoning)

    def _write_split(self, pieces: Iterable[tuple[str, str]], logprobs: list[Body], events: list[Event]) -> None:
        # Log probabilities cover the tags and the reasoning as well; only those of the text are shown.
        self._loose_logprobs += logprobs
        for kind, text in pieces:
            if kind == "reasoning":
                self._write_reasoning(ReasoningDelta(text=text), events)
            else:
                self._loose_logprobs = _last_covering(self._loose_logprobs, text)
                self._write_answer(text, [], events)

    def _call(self, call: Chunk, position: int, events: list[Event]) -> None:
        # Some upstreams send no index; then the position in the list has to do.
        index = call.get("index")
        index = position if index is None else index
        if index in self._surplus_calls:
            return
        # Upstreams with native custom tools nest the call under `custom`, with `input` instead of `arguments`.
        native = call.get("type") == "custom" or "custom" in call
        function = call.get("custom" if native else "function") or {}
        name, arguments = function.get("name"), _text(function.get("input" if native else "arguments"))
        upstream_id = call.get("id") or None
        segment = self._calls.get(index)
        if segment is None or segment.is_over(upstream_id, name, arguments):
            if len(self._made) == self._max_calls:
                # Some upstreams ignore `parallel_tool_calls: false`. Only the first call is kept.
                self._surplus_calls.add(index)
                return
            segment = self._calls[index] = self._new_call(upstream_id, native=native)
            segment.write(name, arguments)
            if extras := extras_of(call):
                self._keep_extras(segment, extras, events)
            events += self._queue.push(segment)
            return
        if upstream_id and not segment.upstream_id:
            segment.adopt(upstream_id, self._usable_id(upstream_id))
        if extras := extras_of(call):
            self._late_extras.append((segment, extras))
        events += segment.write(name, arguments)
        if not segment.live:
            events += self._queue.advance()

    def _keep_extras(self, call: CallSegment, extras: Body, events: list[Event]) -> None:
        # The item with the extras precedes its call. If the call has no id yet, it has to wait for the end of the turn.
        if self._cipher is not None and call.upstream_id:
            events += self._queue.push(ExtrasSegment(self._cipher, [(call, extras)]))
        else:
            self._late_extras.append((call, extras))


def _last_covering(logprobs: list[Body], text: str) -> list[Body]:
    # The entries of the last tokens that together have the length of the text.
    left, first = len(text), len(logprobs)
    while left > 0 and first > 0:
        first -= 1
        left -= len(logprobs[first]["token"])
    return logprobs[first:]


def _text(arguments: object) -> str | None:
    # Some servers send the arguments as a JSON object instead of text.
    return arguments if arguments is None or isinstance(arguments, str) else orjson.dumps(arguments).decode()
