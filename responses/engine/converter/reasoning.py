"""Reasoning: reading it from the deltas of various servers, its segment, and its encrypted content.

Models get their reasoning back in later turns, even if clients may not read it or responses are not stored. Therefore
an item carries it encrypted, together with data that the upstream wants back unchanged, such as signatures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from typing_extensions import override

from responses.engine.converter.segments import ItemStatus, Segment
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
# Fields of an entry of `reasoning_details` or `thinking_blocks` whose pieces are concatenated; others are replaced.
_GROWING = ("text", "summary", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningContent:
    """Encrypted content of a reasoning item.

    `text` is the raw reasoning, `details` the upstream's own entries, which are sent back unchanged. `calls` is the
    data that the upstream wants back with its calls, each entry with `call_id`, `name` and `extras`.
    """

    text: str = ""
    details: Sequence[Body] = ()
    calls: Sequence[Body] = ()


class ReasoningCipher(Protocol):
    """Encrypts reasoning so that only this server can read it."""

    def encrypt(self, content: ReasoningContent) -> str:
        """Return the `encrypted_content` of a reasoning item."""
        ...

    def decrypt(self, token: str) -> ReasoningContent | None:
        """Return the content; None if it was not encrypted by this server for this team."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """Reasoning in one delta. `summaries` are pieces of a summary, each with the number of its part."""

    text: str = ""
    summaries: Sequence[tuple[str, int | None]] = ()
    details: Sequence[Body] = ()

    @property
    def begins_item(self) -> bool:
        """True if it can start an item. A signature that arrives late cannot."""
        return bool(self.text or self.summaries or any(detail.get("data") for detail in self.details))


def read_reasoning(delta: dict[str, Any]) -> ReasoningDelta | None:
    """Return the reasoning in a delta; None if there is none."""
    # The text is in `reasoning_content` (vLLM, DeepSeek) or `reasoning` (OpenRouter). Some servers repeat it in a list
    # with signatures, or only send the list. Only the list shows whether the text is a summary.
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
    """Reasoning item: parts of a summary first, then the raw reasoning if clients may see it (`shown`)."""

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
        """Return True if the piece can be appended: a summary cannot follow raw reasoning that is shown."""
        return not (piece.summaries and self._shown and self._text)

    def write(self, piece: ReasoningDelta) -> list[Event]:
        """Append a piece; return its events if the segment is live."""
        events: list[Event] = []
        for text, number in piece.summaries:
            events += self._write_summary(text, number)
        if piece.text:
            events += self._write_raw(piece.text)
        self._details += piece.details
        return events

    @override
    def flush(self) -> list[Event]:
        summary, self._summary = self._summary, []
        text, self._text = self._text, []
        # Writing the parts again renumbers them. The upstream's number of the last one is restored for its next piece.
        last = self._summary_number
        events: list[Event] = []
        for number, part in enumerate(summary):
            events += self._write_summary("".join(part), number)
        self._summary_number = last
        return events + (self._write_raw("".join(text)) if text else [])

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        if self._cipher is not None:
            content = ReasoningContent(text="".join(self._text), details=_joined_entries(self._details))
            self._encrypted = self._cipher.encrypt(content)
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

    def _write_summary(self, text: str, number: int | None) -> list[Event]:
        events: list[Event] = []
        if not self._summary or number != self._summary_number:
            events += self._end_part()
            self._summary_number = number
            self._summary.append([])
            if self.live:
                self._open = "summary"
                part = {"type": "summary_text", "text": ""}
                events.append(ReasoningSummaryPartAdded(**self._summary_place(), part=part))
        self._summary[-1].append(text)
        if self.live:
            events.append(ReasoningSummaryTextDelta(**self._summary_place(), delta=text))
        return events

    def _write_raw(self, text: str) -> list[Event]:
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


def _joined_entries(details: Iterable[Body]) -> list[Body]:
    # Joins the pieces of each entry, since the upstream expects whole entries back.
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
    # Entries with `data` are encrypted blocks, which always arrive whole.
    same = last.get("type") == entry.get("type") and last.get("index") == entry.get("index")
    return same and not last.get("data") and not entry.get("data")
