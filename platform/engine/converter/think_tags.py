"""Splitter for reasoning between tags in a model's text, for servers that do not parse reasoning.

Chat templates of some models contain the opening tag, so that the answer begins with reasoning and only the closing tag
shows where it ends. A text that does not begin with a tag is therefore held back up to the first tag or its end.
"""

from typing import Literal

import regex

Kind = Literal["reasoning", "text"]
Pieces = list[tuple[Kind, str]]
# Opening and closing tags of Qwen, DeepSeek and others; Gemma and Gemini; Magistral; Kimi; Seed; OpenThinker.
_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    "<seed:think>": "</seed:think>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
}
_ALL = (*_TAGS, *_TAGS.values())
_LONGEST = max(map(len, _ALL))
_TAG = regex.compile("|".join(map(regex.escape, _ALL)), regex.IGNORECASE)
# A tag directly after one of these is quoted: the text is about the tag.
_QUOTES = frozenset("`'\"")


class ThinkTags:
    """Splitter of one turn's text."""

    def __init__(self) -> None:
        # Text that may be part of a tag, and the text before it that may turn out to be reasoning.
        self._held = ""
        self._undecided: list[str] = []
        self._state: Literal["start", "undecided", "thinking", "text"] = "start"
        self._closing = ""
        self._last = ""

    def feed(self, text: str) -> Pieces:
        """Return the pieces that are certain by now."""
        pieces: Pieces = []
        self._held += text
        if self._state == "start" and not self._begin():
            return pieces
        while (found := self._next_tag()) is not None:
            before, tag = self._held[: found.start()], found[0].lower()
            self._held = self._held[found.end() :]
            if self._state == "undecided":
                # Before an opening tag there is text; before a closing tag, reasoning whose opening tag is missing.
                self._undecided.append(before)
                before, self._undecided = "".join(self._undecided), []
                pieces.append(("text" if tag in _TAGS else "reasoning", before))
            else:
                pieces.append(("reasoning" if self._state == "thinking" else "text", before))
            self._last = ""
            self._state, self._closing = ("thinking", _TAGS[tag]) if tag in _TAGS else ("text", "")
        certain = self._held[: len(self._held) - self._partial()]
        self._held = self._held[len(certain) :]
        self._last = certain[-1:] or self._last
        if self._state == "undecided":
            self._undecided.append(certain)
        else:
            pieces.append(("reasoning" if self._state == "thinking" else "text", certain))
        return [piece for piece in pieces if piece[1]]

    def end(self) -> Pieces:
        """Return the text that was held back: it ends here, or something other than text follows."""
        held = "".join(self._undecided) + self._held
        self._held, self._undecided = "", []
        kind: Kind = "reasoning" if self._state == "thinking" else "text"
        if self._state != "thinking":
            self._state = "text"
        return [(kind, held)] if held else []

    def _begin(self) -> bool:
        """Read an opening tag at the start. Return False until it is known whether there is one."""
        beginning = self._held.lstrip()
        if any(tag.startswith(beginning.lower()) and tag != beginning.lower() for tag in _TAGS):
            return False
        found = _TAG.match(beginning)
        if found is not None and found[0].lower() in _TAGS:
            self._held, self._state, self._closing = beginning[found.end() :], "thinking", _TAGS[found[0].lower()]
        else:
            self._state = "undecided"
        return True

    def _next_tag(self) -> "regex.Match[str] | None":
        for tag in _TAG.finditer(self._held):
            if self._state == "thinking":
                if tag[0].lower() == self._closing:
                    return tag
            elif (self._held[tag.start() - 1] if tag.start() else self._last) not in _QUOTES:
                return tag
        return None

    def _partial(self) -> int:
        """Return the length of the longest suffix of the held text that may be the start of a tag."""
        tags = (self._closing,) if self._state == "thinking" else _ALL
        end = self._held[-_LONGEST + 1 :].lower()
        sizes = range(min(len(end), _LONGEST - 1), 0, -1)
        return next((size for size in sizes if any(tag.startswith(end[-size:]) for tag in tags)), 0)
