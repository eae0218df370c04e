"""Reasoning: as it is found in the deltas of many servers, as an item while it is being written, and as it is kept.

What a model thought goes back to it in later turns, though clients may not read it or nobody stores it. So an item
carries it sealed, together with what the upstream wants back unchanged, such as signatures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from typing_extensions import override

from responses.engine.chat.segments import ItemStatus, Segment
from responses.engine.events.types import (
    Body,
    ContentPartAdded,
    ContentPartDone,
    Event,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    ReasoningSummaryTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)

_SUMMARY = "reasoning.summary"
# What grows from delta to delta in an entry of `reasoning_details` or `thinking_blocks`.
_GROWING = ("text", "summary", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningContent:
    """What a reasoning item holds out of sight: the raw words, and the upstream's own entries to send back as such.

    `calls` is what the upstream wants back with its calls, each entry with `call_id`, `name` and `extras`.
    """

    text: str = ""
    details: Sequence[Body] = ()
    calls: Sequence[Body] = ()


class ReasoningCipher(Protocol):
    """Makes thoughts unreadable for everybody but the server itself."""

    def encrypt(self, content: ReasoningContent) -> str:
        """The thought as `encrypted_content`."""
        ...

    def decrypt(self, token: str) -> ReasoningContent | None:
        """The thought in an `encrypted_content`; None where it was not sealed here, or not for this team."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """The reasoning in one delta. `summaries` are pieces of a summary with the number of their part."""

    text: str = ""
    summaries: Sequence[tuple[str, int | None]] = ()
    details: Sequence[Body] = ()

    @property
    def begins_item(self) -> bool:
        """Whether it is worth an item of its own; a signature that comes late is not."""
        return bool(self.text or self.summaries or any(detail.get("data") for detail in self.details))


def read_reasoning(delta: dict[str, Any]) -> ReasoningDelta | None:
    """(15) The same words stand in `reasoning` and, with signatures, in a list; not every server sends the former.

    A summary stands in both as well, and only the list says that it is one.
    """
    text = delta.get("reasoning_content") or delta.get("reasoning")
    details = delta.get("reasoning_details") or delta.get("thinking_blocks")
    if not details:
        return ReasoningDelta(text=text) if text and isinstance(text, str) else None
    summaries = [(entry["summary"], entry.get("index")) for entry in details if _is_summary(entry)]
    if summaries or not (text and isinstance(text, str)):
        text = "".join(entry.get("text") or entry.get("thinking") or "" for entry in details)
    return ReasoningDelta(text=text, summaries=summaries, details=details)


def _is_summary(entry: Body) -> bool:
    return entry.get("type") == _SUMMARY and isinstance(entry.get("summary"), str) and bool(entry["summary"])


class ReasoningSegment(Segment):
    """A reasoning item that is being written: summaries first, then the raw words where clients may see them."""

    prefix = "rs"

    def __init__(self, *, cipher: ReasoningCipher | None = None, shown: bool = True) -> None:
        super().__init__()
        self._cipher = cipher
        self._shown = shown
        self._text: list[str] = []
        self._summary: list[list[str]] = []
        self._summary_number: int | None = None
        self._details: list[Body] = []
        self._open: Literal["summary", "content"] | None = None
        self._encrypted: str | None = None

    def takes(self, piece: ReasoningDelta) -> bool:
        """Whether the piece can be a part of this item: no summary stands behind raw words that are shown."""
        return not (piece.summaries and self._shown and self._text)

    def write(self, piece: ReasoningDelta) -> list[Event]:
        """Append; events leave when the segment is live."""
        events: list[Event] = []
        for words, number in piece.summaries:
            events += self._summarise(words, number)
        if piece.text:
            events += self._say(piece.text)
        self._details += piece.details
        return events

    @override
    def flush(self) -> list[Event]:
        summary, self._summary = self._summary, []
        text, self._text = self._text, []
        last = self._summary_number
        events: list[Event] = []
        for number, part in enumerate(summary):
            events += self._summarise("".join(part), number)
        self._summary_number = last
        return events + (self._say("".join(text)) if text else [])

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        if self._cipher is not None:
            thought = ReasoningContent(text="".join(self._text), details=_merged(self._details))
            self._encrypted = self._cipher.encrypt(thought)
        return super().close(status)

    @override
    def finish(self) -> list[Event]:
        return self._end_part()

    @override
    def body(self, *, empty: bool = False) -> Body:
        summary = [] if empty else [{"type": "summary_text", "text": "".join(part)} for part in self._summary]
        body: Body = {"id": self.id, "type": "reasoning", "status": self.status, "summary": summary}
        if self._shown:
            text = "" if empty else "".join(self._text)
            body["content"] = [{"type": "reasoning_text", "text": text}] if text else []
        if self._encrypted is not None:
            body["encrypted_content"] = self._encrypted
        return body

    def _summarise(self, words: str, number: int | None) -> list[Event]:
        events: list[Event] = []
        if not self._summary or number != self._summary_number:
            events += self._end_part()
            self._summary_number = number
            self._summary.append([])
            if self.live:
                self._open = "summary"
                part = {"type": "summary_text", "text": ""}
                events.append(ReasoningSummaryPartAdded(**self._summary_place(), part=part))
        self._summary[-1].append(words)
        if self.live:
            events.append(ReasoningSummaryTextDelta(**self._summary_place(), delta=words))
        return events

    def _say(self, text: str) -> list[Event]:
        self._text.append(text)
        if not (self.live and self._shown):
            return []
        events: list[Event] = []
        if self._open != "content":
            events += self._end_part()
            self._open = "content"
            part = {"type": "reasoning_text", "text": ""}
            added = ContentPartAdded(item_id=self.id, output_index=self.output_index, content_index=0, part=part)
            events.append(added)
        delta = ReasoningTextDelta(item_id=self.id, output_index=self.output_index, content_index=0, delta=text)
        return [*events, delta]

    def _end_part(self) -> list[Event]:
        """Close the part that is open, if one is."""
        was, self._open = self._open, None
        if was == "summary":
            text, place = "".join(self._summary[-1]), self._summary_place()
            part = {"type": "summary_text", "text": text}
            return [ReasoningSummaryTextDone(**place, text=text), ReasoningSummaryPartDone(**place, part=part)]
        if was == "content":
            text = "".join(self._text)
            part = {"type": "reasoning_text", "text": text}
            return [
                ReasoningTextDone(item_id=self.id, output_index=self.output_index, content_index=0, text=text),
                ContentPartDone(item_id=self.id, output_index=self.output_index, content_index=0, part=part),
            ]
        return []

    def _summary_place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.output_index, "summary_index": len(self._summary) - 1}


def _merged(details: Iterable[Body]) -> list[Body]:
    """The entries of all deltas as one message has them: pieces of the same entry joined."""
    merged: list[Body] = []
    for entry in details:
        if merged and _continues(merged[-1], entry):
            last = merged[-1]
            for name, value in entry.items():
                if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                    last[name] += value
                elif value is not None:
                    last[name] = value
        else:
            merged.append(dict(entry))
    return merged


def _continues(last: Body, entry: Body) -> bool:
    same = last.get("type") == entry.get("type") and last.get("index") == entry.get("index")
    return same and not last.get("data") and not entry.get("data")
