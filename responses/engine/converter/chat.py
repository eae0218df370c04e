"""Converter from chat-completion chunks to Responses events.

One converter serves one turn. Comments mark the behaviour of real upstreams that makes a rule necessary; see also
docs/upstream-quirks.md.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import orjson

from kernel.clock import now
from kernel.errors import Failure
from responses.engine.converter.annotations import flat_citations
from responses.engine.converter.call_extras import ExtrasSegment, extras_of
from responses.engine.converter.calls import CallSegment
from responses.engine.converter.logprobs import read_logprobs
from responses.engine.converter.reasoning import ReasoningCipher, ReasoningDelta, ReasoningSegment, read_reasoning
from responses.engine.converter.segments import ItemStatus, MessageSegment, SegmentQueue
from responses.engine.converter.think_tags import ThinkTags
from responses.engine.events.types import Body, Event
from responses.engine.turn import Finish, FunctionTool, TurnResult, Usage

# OpenAI limits call ids to 64 characters; clients send them back to us.
_MAX_CALL_ID = 64
_MAX_TIER = 20
_MALFORMED = Failure(code="server_error", message="The model's server sent something that is not a chat completion.")
# Token counts are stored in 32-bit integer columns.
_MAX_TOKENS = 2**31 - 1
_CALLED = {"tool_calls", "function_call"}
Chunk = dict[str, Any]
TextKind = Literal["output_text", "refusal"]


class ChatConverter:
    """Conversion of one turn.

    `raw_reasoning`: clients may see raw reasoning. `think_tags`: the text may start with `<think>…</think>`.
    """

    def __init__(
        self,
        *,
        first_output_index: int,
        top_logprobs: int | None = None,
        logprobs: bool = False,
        max_calls: int | None = None,
        tools: Sequence[FunctionTool] = (),
        cipher: ReasoningCipher | None = None,
        raw_reasoning: bool = True,
        think_tags: bool = False,
    ) -> None:
        self._max_calls = max_calls
        self._tools = {tool.name: tool for tool in tools}
        self._surplus_calls: set[int] = set()
        self._queue = SegmentQueue(first_output_index=first_output_index)
        self._calls: dict[int, CallSegment] = {}
        self._all_calls: list[CallSegment] = []
        self._late_extras: list[tuple[CallSegment, Body]] = []
        self._call_ids: set[str] = set()
        self._cipher = cipher
        self._raw_reasoning = raw_reasoning
        self._think_tags = ThinkTags() if think_tags else None
        self._logprobs = logprobs
        self._top_logprobs = top_logprobs or 0
        self._loose_logprobs: list[Body] = []
        self._citations: list[Body] = []
        self._usage: Usage | None = None
        self._service_tier: str | None = None
        self._failure: Failure | None = None
        self.finish_reason: str | None = None
        self.first_token_at: datetime | None = None

    def feed(self, chunks: Iterable[Chunk]) -> list[Event]:
        """Return the events of the chunks of one network read."""
        events: list[Event] = []
        for chunk in chunks:
            try:
                self._chunk(chunk, events)
            except (AttributeError, LookupError, TypeError, ValueError):
                # An upstream may send any JSON. Catching errors here is simpler and safer than checking every access.
                self.fail(_MALFORMED)
                break
        if events and self.first_token_at is None:
            self.first_token_at = now()
        return events

    def _chunk(self, chunk: Chunk, events: list[Event]) -> None:
        if usage := chunk.get("usage"):
            # The last one wins: some upstreams send cumulative usage with every chunk.
            self._usage = read_usage(usage)
        # `choices` is empty in the usage chunk, and in Azure's first chunk with content filter results.
        if choices := chunk.get("choices"):
            self._choice(choices[0], events)
        if isinstance(tier := chunk.get("service_tier"), str):
            self._service_tier = tier[:_MAX_TIER]

    def end(self, *, done: bool) -> list[Event]:
        """End the turn and return the closing events. `done`: the stream ended with `[DONE]`."""
        if defect := self._defect(done=done):
            self.fail(Failure(code="server_error", message=defect))
        events = self._end_tags()
        if self._loose_logprobs and isinstance(self._queue.tail, MessageSegment):
            # Some upstreams send the last log probabilities without text.
            self._write_text("output_text", "", [], events)
        if self._late_extras and self._cipher is not None:
            events += self._queue.push(ExtrasSegment(self._cipher, self._late_extras))
        status: ItemStatus = "completed" if self._finish() is Finish.STOP else "incomplete"
        return events + self._queue.end(status)

    def _defect(self, *, done: bool) -> str | None:
        # Some upstreams send only `[DONE]`, others only a finish reason. A stream with neither was cut.
        if not done and self.finish_reason is None:
            return "The model's server ended its answer too early."
        if self._surplus_calls and not self._queue.began:
            return "The model called a tool although no call was allowed, and wrote no text."
        if self.finish_reason in _CALLED and not (self._calls or self._surplus_calls):
            return "The model's server announced tool calls but sent none."
        if self._finish() is Finish.STOP and any(not call.name for call in self._calls.values()):
            return "The model's server sent a tool call without a name."
        return None

    @property
    def failed(self) -> bool:
        """True if the turn has failed and the rest of the stream is not needed."""
        return self._failure is not None

    def fail(self, failure: Failure) -> None:
        """Set the failure of the turn; the first one counts."""
        self._failure = self._failure or failure

    def interrupt(self) -> list[Event]:
        """Return the events that close open items of an interrupted turn."""
        return self._end_tags() + self._queue.end("incomplete")

    def result(self, *, interrupted: bool = False, upstream_request_id: str | None = None) -> TurnResult:
        """Return the result of the turn; only valid after `end` or `interrupt`."""
        segments = self._queue.closed
        finish = Finish.INTERRUPTED if interrupted else self._finish()
        whole = [call for call in self._all_calls if call.name and call.outcome == "completed"]
        return TurnResult(
            finish=finish,
            items=[segment.body() for segment in segments],
            # A call that was cut is shown but never run.
            calls=[call.as_call() for call in whole],
            usage=self._usage,
            failure=self._failure,
            finish_reason=self.finish_reason,
            first_token_at=self.first_token_at,
            upstream_request_id=upstream_request_id,
            service_tier=self._service_tier,
        )

    def _finish(self) -> Finish:
        if self._failure is not None:
            return Finish.ERROR
        match self.finish_reason:
            case "length":
                return Finish.LENGTH
            case "content_filter":
                return Finish.CONTENT_FILTER
        # Some upstreams send "stop" although there are calls, so calls are recognized by themselves.
        return Finish.STOP

    def _choice(self, choice: Chunk, events: list[Event]) -> None:
        # `n` is never sent, but some upstreams return several choices anyway.
        if choice.get("index"):
            return
        delta = choice.get("delta")
        logprobs: list[Body] = []
        if self._logprobs:
            logprobs = read_logprobs((choice.get("logprobs") or {}).get("content"), top=self._top_logprobs)
        if delta or logprobs:
            self._delta(delta or {}, logprobs, events)
        if reason := choice.get("finish_reason"):
            self.finish_reason = str(reason)

    def _delta(self, delta: Chunk, logprobs: list[Body], events: list[Event]) -> None:
        # Reasoning first: if one delta has both, the model reasoned before it wrote the text.
        if reasoning := read_reasoning(delta):
            self._write_reasoning(reasoning, events)
        if content := delta.get("content"):
            text = content if isinstance(content, str) else _joined(content)
            if self._think_tags is None:
                self._write_text("output_text", text, logprobs, events)
            else:
                self._write_split(self._think_tags.feed(text), logprobs, events)
        elif logprobs:
            # Some upstreams send log probabilities one chunk before their text.
            self._loose_logprobs += logprobs
        if self._citations or delta.get("annotations"):
            self._cite(delta)
        if refusal := delta.get("refusal"):
            self._write_text("refusal", str(refusal), [], events)
        if calls := delta.get("tool_calls"):
            for position, call in enumerate(calls):
                self._call(call, position, events)
        # The format of function calls before `tool_calls`, which some servers still use.
        if legacy := delta.get("function_call"):
            self._call({"index": 0, "function": legacy}, 0, events)

    def _cite(self, delta: Chunk) -> None:
        # Citations refer to the text before them. If there is none yet, they wait for the first text.
        self._citations += flat_citations(delta.get("annotations") or ())
        if isinstance(tail := self._queue.tail, MessageSegment) and tail.cite(self._citations):
            self._citations = []

    def _write_text(self, kind: TextKind, text: str, logprobs: list[Body], events: list[Event]) -> None:
        if self._loose_logprobs and kind == "output_text":
            logprobs, self._loose_logprobs = self._loose_logprobs + logprobs, []
        tail = self._queue.tail
        if isinstance(tail, MessageSegment):
            events += tail.write(kind, text, logprobs)
            if not tail.live:
                events += self._queue.show()
            return
        # Some models write blank lines between reasoning and calls. Only at the start of a turn is white space shown
        # immediately.
        message = MessageSegment(hold_blank=self._queue.began)
        message.write(kind, text, logprobs)
        events += self._queue.push(message)

    def _write_reasoning(self, piece: ReasoningDelta, events: list[Event]) -> None:
        tail = self._queue.tail
        if isinstance(tail, ReasoningSegment) and tail.takes(piece):
            events += tail.write(piece)
        elif piece.begins_item:
            # Also after text or calls: models with interleaved thinking return to reasoning, which is a new item then.
            reasoning = ReasoningSegment(cipher=self._cipher, shown=self._raw_reasoning)
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
                self._write_text("output_text", text, [], events)

    def _end_tags(self) -> list[Event]:
        # Text that could have been the start of a tag was held back.
        events: list[Event] = []
        if self._think_tags is not None:
            self._write_split(self._think_tags.end(), [], events)
        return events

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
            if len(self._all_calls) == self._max_calls:
                # Some upstreams ignore `parallel_tool_calls: false`. Only the first call is kept.
                self._surplus_calls.add(index)
                return
            segment = self._calls[index] = CallSegment(
                upstream_id=upstream_id, call_id=self._usable_id(upstream_id), tools=self._tools, native=native
            )
            self._all_calls.append(segment)
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
            events += self._queue.show()

    def _keep_extras(self, call: CallSegment, extras: Body, events: list[Event]) -> None:
        # The item with the extras precedes its call. If the call has no id yet, it has to wait for the end of the turn.
        if self._cipher is not None and call.upstream_id:
            events += self._queue.push(ExtrasSegment(self._cipher, [(call, extras)]))
        else:
            self._late_extras.append((call, extras))

    def _usable_id(self, upstream_id: str | None) -> str | None:
        # The upstream's id of a call, unless it is too long or another call of this turn has the same one.
        if upstream_id and len(upstream_id) <= _MAX_CALL_ID and upstream_id not in self._call_ids:
            self._call_ids.add(upstream_id)
            return upstream_id
        return None


def read_usage(usage: Chunk) -> Usage:
    """Return the usage of a chat completion's `usage` object. Values that are not numbers count as 0."""
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(prompt.get("cached_tokens")),
        cache_write_tokens=_count(prompt.get("cache_write_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
    )


def _count(tokens: object) -> int:
    return min(max(int(tokens), 0), _MAX_TOKENS) if isinstance(tokens, int | float) else 0


def _joined(parts: list[Chunk]) -> str:
    # Some upstreams send content as a list of parts of various types.
    return "".join(part.get("text") or part.get("thinking") or part.get("summary") or "" for part in parts)


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
