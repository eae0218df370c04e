"""Converter from chat-completion chunks to Responses events.

One converter serves one turn. Comments mark the behaviour of real upstreams that makes a rule necessary; see also
docs/reference/upstream-quirks.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import regex
from typing_extensions import override

from core.errors import Failure, UpstreamError
from engine.converter.base import TurnConverter, citations, later_usage, nested_usage
from engine.converter.calls import CallSegment
from engine.converter.chat_calls import CallJoiner, CallPiece, new_arguments, read_calls, split_glued
from engine.converter.chat_choices import ChoiceSelector
from engine.converter.chat_content import ContentPiece, read_content
from engine.converter.chat_reasoning import (
    ChatReasoning,
    ExtrasSegment,
    ReasoningDelta,
    extras_of,
    read_reasoning,
)
from engine.converter.finish_reasons import FinishKind, finish_kind, is_finish_reason
from engine.converter.joined_text import Text, chunk_with_text, text_of_chunk
from engine.converter.output_bound import OutputBound
from engine.converter.search_sources import Source, cited, read_sources
from engine.converter.segments import MessageSegment, PartKind, ReasoningCipher
from engine.converter.think_tags import ThinkTags
from engine.events.types import Body, Event
from engine.turn import Finish, Sampling

_FINISHES = {FinishKind.LENGTH: Finish.LENGTH, FinishKind.CONTENT_FILTER: Finish.CONTENT_FILTER}
# Finish reasons of incomplete answers. A later reason does not make such an answer complete.
_CUT = {FinishKind.FAILED, *_FINISHES}
_WORD = regex.compile(r"[\w :.-]{1,60}")
_TOO_EARLY = "The model's server ended its answer too early."
Chunk = dict[str, Any]


def _unnamed_failure(_: object) -> Failure:
    return Failure.of(UpstreamError())


class ChatConverter(TurnConverter):
    """Conversion of one turn.

    `think_tags`: the text may contain reasoning between tags such as `<think>…</think>`. `to_failure` maps an error
    inside a choice to a failure.
    """

    malformed = Failure.of(UpstreamError("The model's server sent something that is not a chat completion."))

    def __init__(
        self,
        *,
        first_output_index: int,
        sampling: Sampling | None = None,
        cipher: ReasoningCipher | None = None,
        show_raw: bool = True,
        think_tags: bool = False,
        to_failure: Callable[[object], Failure] = _unnamed_failure,
    ) -> None:
        super().__init__(first_output_index=first_output_index, sampling=sampling, cipher=cipher, show_raw=show_raw)
        self._think_tags = ThinkTags() if think_tags else None
        self._to_failure = to_failure
        self._choices = ChoiceSelector()
        self._finish_kind: FinishKind | None = None
        self._reported: Failure | None = None
        self._is_document = False
        self._answer_length = 0
        self._late_extras: list[tuple[CallSegment, Body]] = []
        self._loose_logprobs: list[Body] = []
        self._citations: list[Body] = []
        self._sources: list[Source] = []

    @cached_property
    def _calls(self) -> CallJoiner:
        # Created by the first call or at the end of the turn, because it takes 0.8 KB of an open stream.
        return CallJoiner()

    @override
    def is_completed_by(self, rest: Sequence[Chunk]) -> bool:
        trial = ChatConverter(first_output_index=0)
        trial.feed(rest)
        usage = trial._usage or self._usage
        pieces = self._pieces + trial._pieces
        return trial.is_finished and usage is not None and 0 < usage.output_tokens <= pieces

    @override
    def _text_of(self, event: Chunk) -> Text | None:
        return text_of_chunk(event)

    @override
    def _with_text(self, event: Chunk, text: str) -> Chunk:
        return chunk_with_text(event, text)

    @override
    def _read(self, event: Chunk, events: list[Event]) -> None:
        if usage := event.get("usage"):
            # The last usage wins: some upstreams send cumulative usage with every chunk.
            self._usage = later_usage(self._usage, usage)
            if self._bound is not None and self._usage is not None:
                self._bound.report(self._usage.output_tokens)
        # `choices` is empty in the usage chunk, and in Azure's first chunk with content filter results.
        if choices := event.get("choices"):
            for choice in self._choices.select(choices):
                self._choice(choice, events)
            if self.finish_reason is not None and not usage:
                self._usage = later_usage(self._usage, nested_usage(event))
        if self.finish_reason is not None or usage:
            # Some upstreams repeat the sources of a search in each chunk, others send them only at the end.
            self._sources = read_sources(event) or self._sources
        if tier := event.get("service_tier"):
            self._read_tier(tier)

    @override
    def _as_event(self, answer: Chunk) -> Chunk:
        choices = answer.get("choices") or []
        if not choices:
            self.fail(Failure.of(UpstreamError("The model's server sent an answer without choices.")))
            return {}
        self._is_document = True
        choice = choices[0]
        message = choice.get("message")
        if message is None and choice.get("text") is not None:
            message = {"content": choice["text"]}
        if message is None and not choice.get("finish_reason") and not choice.get("error"):
            self.fail(Failure.of(UpstreamError("The model's server sent a choice without a message.")))
        return {**answer, "choices": [{**choice, "delta": message}]}

    @override
    def end(self, *, done: bool = False) -> list[Event]:
        events = self._end_choices()
        self._end_text(events)
        self._made = [call for call in self._made if call.name or call.arguments]
        if self._reported is not None:
            self.fail(self._reported)
        elif defect := self._defect(done=done or self._is_document):
            self.fail(Failure.of(UpstreamError(defect)))
        self._made = [call for call in self._made if call.name]
        if self._loose_logprobs and isinstance(self._queue.tail, MessageSegment):
            # Some upstreams send the last log probabilities without text.
            self._write_text("output_text", "", [], events)
        if self._sources:
            self._cite_sources()
        if self._late_extras and self._cipher is not None:
            events += self._queue.push(ExtrasSegment(self._cipher, self._late_extras))
        return events + self._close_all()

    def _end_choices(self) -> list[Event]:
        ended_at_stop = self.over and self._failure is None
        waiting = [] if ended_at_stop else self._choices.end()
        return [event for choice in waiting for event in self.feed([{"choices": [choice]}])]

    def _defect(self, *, done: bool) -> str | None:
        kind, made = self._finish_kind, self._made
        # Some upstreams send only `[DONE]`, others only a finish reason. A stream with neither of them was cut.
        # A gateway that lost its own upstream before the first token may send nothing but `[DONE]`.
        if self.finish_reason is None and (not done or self._is_empty or any(call.is_cut for call in made)):
            return _TOO_EARLY
        if kind is FinishKind.FAILED:
            return f"The model's server ended its answer{self._named_reason}."
        if kind is FinishKind.UNKNOWN and (not self._queue.has_output or any(call.is_cut for call in made)):
            return f"The model's server ended its answer{self._named_reason} before it was complete."
        if self._calls.has_ignored and not self._queue.began:
            return "The model called a tool although no call was allowed, and wrote no text."
        if kind is FinishKind.CALLS and not (made or self._calls.has_ignored):
            return "The model's server announced tool calls but sent none."
        if kind not in _CUT and any(not call.name for call in made) and not self._is_beside_text:
            return "The model's server sent a tool call without a name."
        return None

    @property
    def _is_empty(self) -> bool:
        # A document is complete by itself.
        return not (self._is_document or self._queue.began or self._made or self._calls.has_ignored)

    def _cite_sources(self) -> None:
        tail = self._queue.tail
        if isinstance(tail, MessageSegment) and tail.parts and tail.parts[-1].kind == "output_text":
            part = tail.parts[-1]
            part.annotations += cited("".join(part.text), self._sources, known=part.annotations)

    @property
    def _named_reason(self) -> str:
        is_shown = self.finish_reason is not None and _WORD.fullmatch(self.finish_reason)
        return f" with the finish reason '{self.finish_reason}'" if is_shown else ""

    @property
    def _is_beside_text(self) -> bool:
        # Some upstreams send a call without a name and arguments in addition to a complete text.
        has_arguments = any(not call.name and "".join(call.arguments).strip() != "{}" for call in self._made)
        return not has_arguments and self._finish_kind is not FinishKind.CALLS and self._queue.has_message

    def closed_reasoning(self, item_id: str) -> ChatReasoning | None:
        """Return the complete reasoning item with this id; None for any other item."""
        found = (segment for segment in self._queue.closed if segment.id == item_id)
        segment = next(found, None)
        return segment if isinstance(segment, ChatReasoning) else None

    @override
    def interrupt(self) -> list[Event]:
        events = self._end_choices()
        self._end_text(events)
        self._made = [call for call in self._made if call.name]
        return events + super().interrupt()

    def _end_text(self, events: list[Event]) -> None:
        """Write the text that was held back. Called when something other than text follows."""
        self._end_tags(events)
        self._write_held(events)

    def _end_tags(self, events: list[Event]) -> None:
        if self._think_tags is not None and (held := self._think_tags.end()):
            self._write_split(held, [], events)

    def _choice(self, choice: Chunk, events: list[Event]) -> None:
        logprobs: list[Body] = []
        if self._top_logprobs is not None:
            logprobs = self._logprobs((choice.get("logprobs") or {}).get("content"))
        delta = choice.get("delta")
        if "delta" not in choice:
            # Some servers send a whole completion as the only event of a stream.
            delta = {"content": text} if (text := choice.get("text")) else choice.get("message")
        if delta or logprobs:
            self._delta(delta or {}, logprobs, events)
        if (reason := choice.get("finish_reason")) and not self.over and is_finish_reason(reason):
            self._read_reason(str(reason))
        if error := choice.get("error"):
            self._reported = self._reported or self._to_failure(error)

    def _read_reason(self, reason: str) -> None:
        kind = finish_kind(reason)
        if self._finish_kind is FinishKind.FAILED or (self._finish_kind in _CUT and kind not in _CUT):
            return
        # Some upstreams send "stop" although there are calls, so calls are recognized by themselves.
        self.finish_reason, self._finish_kind = reason, kind
        self._finish = _FINISHES.get(kind, Finish.STOP)

    def _delta(self, delta: Chunk, logprobs: list[Body], events: list[Event]) -> None:
        content = delta.get("content")
        is_plain = len(delta) == 1 and self._think_tags is None and not self._citations
        if is_plain and content and isinstance(content, str):
            # Shortcut for deltas that contain only text, as nearly all of them do: 64 deltas take 94 us instead of
            # 111 us.
            self._write_answer(content, logprobs, events)
            return
        # Reasoning first: if one delta has both, the model reasoned before it wrote the text.
        if reasoning := read_reasoning(delta):
            self._end_text(events)
            self._write_reasoning(reasoning, events)
        if content:
            for piece in [ContentPiece("text", content)] if isinstance(content, str) else read_content(content):
                self._write_content(piece, logprobs, events)
                logprobs = []
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
            self._end_text(events)
            self._write_text("refusal", str(refusal), [], events)
        for call in read_calls(delta):
            self._end_text(events)
            self._call(call, events)

    @property
    def limited_to(self) -> int | None:
        """Number of characters of the answer before the output limit; None until the limit is reached."""
        return self._answer_length if self._bound is not None and self._bound.is_reached else None

    @override
    def _within_limit(self, text: str, bound: OutputBound | None) -> str:
        text = super()._within_limit(text, bound)
        if bound is not None and bound.is_reached:
            self._finish_kind = FinishKind.LENGTH
        return text

    def _write_content(self, piece: ContentPiece, logprobs: list[Body], events: list[Event]) -> None:
        if piece.kind == "text" and self._think_tags is not None:
            self._write_split(self._think_tags.feed(piece.text), logprobs, events)
        elif piece.kind == "text":
            self._write_answer(piece.text, logprobs, events)
        elif piece.kind == "refusal" and piece.text:
            self._end_text(events)
            self._write_text("refusal", piece.text, [], events)
        elif piece.kind == "reasoning":
            self._end_text(events)
            self._write_reasoning(ReasoningDelta(text=piece.text, details=piece.details), events)

    def _write_answer(self, text: str, logprobs: list[Body], events: list[Event]) -> None:
        if self._bound is not None:
            text = self._within_limit(text, self._bound)
            self._answer_length += len(text)
        if text := self._before_stop(text):
            self._write_text("output_text", text, logprobs, events)
        else:
            self._loose_logprobs += logprobs

    def _write_held(self, events: list[Event]) -> None:
        # Something other than text follows, so the held text is not the beginning of a stop sequence.
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
        if self._bound is not None:
            piece = replace(piece, text=self._within_limit(piece.text, self._bound))
        tail = self._queue.tail
        if isinstance(tail, ChatReasoning) and tail.takes(piece):
            events += tail.write(piece)
        elif piece.begins_item:
            # Also after text or calls: models with interleaved thinking return to reasoning, which is a new item then.
            reasoning = ChatReasoning(cipher=self._cipher, shown=self._show_raw)
            reasoning.write(piece)
            events += self._queue.push(reasoning)

    def _write_split(self, pieces: Iterable[tuple[str, str]], logprobs: list[Body], events: list[Event]) -> None:
        # Log probabilities also cover the tags and the reasoning. Only log probabilities of the text are shown.
        self._loose_logprobs += logprobs
        for kind, text in pieces:
            if kind == "reasoning":
                self._write_reasoning(ReasoningDelta(text=text), events)
            else:
                self._loose_logprobs = _last_covering(self._loose_logprobs, text)
                self._write_answer(text, [], events)

    def _call(self, piece: CallPiece, events: list[Event]) -> None:
        if self._calls.ignores(piece):
            return
        # A call that is cut off here is shown and never run.
        self._within_limit(piece.arguments or "", self._bound)
        segment, extras = self._calls.find(piece), extras_of(piece.source)
        if segment is None:
            if piece.is_empty:
                self._calls.announce(piece)
                return
            if len(self._made) == self._max_calls:
                # Some upstreams ignore `parallel_tool_calls: false`. Only the first call is kept.
                self._calls.ignore(piece)
                return
            piece = self._calls.announced(piece)
            segment, extras = self._new_call(piece.id, native=piece.native), extras_of(piece.source)
            self._calls.add(piece, segment)
            arguments, rest = self._split(segment, piece, piece.arguments)
            segment.write(piece.name, arguments)
            if extras:
                self._keep_extras(segment, extras, events)
            events += self._queue.push(segment)
            self._call_again(segment, piece, rest, events)
            return
        if piece.id and not segment.upstream_id:
            segment.adopt(piece.id, self._usable_id(piece.id))
        if extras:
            self._late_extras.append((segment, extras))
        if piece.opens_object and segment.is_blank:
            # Gateways to Claude begin with an empty object, and send the arguments after it.
            segment.arguments.clear()
        arguments, rest = self._split(segment, piece, new_arguments(segment, piece))
        events += segment.write(piece.name, arguments)
        if not segment.live:
            events += self._queue.advance()
        self._call_again(segment, piece, rest, events)

    @staticmethod
    def _split(segment: CallSegment, piece: CallPiece, arguments: str | None) -> tuple[str | None, str]:
        return (arguments, "") if piece.native or not arguments else split_glued(segment, arguments)

    def _call_again(self, segment: CallSegment, piece: CallPiece, arguments: str, events: list[Event]) -> None:
        """Begin another call of the same function. Its arguments were appended to the arguments of the last call."""
        piece = replace(piece, id=None)
        while arguments:
            is_new = not segment.is_blank
            if is_new and len(self._made) == self._max_calls:
                self._calls.ignore(piece)
                return
            if is_new:
                name, segment = segment.name, self._new_call(None, native=False)
                segment.write(name, None)
                self._calls.add(piece, segment)
            else:
                segment.arguments.clear()
            written, arguments = split_glued(segment, arguments)
            segment.write(None, written)
            events += self._queue.push(segment) if is_new else self._queue.advance()

    def _keep_extras(self, call: CallSegment, extras: Body, events: list[Event]) -> None:
        # The item with the extras precedes its call. If that has no id yet, the item is added at the end of the turn.
        if self._cipher is not None and call.upstream_id:
            events += self._queue.push(ExtrasSegment(self._cipher, [(call, extras)]))
        else:
            self._late_extras.append((call, extras))


def _last_covering(logprobs: list[Body], text: str) -> list[Body]:
    # Takes the entries of the last tokens until they have the length of the text.
    left, first = len(text), len(logprobs)
    while left > 0 and first > 0:
        first -= 1
        left -= len(logprobs[first]["token"])
    return logprobs[first:]
