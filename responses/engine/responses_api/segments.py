"""The items of a turn whose upstream speaks Responses itself: messages, reasoning, and what is passed on in one piece.

Upstreams say which part of which item they write, and at its end the whole item once more. Here the parts of an item
follow on each other, and what an item's end has more than its deltas is said as one more delta.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from typing_extensions import override

from responses.engine.calls import item_events
from responses.engine.chat.annotations import citations
from responses.engine.chat.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.chat.segments import ItemStatus, Segment
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
"""Of the entries of a thought: what an upstream of Responses keeps in its reasoning items, and which upstream it is."""


class Contradiction(ValueError):
    """The end of an item says something else than its deltas did."""


def remainder(said: str, whole: object) -> str:
    """What the whole has more than was said of it; an upstream that does not repeat itself has said all."""
    if not isinstance(whole, str) or not whole:
        return ""
    if not whole.startswith(said):
        raise Contradiction
    return whole[len(said) :]


def _phase(item: Body) -> str | None:
    phase = item.get("phase")
    return phase if phase in {"commentary", "final_answer"} else None


class _StreamedPart:
    """A part that grows. `given` is the upstream's index of it, `index` ours."""

    def __init__(self, kind: PartKind, *, given: int, index: int) -> None:
        self.kind = kind
        self.given = given
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
        """What closes the part. Citations wait until here, behind all of the text that they cite."""
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
    """An item that is made of parts of text. The last part is the one that is being written."""

    stays_open = True

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[_StreamedPart] = []

    def begin(self, kind: PartKind, given: int) -> list[Event]:
        """Go on with this part of the upstream's; a part that is not the last one begins."""
        if any((part.kind, part.given) == (kind, given) for part in self.parts[:-1]):
            raise Contradiction
        if self.parts and (self.parts[-1].kind, self.parts[-1].given) == (kind, given):
            return []
        closed = self._close_part() if self.live else []
        summary = kind == "summary_text"
        index = sum((part.kind == "summary_text") is summary for part in self.parts)
        self.parts.append(_StreamedPart(kind, given=given, index=index))
        return [*closed, self.parts[-1].added(self.id, self.output_index)] if self.live else []

    def write(self, kind: PartKind, given: int, text: str, logprobs: list[Body]) -> list[Event]:
        """Append to a part of the upstream's."""
        events = self.begin(kind, given)
        if not text and not logprobs:
            return events
        part = self.parts[-1]
        part.text.append(text)
        part.logprobs += logprobs
        return [*events, part.delta(self.id, self.output_index, text, logprobs)] if self.live else []

    def cite(self, given: int, annotation: Body) -> list[Event]:
        """Note a citation of a part of text."""
        events = self.begin("output_text", given)
        self.parts[-1].annotations += citations([annotation])
        return events

    @abstractmethod
    def complete(self, item: Body) -> list[Event]:
        """Say what the upstream's final item has more than its deltas."""

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
        """Bring the part at this place of ours to what it is in the end."""
        same_list = [part for part in self.parts if (part.kind == "summary_text") is (kind == "summary_text")]
        known = same_list[position] if position < len(same_list) else None
        if known is not None and known.kind != kind:
            raise Contradiction
        rest = remainder("".join(known.text) if known else "", final.get(_FIELDS[kind]))
        if known is None:
            return self.write(kind, -1 - position, rest, [])
        return self.write(kind, known.given, rest, []) if rest else []


class UpstreamMessage(UpstreamText):
    """A message of the model."""

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
    """Reasoning: paragraphs of its summary, the raw text where the upstream shows it, and its sealed form.

    `show_raw` False: clients do not see the raw text. What the upstream has encrypted is sealed once more, together
    with the name of the upstream, which alone can make use of it.
    """

    prefix = "rs"

    def __init__(self, *, show_raw: bool, cipher: ReasoningCipher | None, upstream_id: str) -> None:
        super().__init__()
        self._show_raw = show_raw
        self._cipher = cipher
        self._upstream_id = upstream_id
        self._hidden: list[str] = []
        self._encrypted: str | None = None
        self._sealed: str | None = None

    @override
    def begin(self, kind: PartKind, given: int) -> list[Event]:
        return [] if self._hides(kind) else super().begin(kind, given)

    @override
    def write(self, kind: PartKind, given: int, text: str, logprobs: list[Body]) -> list[Event]:
        if not self._hides(kind):
            return super().write(kind, given, text, logprobs)
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
            thought = ReasoningContent(text="".join(raw or self._hidden), details=[kept] if self._encrypted else [])
            self._sealed = self._cipher.encrypt(thought)
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
        return {**body, "encrypted_content": self._sealed} if self._sealed else body

    def _hides(self, kind: PartKind) -> bool:
        return kind == "reasoning_text" and not self._show_raw


_ZERO: dict[str, Body] = {"code_interpreter_call": {"code": ""}, "mcp_call": {"arguments": ""}}


class UpstreamItem(Segment):
    """An item that came in one piece and is passed on in one piece."""

    prefix = "item"

    def __init__(self, item: Body) -> None:
        super().__init__()
        self.id = item["id"]
        self._item = item

    @override
    def body(self, *, empty: bool = False) -> Body:
        if not empty:
            return self._item
        zero = {name: value for name, value in _ZERO.get(self._item["type"], {}).items() if self._item.get(name)}
        return {**self._item, **zero, **({"status": "in_progress"} if "status" in self._item else {})}

    @override
    def flush(self) -> list[Event]:
        return item_events.before_result(self._item, output_index=self.output_index)

    @override
    def finish(self) -> list[Event]:
        return item_events.after_result(self._item, output_index=self.output_index)
