"""Items of a Responses upstream while they are being written.

Upstreams repeat the whole item at its end. If this final item has more content than the deltas, the rest is emitted as
one more delta; if it differs from the deltas, `ContradictionError` is raised.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from typing_extensions import override

from conversations.items import (
    AssistantMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    from_wire,
)
from core.http.wire import OpenWire
from engine.calls import item_events
from engine.converter.base import citations
from engine.converter.output_matching import wanted
from engine.converter.segments import (
    MessageSegment,
    Part,
    PartKind,
    PartsSegment,
    ReasoningCipher,
    ReasoningSegment,
    Segment,
)
from engine.events.types import Body, Event

_PARTS: dict[PartKind, type[OpenWire]] = {
    "output_text": OutputText,
    "refusal": Refusal,
    "reasoning_text": ReasoningText,
    "summary_text": SummaryText,
}
# Item types without the status `in_progress` in OpenAI's API, with the status that announces them.
_UNFINISHED = {"program_output": "incomplete", "apply_patch_call_output": "completed"}
ENCRYPTED = "encrypted_content"
"""Type of a reasoning detail that holds the `encrypted_content` of a Responses upstream and the upstream's id."""


class ContradictionError(ValueError):
    """The final item differs from its deltas."""


class UpstreamParts(PartsSegment):
    """Item of text parts, each with the upstream's index as its key.

    Upstreams name the item and the part of each delta, and repeat the whole item at its end. Here the parts of an item
    are written one after the other. If the final item has more content than its deltas, the rest is emitted as one
    more delta.
    """

    stays_open = True
    holds: frozenset[PartKind] = frozenset()

    @override
    def begin(self, kind: PartKind, key: int | None = None) -> list[Event]:
        if kind not in self.holds or any((part.kind, part.key) == (kind, key) for part in self.parts[:-1]):
            raise ContradictionError
        return super().begin(kind, key)

    def receive(self, kind: PartKind, key: int | None, text: str, logprobs: list[Body]) -> list[Event]:
        """Append text to the upstream's part `key`."""
        events = self.begin(kind, key)
        return events + self.append(text, logprobs) if text or logprobs else events

    @abstractmethod
    def complete(self, item: Body) -> list[Event]:
        """Return the events for the content that the upstream's final item adds to its deltas."""

    def part_at(self, kind: PartKind, position: int, count: int) -> Part | None:
        """Return the part at a position of the summary or of the content; `count` is the final number of parts."""
        same_list = [part for part in self.parts if (part.kind == "summary_text") is (kind == "summary_text")]
        if len(same_list) > count:
            # Some upstreams announce a part under a different index than its deltas have.
            same_list = [part for part in same_list if part.text]
        return same_list[position] if position < len(same_list) else None

    def complete_part(self, kind: PartKind, position: int, finals: Sequence[Body]) -> list[Event]:
        """Return the events for the content that the final part adds. `finals` is the whole summary or content."""
        final, known = finals[position], self.part_at(kind, position, len(finals))
        if known is not None and known.kind != kind:
            raise ContradictionError
        rest = remainder("".join(known.text) if known else "", final.get("refusal" if kind == "refusal" else "text"))
        additional = additional_fields(final, _PARTS[kind])
        if known is not None:
            known.additional = additional
            return self.receive(kind, known.key, rest, []) if rest else []
        # A part without deltas. The negative number cannot collide with an index of the upstream.
        events = self.receive(kind, -1 - position, rest, [])
        self.parts[-1].additional = additional
        return events


