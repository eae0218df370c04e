"""Questions and answers of seeded data in several languages and lengths (`texts.json`), and the random choices."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import Template
from typing import Any

import orjson

from core.ids import new_id

TEXTS: dict[str, Any] = orjson.loads(Path(__file__).with_name("texts.json").read_bytes())


class OneOf(tuple[Any, ...]):
    """A place in a scenario where one of these values is chosen."""

    __slots__ = ()


class Between(tuple[float, float]):
    """A place in a scenario for a random duration in seconds; short ones are more frequent."""

    __slots__ = ()


@dataclass(frozen=True)
class TextPicker:
    """Chooses texts. `mark` is added to all of them, so that tests can find where content appears."""

    rng: Random
    mark: str = ""

    def marked(self, text: str) -> str:
        """Return the text with the mark in front."""
        return f"{self.mark} {text}" if self.mark else text

    def names(self) -> dict[str, Any]:
        """Return the random values of one exchange, for `filled`."""
        question, answer = self.rng.choice(TEXTS["chats"])
        follow_up, follow_up_answer = self.rng.choice(TEXTS["follow_ups"])
        query, pages = self.rng.choice(TEXTS["queries"])
        found = [{"url": url, "title": title, "text": self.marked(text)} for url, title, text in pages]
        # The files do not exist: citations only need ids of the right form.
        passages = [
            {
                "file_id": new_id("file").replace("_", "-", 1),
                "filename": name,
                "score": round(0.91 - index / 9, 3),
                "text": self.marked(text),
                "attributes": {"area": "handbook"},
            }
            for index, (name, text) in enumerate(TEXTS["passages"])
        ]
        texts = {
            "question": question,
            "answer": answer,
            "follow_up": follow_up,
            "follow_up_answer": follow_up_answer,
            "thought": self.rng.choice(TEXTS["thoughts"]),
            "query": query,
            "page": pages[0][2],
            "report": self._report(),
        }
        return {
            **{name: self.marked(text) for name, text in texts.items()},
            "mark": f"{self.mark} " if self.mark else "",
            "beginning": self.marked(answer[:40]),
            "instructions": self.rng.choice(TEXTS["instructions"]),
            "pages": found,
            "sources": [{"type": "url", "url": page["url"]} for page in found],
            "url": found[0]["url"],
            "title": found[0]["title"],
            "order": f"{self.rng.randrange(10**6):06d}",
            "container": new_id("cntr"),
            "store": new_id("vs"),
            "file_id": passages[0]["file_id"],
            "filename": passages[0]["filename"],
            "passages": passages,
        }

    def filled(self, value: Any, names: dict[str, Any]) -> Any:
        """Return a part of a scenario with its `$names` replaced and its choices made."""
        match value:
            case OneOf():
                return self.filled(self.rng.choice(value), names)
            case Between():
                least, most = value
                return round(least + (most - least) * self.rng.random() ** 2.5, 3)
            case dict():
                return {key: self.filled(entry, names) for key, entry in value.items()}
            case list():
                return [self.filled(entry, names) for entry in value]
            case str() if value.startswith("$") and value[1:] in names:
                return names[value[1:]]
            case str():
                return Template(value).safe_substitute(names)
        return value

    def _report(self) -> str:
        """Return a long Markdown text."""
        parts = ["# Report on waiting times"]
        for number in range(1, self.rng.choice((8, 20, 90)) + 1):
            parts.append(f"## {number}. {self.rng.choice(TEXTS['months'])}")
            months = self.rng.choices(TEXTS["months"], k=2)
            parts += ["".join(paragraph.format(month=month) for paragraph in TEXTS["chapter"]) for month in months]
        return "\n\n".join(parts)
