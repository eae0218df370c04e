"""Reasoning and call extras of chat-completions upstreams: reading them from deltas, and their items.

Call extras are data that an upstream attaches to a call and wants back with it, such as thought signatures. They are
stored like reasoning: encrypted, in a separate reasoning item in front of the call. So clients that keep the history
themselves send them back too, and only the upstream reads them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from engine.converter.calls import CallSegment
from engine.converter.chat_content import reasoning_text
from engine.converter.segments import Part, ReasoningCipher, ReasoningContent, ReasoningSegment
from engine.events.types import Body, Event

_SUMMARY = "reasoning.summary"
# Fields of an entry of `reasoning_details` or `thinking_blocks` whose pieces are concatenated; others are replaced.
_GROWING = ("text", "summary", "thinking")
# Reasoning fields of vLLM and DeepSeek, of OpenRouter, of GitHub's models, and of Ollama.
_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking", "thoughts")
# Fields for extras in Gemini's OpenAI-compatible API and in LiteLLM.
_EXTRAS = ("extra_content", "thought_signature", "provider_specific_fields")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """Reasoning in one delta. `summaries` are pieces of a summary, each with the number of its part."""

    text: str = ""
    summaries: Sequence[tuple[str, int | None]] = ()
    details: Sequence[Body] = ()

    @property
    def begins_item(self) -> bool:
        """True if the delta can start an item. A signature that arrives late cannot start one."""
        return bool(self.text or self.summaries or any(detail.get("data") for detail in self.details))


def read_reasoning(delta: dict[str, Any]) -> ReasoningDelta | None:
    """Return the reasoning in a delta; None if there is none."""
    # Some servers repeat the text in a list with signatures, or only send the list. Only the list shows whether the
    # text is a summary.
    text = next(filter(None, (reasoning_text(delta[name]) for name in _FIELDS if name in delta)), "")
    details = delta.get("reasoning_details") or delta.get("thinking_blocks")
    details = [details] if isinstance(details, dict) else details
    details = [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []
    if not details:
        return ReasoningDelta(text=text) if text else None
    summaries = [(entry["summary"], entry.get("index")) for entry in details if _is_summary(entry)]
    if summaries or not text:
        text = "".join(reasoning_text(entry.get("text") or entry.get("thinking")) for entry in details)
    return ReasoningDelta(text=text, summaries=summaries, details=details)


def _is_summary(entry: Body) -> bool:
    return entry.get("type") == _SUMMARY and isinstance(entry.get("summary"), str) and bool(entry["summary"])


class ChatReasoning(ReasoningSegment):
    """Reasoning item: parts of a summary first, then the raw reasoning as one part."""

    lists_content = True

    def __init__(self, *, cipher: ReasoningCipher | None, shown: bool) -> None:
        super().__init__(cipher=cipher, shown=shown)
        self._details: list[Body] = []

    def takes(self, piece: ReasoningDelta) -> bool:
        """Return True if the piece can be appended: a summary cannot follow raw reasoning that is shown."""
        return not (piece.summaries and self.parts and self.parts[-1].kind == "reasoning_text")

    def write(self, piece: ReasoningDelta) -> list[Event]:
        """Append a piece; return its events if the segment is live."""
        events: list[Event] = []
        for text, number in piece.summaries:
            events += self.begin("summary_text", number) + self.append(text, [])
        if piece.text and self.shown:
            events += self.begin("reasoning_text") + self.append(piece.text, [])
        elif piece.text:
            self.hidden_text.append(piece.text)
        self._details += piece.details
        return events

    def add_summary(self, text: str) -> list[Event]:
        """Add a summary to an item whose parts are complete; return its events."""
        part = Part("summary_text", index=0, key=None)
        part.text.append(text)
        self.parts.insert(0, part)
        place = (self.id, self.output_index)
        return [part.added(*place), part.delta(*place, text, []), *part.done(*place)]

    @override
    def details(self) -> Sequence[Body]:
        # Joins the pieces of each entry, since the upstream expects whole entries back.
        merged: list[Body] = []
        for entry in self._details:
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


def extras_of(call: Mapping[str, Any]) -> Body:
    """Return the extras in a delta of a call."""
    return {name: call[name] for name in _EXTRAS if call.get(name)}


class ExtrasSegment(ReasoningSegment):
    """Reasoning item that stores extras. `entries` are calls, each with its extras."""

    def __init__(self, cipher: ReasoningCipher, entries: Iterable[tuple[CallSegment, Body]]) -> None:
        super().__init__(cipher=cipher)
        self._entries = list(entries)

    @override
    def content(self) -> ReasoningContent:
        calls = [{"call_id": call.call_id, "name": call.name, "extras": extras} for call, extras in self._entries]
        return ReasoningContent(calls=calls)