class UpstreamMessage(UpstreamParts, MessageSegment):
    """Message of the model."""

    holds = frozenset({"output_text", "refusal"})

    def __init__(self, *, phase: str | None, read_logprobs: Callable[[object], list[Body]]) -> None:
        super().__init__(phase=phase)
        self._read_logprobs = read_logprobs

    @override
    def complete(self, item: Body) -> list[Event]:
        events: list[Event] = []
        finals = wanted(item)
        for position, final in enumerate(finals):
            kind = final["type"]
            if kind not in self.holds:
                raise ValueError(kind)
            events += self.complete_part(kind, position, finals)
            part = self.part_at(kind, position, len(finals)) or self.parts[-1]
            # Some upstreams send citations and log probabilities only in the final item.
            part.annotations = citations(final.get("annotations") or (), additional=True) or part.annotations
            part.logprobs = part.logprobs or self._read_logprobs(final.get("logprobs"))
        self.phase = phase_of(item) or self.phase
        self.additional = additional_fields(item, AssistantMessage)
        return events


class UpstreamReasoning(UpstreamParts, ReasoningSegment):
    """Reasoning: parts of its summary, the raw text if the upstream sends it, and the encrypted content.

    The upstream's encrypted content is encrypted again together with the upstream's id, because no other upstream can
    read it.
    """

    holds = frozenset({"reasoning_text", "summary_text"})

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
        summary = item.get("summary") or ()
        for position in range(len(summary)):
            events += self.complete_part("summary_text", position, summary)
        raw = item.get("content") or ()
        if any(final.get("type") in UpstreamMessage.holds for final in raw):
            raise ContradictionError
        if self.shown:
            for position in range(len(raw)):
                events += self.complete_part("reasoning_text", position, raw)
        else:
            self.hidden_text.append(remainder("".join(self.hidden_text), "".join(final["text"] for final in raw)))
        self._upstream_content = item.get("encrypted_content")
        self.additional = additional_fields(item, Reasoning)
        return events

    @override
    def details(self) -> list[Body]:
        if not self._upstream_content or not isinstance(self._upstream_content, str):
            return []
        return [{"type": ENCRYPTED, "upstream": self._upstream_id, "data": self._upstream_content}]


class UpstreamItem(Segment):
    """Complete item of the upstream, passed on unchanged."""

    prefix = "item"
    stays_open = True
    is_done = True

    def __init__(self, item: Body) -> None:
        super().__init__()
        self.id = item["id"]
        self._item = item

    def add(self, later: Body) -> None:
        """Add the fields that only the final response has, such as the sources of a search."""
        # A field that cannot be read must not make the turn fail.
        with suppress(ValueError):
            known = from_wire(_filled(self._item, {key: value for key, value in later.items() if key != "id"}))
            self._item = {**known.wire(), "id": self.id}

    @override
    def body(self, *, empty: bool = False) -> Body:
        if not empty:
            return self._item
        emptied = item_events.announced(self._item)
        if "status" not in emptied:
            return emptied
        return {**emptied, "status": _UNFINISHED.get(emptied["type"], "in_progress")}

    @override
    def flush(self) -> list[Event]:
        return item_events.before_result(self._item, output_index=self.output_index)

    @override
    def finish(self) -> list[Event]:
        return item_events.after_result(self._item, output_index=self.output_index)


def _filled(item: Body, later: Body) -> Body:
    """Return an object whose empty fields have the values of a later version."""
    filled = dict(item)
    for name, value in later.items():
        known = filled.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            filled[name] = _filled(known, value)
        elif known in (None, [], "") and value is not None:
            filled[name] = value
    return filled


def remainder(written: str, whole: object) -> str:
    """Return the rest of the final text, after the deltas. Raises `ContradictionError` if the deltas differ from it."""
    # Some upstreams leave the final text empty instead of repeating it.
    if not isinstance(whole, str) or not whole:
        return ""
    if not whole.startswith(written):
        raise ContradictionError
    return whole[len(written) :]


def additional_fields(body: Body, known: type[OpenWire]) -> Body:
    """Return the fields of an upstream's item or part that the class `known` does not define."""
    names = {field.alias or name for name, field in known.model_fields.items()}
    return {name: value for name, value in body.items() if name not in names and value is not None}


def phase_of(item: Body) -> str | None:
    """Return the phase of a message, if it is a known one."""
    phase = item.get("phase")
    return phase if phase in {"commentary", "final_answer"} else None
