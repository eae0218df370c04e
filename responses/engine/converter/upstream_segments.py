"""Segments of a turn whose upstream has a Responses API: messages, reasoning, and items that are passed on unchanged.

Upstreams name the item and the part of each delta, and repeat the whole item at its end. Here the parts of an item are
written one after the other. If the final item has more content than its deltas, the rest is emitted as one more delta.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from typing_extensions import override

from responses.engine.calls import item_events
from responses.engine.converter.annotations import citations
from responses.engine.converter.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.converter.segments import ItemStatus, Segment
from responses.engine.events.types import (
    Body,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    ReasoningSummaryTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
)

PartKind = Literal["output_text", "refusal", "reasoning_text", "summary_text"]
_FIELDS: dict[PartKind, str] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}


ENCRYPTED = "encrypted_content"
"""Type of a reasoning detail that holds the `encrypted_content` of a Responses upstream and the upstream's id."""


class Contradiction(ValueError):
    """The final item differs from its deltas."""


def remainder(written: str, whole: object) -> str:
    """Return the part of the final text that no delta had. Raises Contradiction if the deltas differ."""
    # Some upstreams leave the final text empty instead of repeating it.
    if not isinstance(whole, str) or not whole:
        return ""
    if not whole.startswith(written):
        raise Contradiction
    return whole[len(written) :]


def _phase(item: Body) -> str | None:
    phase = item.get("phase")
    return phase if phase in {"commentary", "final_answer"} else None


class _StreamedPart:
    """Part that is being written. `upstream_index` is the upstream's index of it, `index` ours."""

    def __init__(self, kind: PartKind, *, upstream_index: int, index: int) -> None:
        self.kind = kind
        self.upstream_index = upstream_index
        self.index = index
        self.text: list[str] = []
        self.logprobs: list[Body] = []
        self.annotations: list[Body] = []

    def body(self, *, empty: bool = False) -> Body:
        body: Body = {"type": self.kind, _FIELDS[self.kind]: "" if empty else "".join(self.text)}
        if self.kind == "output_text":
            body["annotations"] = [] if empty else self.annotations
            body["logprobs"] = [] if empty else self.logprobs
        return body

    def added(self, item_id: str, output_index: int) -> Event:
        part = self.body(empty=True)
        if self.kind == "summary_text":
            return ReasoningSummaryPartAdded(
                item_id=item_id, output_index=output_index, summary_index=self.index, part=part
            )
        return ContentPartAdded(item_id=item_id, output_index=output_index, content_index=self.index, part=part)

    def delta(self, item_id: str, output_index: int, text: str, logprobs: list[Body]) -> Event:
        match self.kind:
            case "output_text":
                return OutputTextDelta(item_id, output_index, self.index, text, logprobs)
            case "refusal":
                return RefusalDelta(item_id, output_index, self.index, text)
            case "reasoning_text":
                return ReasoningTextDelta(item_id, output_index, self.index, text)
            case "summary_text":
                return ReasoningSummaryTextDelta(item_id, output_index, self.index, text)

    def done(self, item_id: str, output_index: int) -> list[Event]:
        """Return the closing events of the part."""
        # Citations are emitted last, because their positions refer to the whole text.
        place, text, body = (item_id, output_index, self.index), "".join(self.text), self.body()
        match self.kind:
            case "output_text":
                cited = [OutputTextAnnotationAdded(*place, number, a) for number, a in enumerate(self.annotations)]
                return [*cited, OutputTextDone(*place, text, self.logprobs), ContentPartDone(*place, body)]
            case "refusal":
                return [RefusalDone(*place, text), ContentPartDone(*place, body)]
            case "reasoning_text":
                return [ReasoningTextDone(*place, text), ContentPartDone(*place, body)]
            case "summary_text":
                return [ReasoningSummaryTextDone(*place, text), ReasoningSummaryPartDone(*place, body)]


