"""Splits `<think>…</think>` at the beginning of a model's text from the text, wherever the chunks cut the tags (19)."""

from typing import Literal

_BEGIN, _END = "<think>", "</think>"
Kind = Literal["reasoning", "text"]


class ThinkTags:
    """The state of one turn's text. Tags anywhere but at the beginning are text like any other."""

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["start", "thinking", "over"] = "start"

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """What can be told of the text so far; what may be half a tag waits."""
        if self._state == "over":
            return [("text", text)]
        self._held += text
        if self._state == "start" and not self._begun():
            return []
        return self._thought() if self._state == "thinking" else self._rest("text")

    def end(self) -> list[tuple[Kind, str]]:
        """What waited, now that nothing follows."""
        return self._rest("reasoning" if self._state == "thinking" else "text")

    def _begun(self) -> bool:
        """Whether it is clear by now how the text begins."""
        beginning = self._held.lstrip()
        if beginning.startswith(_BEGIN):
            self._state, self._held = "thinking", beginning.removeprefix(_BEGIN)
            return True
        if _BEGIN.startswith(beginning):
            return False
        self._state = "over"
        return True

    def _thought(self) -> list[tuple[Kind, str]]:
        thought, found, rest = self._held.partition(_END)
        if found:
            self._state, self._held = "over", ""
            pieces: list[tuple[Kind, str]] = [("reasoning", thought), ("text", rest)]
            return [(kind, words) for kind, words in pieces if words]
        # As much of the end as may be the beginning of the tag.
        waiting = next((size for size in range(len(_END) - 1, 0, -1) if thought.endswith(_END[:size])), 0)
        self._held = thought[len(thought) - waiting :]
        return [("reasoning", thought[: len(thought) - waiting])] if len(thought) > waiting else []

    def _rest(self, kind: Kind) -> list[tuple[Kind, str]]:
        held, self._held = self._held, ""
        return [(kind, held)] if held else []
