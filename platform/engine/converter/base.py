"""Base class of the converters for upstream APIs, and functions that read the fields that the APIs share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from conversations.items import OutputText, readable_items
from core.clock import now
from core.errors import Failure
from engine.converter.calls import CallSegment
from engine.converter.joined_text import Text, joined
from engine.converter.output_bound import OutputBound
from engine.converter.segments import ReasoningCipher, SegmentQueue
from engine.converter.stop_sequences import StopSequences
from engine.events.types import Body, Event
from engine.turn import Attempt, Finish, Sampling, TurnResult, Usage

# OpenAI limits call ids to 64 characters; clients send them back to us.
_MAX_CALL_ID = 64
_MAX_TIER = 20
# An upstream may send any JSON. Catching errors is simpler and safer than checking every access.
_UNEXPECTED = (AttributeError, LookupError, TypeError, ValueError)
UpstreamEvent = dict[str, Any]


class TurnConverter(ABC):
    """Conversion of one turn. Item ids, output indexes and the order of items are our own.

    `show_raw`: clients may see raw reasoning.
    """

    malformed: Failure
    # Reason why the model stopped, unless the turn has failed.
    _finish = Finish.STOP

    def __init__(
        self,
        *,
        first_output_index: int,
        sampling: Sampling | None = None,
        cipher: ReasoningCipher | None = None,
        show_raw: bool = True,
    ) -> None:
        sampling = sampling or Sampling()
        self._queue = SegmentQueue(first_output_index=first_output_index)
        self._tools = {tool.name: tool for tool in sampling.tools}
        self._max_calls = sampling.max_calls
        self._top_logprobs = (sampling.top_logprobs or 0) if sampling.logprobs else None
        self._stop = StopSequences(sampling.stop) if sampling.stop else None
        limit = sampling.max_output_tokens
        self._bound = OutputBound(limit) if limit is not None else None
        self._cipher = cipher
        self._show_raw = show_raw
        self._made: list[CallSegment] = []
        # The number of upstream events with output.
        self._pieces = 0
        self._usage: Usage | None = None
        self._service_tier: str | None = None
        self._failure: Failure | None = None
        self.finish_reason: str | None = None
        self.first_token_at: datetime | None = None
        # True if the turn has ended or failed, and the rest of the stream is not needed.
        self.over = False

    @cached_property
    def _call_ids(self) -> set[str]:
        # Created by the first call, because most turns have none and an open stream keeps its converter.
        return set()

    def feed(self, upstream: Iterable[UpstreamEvent], *, joins_texts: bool = False) -> list[Event]:
        """Return the events for the upstream events of one network read.

        With `joins_texts`, texts that follow each other become one delta.
        """
        events: list[Event] = []
        if joins_texts:
            upstream = self._joined(upstream)
        for event in upstream:
            before = len(events)
            try:
                self._read(event, events)
            except _UNEXPECTED:
                self.fail(self.malformed)
            if len(events) > before:
                self._pieces += 1
            if self.over:
                break
        if self.first_token_at is None and (events or self._made):
            self.first_token_at = now()
        return events

    def _joined(self, upstream: Iterable[UpstreamEvent]) -> Iterator[UpstreamEvent]:
        for event, pieces in joined(upstream, read=self._text_of, write=self._with_text):
            self._pieces += pieces - 1
            if self._bound is not None:
                self._bound.count(pieces - 1)
            yield event

    @abstractmethod
    def _text_of(self, event: UpstreamEvent) -> Text | None:
        """Return the text of an event that contains nothing else."""

    @abstractmethod
    def _with_text(self, event: UpstreamEvent, text: str) -> UpstreamEvent:
        """Return a copy of an event with a text instead of its own."""

    def shown(self, events: list[Event]) -> list[Event]:
        """Return events of this conversion as clients may see them. The result of the turn has the complete items."""
        return events

    @abstractmethod
    def _read(self, event: UpstreamEvent, events: list[Event]) -> None:
        """Convert one event or chunk of the upstream; append the results to `events`."""

    def whole(self, answer: UpstreamEvent) -> list[Event]:
        """Return the events of an answer that was not streamed. The time of its first token is unknown."""
        try:
            event = self._as_event(answer)
        except _UNEXPECTED:
            self.fail(self.malformed)
            return []
        events = self.feed([event])
        self.first_token_at = None
        return events

    @abstractmethod
    def _as_event(self, answer: UpstreamEvent) -> UpstreamEvent:
        """Convert an answer that was not streamed into one event or chunk."""

    @abstractmethod
    def end(self, *, done: bool = False) -> list[Event]:
        """End the turn and return the closing events. `done`: the stream ended with `[DONE]`."""

    def fail(self, failure: Failure) -> None:
        """Set the failure of the turn, unless it has one already."""
        self._failure = self._failure or failure
        self.over = True

    @property
    def is_finished(self) -> bool:
        """True if the upstream has reported why the model stopped: nothing of its output can follow."""
        return self.finish_reason is not None

    def is_completed_by(self, rest: Sequence[UpstreamEvent]) -> bool:
        """Return true if the last events of a stream prove that no output is missing before them.

        They do so if they contain the finish reason, and a usage of no more tokens than there are events with output.
        Servers that send several tokens in one event prove nothing.
        """
        return False

    @property
    def has_failed(self) -> bool:
        """True if the turn has a failure."""
        return self._failure is not None

    def interrupt(self) -> list[Event]:
        """Return the events that close open items of an interrupted turn."""
        return self._queue.end("incomplete")

    def result(self, *, interrupted: bool = False, attempts: Sequence[Attempt] | None = None) -> TurnResult:
        """Return the result of the turn; only valid after `end` or `interrupt`."""
        items = self._valid_items()
        return TurnResult(
            finish=Finish.INTERRUPTED if interrupted else self._ending,
            items=items,
            # A call that was cut off is shown but never run.
            calls=[call.as_call() for call in self._made if call.outcome == "completed"],
            usage=replace(self._usage, service_tier=self._service_tier or "") if self._usage is not None else None,
            failure=self._failure,
            finish_reason=self.finish_reason,
            stop_sequence=self._stop.found if self._stop is not None else None,
            first_token_at=self.first_token_at,
            upstream_request_id=attempts[-1].request_id if attempts else None,
            service_tier=self._service_tier,
            attempts=attempts,
        )

    def _valid_items(self) -> list[Body]:
        """Return the bodies of the items. The turn fails if an item is invalid; the item is omitted."""
        bodies = [segment.item() for segment in self._queue.closed]
        valid = readable_items(bodies)
        if len(valid) < len(bodies):
            self.fail(self.malformed)
            known = {item.id for item in valid}
            bodies = [body for body in bodies if body["id"] in known]
        return bodies

    @property
    def _ending(self) -> Finish:
        return Finish.ERROR if self._failure is not None else self._finish

    def _close_all(self) -> list[Event]:
        return self._queue.end("completed" if self._ending is Finish.STOP else "incomplete")

    def _before_stop(self, text: str) -> str:
        """Return the text before the first stop sequence, which ends the turn."""
        if self._stop is None:
            return text
        text = self._stop.feed(text)
        if self._stop.found is not None:
            # The rest is not needed, so the connection to the upstream is closed.
            self.finish_reason, self._finish, self.over = "stop_sequence", Finish.STOP, True
        return text

    def _within_limit(self, text: str, bound: OutputBound | None) -> str:
        """Return the part of a piece of output that the limit allows. The turn ends when the limit is reached."""
        if bound is None:
            return text
        text = bound.take(text)
        if bound.is_reached:
            # Nothing more is needed, so the connection to the upstream is closed.
            self.finish_reason, self._finish, self.over = "length", Finish.LENGTH, True
        return text

    def _new_call(self, upstream_id: str | None, *, native: bool) -> CallSegment:
        call_id = self._usable_id(upstream_id)
        self._made.append(CallSegment(upstream_id=upstream_id, call_id=call_id, tools=self._tools, native=native))
        return self._made[-1]

    def _usable_id(self, upstream_id: str | None) -> str | None:
        # The upstream's id of a call, unless it is too long or another call of this turn has the same one.
        if upstream_id and len(upstream_id) <= _MAX_CALL_ID and upstream_id not in self._call_ids:
            self._call_ids.add(upstream_id)
            return upstream_id
        return None

    def _logprobs(self, entries: object) -> list[Body]:
        return [] if self._top_logprobs is None else read_logprobs(entries, top=self._top_logprobs)

    def _read_tier(self, tier: object) -> None:
        if isinstance(tier, str):
            self._service_tier = tier[:_MAX_TIER]


# Token counts are stored in 32-bit integer columns.
_MAX_TOKENS = 2**31 - 1
# Prefixes of the fields in both APIs: some chat upstreams use the prefixes of the Responses API.
_INPUT, _OUTPUT = ("prompt", "input"), ("completion", "output")
_CITATION_FIELDS = ("file_id", "filename", "index", "container_id", "start_index", "end_index")


def citations(annotations: Iterable[Any], *, additional: bool = False) -> list[Body]:
    """Return the annotations that OpenAI's API defines; others are dropped, because the text is usable without them.

    Missing fields are added. Unknown fields are kept only if `additional` is true. Chat completions nest the fields
    under the name of the type.
    """
    known: list[Body] = []
    for annotation in annotations:
        if not isinstance(annotation, Mapping):
            continue
        kind = str(annotation.get("type") or ("url_citation" if "url" in annotation else ""))
        inner = annotation.get(kind)
        fields = {**annotation, **inner} if isinstance(inner, Mapping) else annotation
        url = fields.get("url")
        more = fields if additional else {}
        if kind == "url_citation" and isinstance(url, str) and url:
            known.append({**more, **url_citation(url, fields)})
            continue
        expected = {name: fields[name] for name in _CITATION_FIELDS if name in fields}
        try:
            part = OutputText.model_validate({"text": "", "annotations": [{**expected, "type": kind}]})
        except ValidationError:
            continue
        known += [{**more, **citation.model_dump()} for citation in part.annotations or ()]
    return known


def url_citation(url: str, fields: Mapping[str, Any]) -> Body:
    """Return the citation of a page. A position that the upstream did not report is the start of the text."""
    title = fields.get("title")
    start, end = (_count(fields.get(name)) for name in ("start_index", "end_index"))
    return {
        "type": "url_citation",
        "url": url,
        "title": title if isinstance(title, str) and title else url,
        "start_index": start,
        "end_index": max(start, end),
    }


def read_logprobs(entries: object, *, top: int) -> list[Body]:
    """Return the log probabilities of a piece of text, with all fields and at most `top` alternatives per token."""
    if not isinstance(entries, list):
        return []
    return [
        {
            **_token(entry),
            "top_logprobs": [_token(alternative) for alternative in entry.get("top_logprobs") or ()][:top],
        }
        for entry in entries
    ]


def _token(entry: Mapping[str, Any]) -> Body:
    token = entry.get("token") or ""
    raw = entry.get("bytes")
    return {
        "token": token,
        "logprob": entry.get("logprob") or 0.0,
        "bytes": list(token.encode()) if raw is None else raw,
    }


def read_usage(usage: Mapping[str, Any], *, read: str = "prompt", written: str = "completion") -> Usage:
    """Return the usage of a `usage` object. Values that are not numbers count as 0.

    `read` and `written` are the API's prefixes of its fields, by default the prefixes of chat completions. If the total
    exceeds the sum of both numbers, the difference counts as output, or as input if no input or no output is reported:
    some servers report only the total, or 0 for the other numbers.
    """
    reads, writes = _fields(read, *_INPUT), _fields(written, *_OUTPUT)
    read_details = _mapping(usage, *reads.details)
    written_details = _mapping(usage, *writes.details)
    cached_details = _mapping(read_details, "cached_tokens_details")
    # Claude's cache writes by lifetime, which gateways forward under Anthropic's names.
    by_lifetime = _mapping(usage, "cache_creation") or _mapping(read_details, "cache_creation")
    input_tokens = _first(*map(usage.get, reads.tokens))
    output_tokens = _first(*map(usage.get, writes.tokens))
    total = _count(usage.get("total_tokens"))
    reports_output = any(usage.get(name) is not None for name in writes.tokens)
    if input_tokens and reports_output and not _has_cache_beside_input(usage):
        # xAI does not include reasoning in the completion's tokens, and Gemini only in the total. It is billed as
        # output.
        output_tokens = max(output_tokens, total - input_tokens)
    return Usage(
        input_tokens=max(input_tokens, total - output_tokens),
        # DeepSeek, Moonshot, and gateways to Claude report it at the top level.
        cached_tokens=_first(
            read_details.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            usage.get("cache_read_input_tokens"),
        ),
        cache_write_tokens=_first(
            read_details.get("cache_write_tokens"),
            read_details.get("cache_creation_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        cache_write_1h_tokens=_count(by_lifetime.get("ephemeral_1h_input_tokens")),
        input_audio_tokens=_count(read_details.get("audio_tokens")),
        cached_audio_tokens=_count(cached_details.get("audio_tokens")),
        input_image_tokens=_count(read_details.get("image_tokens")),
        cached_image_tokens=_count(cached_details.get("image_tokens")),
        output_tokens=output_tokens,
        reasoning_tokens=_count(written_details.get("reasoning_tokens")),
        output_audio_tokens=_count(written_details.get("audio_tokens")),
        output_image_tokens=_count(written_details.get("image_tokens")),
    )


def _has_cache_beside_input(usage: Mapping[str, Any]) -> bool:
    # Gateways to Claude count cached input in the total only, if they forward Anthropic's fields as they are.
    return any(_count(usage.get(f"cache_{kind}_input_tokens")) for kind in ("read", "creation"))


def reported_usage(usage: object, *, read: str = "prompt", written: str = "completion") -> Usage | None:
    """Return the usage of a `usage` object as `read_usage` does; None if it reports no tokens."""
    if not isinstance(usage, Mapping):
        return None
    # Every request has tokens, so a server that reports 0 for input and output does not count tokens.
    found = read_usage(usage, read=read, written=written)
    return found if found.input_tokens or found.output_tokens else None


def later_usage(known: Usage | None, usage: object) -> Usage | None:
    """Merge a further `usage` object of the same stream into the known usage: the last number other than 0 wins."""
    found = reported_usage(usage)
    if found is None or known is None:
        return found or known
    # Gateways to Claude report the input at the start and the output at the end.
    input_tokens, output_tokens = found.input_tokens or known.input_tokens, found.output_tokens or known.output_tokens
    return replace(found, input_tokens=input_tokens, output_tokens=output_tokens)


def nested_usage(chunk: Mapping[str, Any]) -> object:
    """Return the `usage` object below the top level of a chunk; None if there is none."""
    # Moonshot puts it into the last choice, Groq into a field of its own.
    choices, groq = chunk.get("choices"), chunk.get("x_groq")
    choice = choices[0] if isinstance(choices, list) and choices else None
    inner = choice.get("usage") if isinstance(choice, Mapping) else None
    return inner or (groq.get("usage") if isinstance(groq, Mapping) else None)


class _Fields(NamedTuple):
    """Names of the fields with the input or the output: the number of all tokens, and the objects with its parts."""

    tokens: Sequence[str]
    details: Sequence[str]


@cache
def _fields(*prefixes: str) -> _Fields:
    # Audio and image endpoints write `input_token_details`.
    details = [f"{prefix}_{name}" for prefix in prefixes for name in ("tokens_details", "token_details")]
    return _Fields([f"{prefix}_tokens" for prefix in prefixes], details)


def _mapping(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        found = value.get(name)
        if found and isinstance(found, Mapping):
            return found
    return {}


def _first(*counts: object) -> int:
    """Return the first number that is not 0, else 0."""
    for tokens in counts:
        if number := _count(tokens):
            return number
    return 0


def _count(tokens: object) -> int:
    if tokens is None:
        return 0
    # Some servers write numbers as strings.
    if isinstance(tokens, str):
        try:
            tokens = float(tokens)
        except ValueError:
            return 0
    # An impossible number, such as a negative one, counts as missing. NaN is not in the range.
    is_possible = isinstance(tokens, int | float) and not isinstance(tokens, bool) and 0 <= tokens <= _MAX_TOKENS
    return int(tokens) if is_possible else 0  # type: ignore[call-overload]  # checked above
