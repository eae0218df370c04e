"""Questions and answers of seeded data in several languages and lengths (`texts.json`), and the random choices."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson

TEXTS: dict[str, Any] = orjson.loads(Path(__file__).with_name("texts.json").read_bytes())


@dataclass(frozen=True)
class TextPicker:
    """Chooses texts. `mark` is added to all of them, so that tests can find where content appears."""

    rng: Random
    mark: str = ""

    def marked(self, text: str) -> str:
        """Return the text with the mark in front."""
        return f"{self.mark} {text}" if self.mark else text

    def one_of(self, kind: str) -> str:
        """Return a text of a kind."""
        return self.marked(self.rng.choice(TEXTS[kind]))

    def pair_of(self, kind: str) -> tuple[str, str]:
        """Return a question of a kind with its answer."""
        question, answer = self.rng.choice(TEXTS[kind])
        return self.marked(question), self.marked(answer)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def seconds(self, least: float, most: float) -> float:
        """Return a random duration; short ones are more frequent."""
        share: float = self.rng.random() ** 2.5
        return least + (most - least) * share

    def report(self) -> str:
        """Return a long Markdown text."""
        parts = ["# Report on waiting times"]
        for number in range(1, self.rng.choice((8, 20, 90)) + 1):
            parts.append(f"## {number}. {self.rng.choice(TEXTS['months'])}")
            months = self.rng.choices(TEXTS["months"], k=2)
            parts += ["".join(paragraph.format(month=month) for paragraph in TEXTS["chapter"]) for month in months]
        return self.marked("\n\n".join(parts))
