"""Questions and answers of seeded data in several languages and lengths (`texts.json`), and their random choice."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

_T = TypeVar("_T")
_WORDS: dict[str, Any] = orjson.loads(Path(__file__).with_name("texts.json").read_bytes())

INSTRUCTIONS: Sequence[str] = _WORDS["instructions"]
CHATS: Sequence[tuple[str, str]] = _WORDS["chats"]
FOLLOW_UPS: Sequence[tuple[str, str]] = _WORDS["follow_ups"]
THOUGHTS: Sequence[str] = _WORDS["thoughts"]
QUERIES: Sequence[tuple[str, Sequence[tuple[str, str, str]]]] = _WORDS["queries"]
"""Search queries with the pages found: URL, title, text."""
PASSAGES: Sequence[tuple[str, str]] = _WORDS["passages"]
"""File names with their contents."""
PROGRAM: str = _WORDS["program"]
PEOPLE: Sequence[str] = _WORDS["people"]


@dataclass(frozen=True)
class TextPicker:
    """Chooses texts. `mark` is added to all of them, so that tests can find where content appears."""

    rng: random.Random
    mark: str = ""

    def marked(self, text: str) -> str:
        """Return the text with the mark in front."""
        return f"{self.mark} {text}" if self.mark else text

    def pick(self, options: Sequence[_T]) -> _T:
        """Return one of several options."""
        return options[self.rng.randrange(len(options))]

    def seconds(self, least: float, most: float) -> float:
        """Return a random duration; short ones are more frequent."""
        return round(least + (most - least) * float(self.rng.random() ** 2.5), 3)

    def report(self, chapters: int) -> str:
        """Return a long Markdown text."""
        parts = [
            f"## {number}. {self.pick(_WORDS['months'])}\n\n{self._chapter()}" for number in range(1, chapters + 1)
        ]
        return self.marked("# Report on waiting times\n\n" + "\n\n".join(parts))

    def _chapter(self) -> str:
        month = self.pick(_WORDS["months"])
        return "\n\n".join("".join(one.format(month=month) for one in _WORDS["chapter"]) for _ in range(2))
