"""What people ask and agents answer in seeded data, in several languages and lengths: `texts.json`, and who picks."""

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
"""What is looked for, and the pages that are found: address, title, text."""
PASSAGES: Sequence[tuple[str, str]] = _WORDS["passages"]
"""Names and texts of files."""
PROGRAM: str = _WORDS["program"]
PEOPLE: Sequence[str] = _WORDS["people"]


@dataclass(frozen=True)
class TextPicker:
    """Chooses words. `mark` is put into everything that is said, for tests that look where words come out."""

    rng: random.Random
    mark: str = ""

    def marked(self, text: str) -> str:
        """The words, with the mark in front."""
        return f"{self.mark} {text}" if self.mark else text

    def pick(self, options: Sequence[_T]) -> _T:
        """One of several."""
        return options[self.rng.randrange(len(options))]

    def seconds(self, least: float, most: float) -> float:
        """Some time; short ones are more frequent."""
        return round(least + (most - least) * float(self.rng.random() ** 2.5), 3)

    def report(self, chapters: int) -> str:
        """A long text in Markdown."""
        parts = [
            f"## {number}. {self.pick(_WORDS['months'])}\n\n{self._chapter()}" for number in range(1, chapters + 1)
        ]
        return self.marked("# Report on waiting times\n\n" + "\n\n".join(parts))

    def _chapter(self) -> str:
        month = self.pick(_WORDS["months"])
        return "\n\n".join("".join(one.format(month=month) for one in _WORDS["chapter"]) for _ in range(2))