class UpstreamText(Segment):
    """Item that consists of text parts. The last part is the one that is being written."""

    # Until the `output_item.done` of the upstream.
    stays_open = True

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[_StreamedPart] = []

    def begin(self, kind: PartKind, upstream_index: int) -> list[Event]:
        """Start a part, unless it is the current one. Raises Contradiction for an earlier part."""
        if any((part.kind, part.upstream_index) == (kind, upstream_index) for part in self.parts[:-1]):
            raise Contradiction
        if self.parts and (self.parts[-1].kind, self.parts[-1].upstream_index) == (kind, upstream_index):
            return []
        closed = self._close_part() if self.live else []
        summary = kind == "summary_text"
        index = sum((part.kind == "summary_text") is summary for part in self.parts)
        self.parts.append(_StreamedPart(kind, upstream_index=upstream_index, index=index))
        return [*closed, self.parts[-1].added(self.id, self.output_index)] if self.live else []

    def write(self, kind: PartKind, upstream_index: int, text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the upstream's part `upstream_index`."""
        events = self.begin(kind, upstream_index)
        if not text and not logprobs:
            return events
        part = self.parts[-1]
        part.text.append(text)
        part.logprobs += logprobs
        return [*events, part.delta(self.id, self.output_index, text, logprobs)] if self.live else []

    def cite(self, upstream_index: int, annotation: Body) -> list[Event]:
        """Add a citation to the upstream's text part `upstream_index`."""
        events = self.begin("output_text", upstream_index)
        self.parts[-1].annotations += citations([annotation])
        return events

    @abstractmethod
    def complete(self, item: Body) -> list[Event]:
        """Return the events of what the upstream's final item adds to its deltas."""

    @override
    def flush(self) -> list[Event]:
        events: list[Event] = []
        for position, part in enumerate(self.parts):
            events.append(part.added(self.id, self.output_index))
            if part.text or part.logprobs:
                events.append(part.delta(self.id, self.output_index, "".join(part.text), list(part.logprobs)))
            if position + 1 < len(self.parts):
                events += part.done(self.id, self.output_index)
        return events

    @override
    def finish(self) -> list[Event]:
        return self._close_part()

    def _close_part(self) -> list[Event]:
        return self.parts[-1].done(self.id, self.output_index) if self.parts else []

    def _complete(self, kind: PartKind, position: int, final: Body) -> list[Event]:
        # `position` counts the parts of the same list: of the summary, or of the content.
        same_list = [part for part in self.parts if (part.kind == "summary_text") is (kind == "summary_text")]
        known = same_list[position] if position < len(same_list) else None
        if known is not None and known.kind != kind:
            raise Contradiction
        rest = remainder("".join(known.text) if known else "", final.get(_FIELDS[kind]))
        if known is None:
            # A part without deltas. The negative number cannot collide with an index of the upstream.
            return self.write(kind, -1 - position, rest, [])
        return self.write(kind, known.upstream_index, rest, []) if rest else []


class UpstreamMessage(UpstreamText):
    """Message of the model."""

    prefix = "msg"

    def __init__(self, item: Body, *, read_logprobs: Callable[[object], list[Body]]) -> None:
        super().__init__()
        self.phase = _phase(item)
        self._read_logprobs = read_logprobs

    @property
    @override
    def ready(self) -> bool:
        return bool(self.parts)

    @property
    @override
    def is_empty(self) -> bool:
        return not self.parts

    @override
    def complete(self, item: Body) -> list[Event]:
        events: list[Event] = []
        for position, final in enumerate(item.get("content") or ()):
            kind = final["type"]
            if kind not in {"output_text", "refusal"}:
                raise ValueError(kind)
            events += self._complete(kind, position, final)
            part = self.parts[position]
            # Some upstreams send citations and log probabilities only in the final item.
            part.annotations = citations(final.get("annotations") or ()) or part.annotations
            part.logprobs = part.logprobs or self._read_logprobs(final.get("logprobs"))
        self.phase = _phase(item) or self.phase
        return events

    @override
    def body(self, *, empty: bool = False) -> Body:
        content = [] if empty else [part.body() for part in self.parts]
        body: Body = {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}
        return {**body, "phase": self.phase} if self.phase else body


class UpstreamReasoning(UpstreamText):
    """Reasoning: parts of its summary, the raw text if the upstream sends it, and the encrypted content.

    `show_raw` False: clients do not see the raw text. The upstream's encrypted content is encrypted again together with
    the upstream's id, because no other upstream can read it.
    """

    prefix = "rs"

    def __init__(self, *, show_raw: bool, cipher: ReasoningCipher | None, upstream_id: str) -> None:
        super().__init__()
        self._show_raw = show_raw
        self._cipher = cipher
        self._upstream_id = upstream_id
        self._hidden: list[str] = []
        self._encrypted: str | None = None
        self._own_encrypted: str | None = None

    @override
    def begin(self, kind: PartKind, upstream_index: int) -> list[Event]:
        return [] if self._hides(kind) else super().begin(kind, upstream_index)

    @override
    def write(self, kind: PartKind, upstream_index: int, text: str, logprobs: list[Body]) -> list[Event]:
        if not self._hides(kind):
            return super().write(kind, upstream_index, text, logprobs)
        self._hidden.append(text)
        return []

    @override
    def complete(self, item: Body) -> list[Event]:
        events: list[Event] = []
        for position, final in enumerate(item.get("summary") or ()):
            events += self._complete("summary_text", position, final)
        raw = item.get("content") or ()
        if self._show_raw:
            for position, final in enumerate(raw):
                events += self._complete("reasoning_text", position, final)
        else:
            self._hidden.append(remainder("".join(self._hidden), "".join(final["text"] for final in raw)))
        encrypted = item.get("encrypted_content")
        self._encrypted = encrypted if isinstance(encrypted, str) else None
        return events

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        if self._cipher is not None:
            raw = [text for part in self.parts if part.kind == "reasoning_text" for text in part.text]
            kept = {"type": ENCRYPTED, "upstream": self._upstream_id, "data": self._encrypted}
            content = ReasoningContent(text="".join(raw or self._hidden), details=[kept] if self._encrypted else [])
            self._own_encrypted = self._cipher.encrypt(content)
        return super().close(status)

    @override
    def body(self, *, empty: bool = False) -> Body:
        shown = [] if empty else self.parts
        body: Body = {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [part.body() for part in shown if part.kind == "summary_text"],
        }
        if content := [part.body() for part in shown if part.kind == "reasoning_text"]:
            body["content"] = content
        return {**body, "encrypted_content": self._own_encrypted} if self._own_encrypted else body

    def _hides(self, kind: PartKind) -> bool:
        return kind == "reasoning_text" and not self._show_raw


# Fields that are empty in `output_item.added`, because their content follows in deltas.
_EMPTY_FIELDS: dict[str, Body] = {"code_interpreter_call": {"code": ""}, "mcp_call": {"arguments": ""}}


class UpstreamItem(Segment):
    """Complete item of the upstream, passed on unchanged."""

    prefix = "item"

    def __init__(self, item: Body) -> None:
        super().__init__()
        self.id = item["id"]
        self._item = item

    @override
    def body(self, *, empty: bool = False) -> Body:
        if not empty:
            return self._item
        emptied = {
            name: value for name, value in _EMPTY_FIELDS.get(self._item["type"], {}).items() if self._item.get(name)
        }
        return {**self._item, **emptied, **({"status": "in_progress"} if "status" in self._item else {})}

    @override
    def flush(self) -> list[Event]:
        return item_events.before_result(self._item, output_index=self.output_index)

    @override
    def finish(self) -> list[Event]:
        return item_events.after_result(self._item, output_index=self.output_index)
