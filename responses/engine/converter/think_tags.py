"""Splitter for `<think>…</think>` at the start of a model's text, for servers that do not parse reasoning."""

from typing import Literal

_BEGIN, _END = "<think>", "</think>"
Kind = Literal["reasoning", "text"]


class ThinkTags:
    """Splitter of one turn's text. Tags that are not at the start are ordinary text."""

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["start", "thinking", "over"] = "start"

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """Return the pieces that are certain by now. What may be part of a tag is held back."""
        if self._state == "over":
            return [("text", text)]
        self._held += text
        if self._state == "start" and not self._is_start_known():
            return []
        return self._read_reasoning() if self._state == "thinking" else self._rest("text")

    def end(self) -> list[tuple[Kind, str]]:
        """Return what was held back."""
        return self._rest("reasoning" if self._state == "thinking" else "text")

    def _is_start_known(self) -> bool:
        # Chunks may cut the tag anywhere.
        beginning = self._held.lstrip()
        if beginning.startswith(_BEGIN):
            self._state, self._held = "thinking", beginning.removeprefix(_BEGIN)
            return True
        if _BEGIN.startswith(beginning):
            return False
        self._state = "over"
        return True

    def _read_reasoning(self) -> list[tuple[Kind, str]]:
        reasoning, found, rest = self._held.partition(_END)
        if found:
            self._state, self._held = "over", ""
            pieces: list[tuple[Kind, str]] = [("reasoning", reasoning), ("text", rest)]
            return [(kind, piece) for kind, piece in pieces if piece]
        # The longest end of the text that may be the start of the closing tag.
        waiting = next((size for size in range(len(_END) - 1, 0, -1) if reasoning.endswith(_END[:size])), 0)
        self._held = reasoning[len(reasoning) - waiting :]
        return [("reasoning", reasoning[: len(reasoning) - waiting])] if len(reasoning) > waiting else []

    def _rest(self, kind: Kind) -> list[tuple[Kind, str]]:
        held, self._held = self._held, ""
        return [(kind, held)] if held else []
