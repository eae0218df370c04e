"""Values found in texts: `key=value`, quoted strings, numbers, and phrases such as "in Paris".

Each quoted string, number and phrase is returned once, in the order of the text, so two properties get two values.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")
LONGEST_PLACE = 80
LONGEST_SUBJECT = 500
PLACES = frozenset({"city", "location", "place", "country", "region", "town", "address", "destination"})

# Bounded, like all repetitions here that could backtrack: texts are long and come from untrusted clients.
NAMED = re.compile(r"(?<!\w)([A-Za-z_]\w{0,63})=(?:\"([^\"]{0,500})\"|'([^']{0,500})'|([^\s,;]{1,500}))")
QUOTED = re.compile(r"\"([^\"]{0,500})\"|“([^”]{0,500})”|`([^`]{0,500})`|(?<!\w)'([^']{0,500})'(?!\w)")
NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?(?!\w)")
BEFORE_PLACE = re.compile(r"\b(?:in|for|at|near|from|to|of)\s+(?=\w)", re.IGNORECASE)
SUBJECT = re.compile(r"\b(?:in|for|about|on|with|at|of|to|named|called)\s+([^.?!,;:\n]+)", re.IGNORECASE)
FILLER = re.compile(
    r"^(?:tool|function|please|with|and|then|now)\b\s*|\s{0,9}\b(?:and|then|also|please|the|call|use)$", re.IGNORECASE
)


class _Text:
    """The values of a text that have not been used yet. `loose` is the text without named and quoted values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.named = {match[1].lower(): match[2] or match[3] or match[4] or "" for match in NAMED.finditer(text)}
        loose = NAMED.sub(" ", text)
        self.quoted: list[str | float] = ["".join(groups) for groups in QUOTED.findall(loose)]
        self.loose = QUOTED.sub(" ", loose)
        self.numbers = [float(number) if "." in number else int(number) for number in NUMBER.findall(self.loose)]

    def place(self) -> str | None:
        for match in BEFORE_PLACE.finditer(self.loose):
            words: list[str] = []
            for word in self.loose[match.end() : match.end() + LONGEST_PLACE].split():
                if not word[0].isupper():
                    break
                words.append(word.rstrip(".,;:?!"))
                if words[-1] != word:
                    break
            if words:
                self.loose = ""
                return " ".join(words)
        return None


class TextValues:
    """The values of several texts. A text is used when no value is left in the texts before it."""

    def __init__(self, *texts: str) -> None:
        self._texts = [_Text(text) for text in texts]

    def _first(self, find: Callable[[_Text], Value | None]) -> Value | None:
        return next((found for text in self._texts if (found := find(text)) is not None), None)

    def named(self, name: str) -> str | None:
        """Return the value of `name=value`."""
        value = self._first(lambda text: text.named.get(name.lower()))
        return value if value is None else value.rstrip(".?!")

    def quoted(self) -> str | None:
        """Return the next quoted string."""
        return self._first(lambda text: str(text.quoted.pop(0)) if text.quoted else None)

    def number(self, kind: type = object) -> float | None:
        """Return the next number of a type, as an int if it is written as one. Skipped numbers stay available."""

        def find(text: _Text) -> float | None:
            fitting = [position for position, number in enumerate(text.numbers) if isinstance(number, kind)]
            return text.numbers.pop(fitting[0]) if fitting else None

        return self._first(find)

    def remaining(self, kind: str) -> list[str | float]:
        """Return all remaining values of a JSON schema type, from the first text that has any."""
        for text in self._texts:
            numbers: list[str | float] = [
                number for number in text.numbers if kind == "number" or isinstance(number, int)
            ]
            found = text.quoted if kind == "string" else numbers if kind in {"number", "integer"} else []
            if found:
                text.quoted = [value for value in text.quoted if value not in found]
                text.numbers = [value for value in text.numbers if value not in found]
                return found
        return []

    def place(self) -> str | None:
        """Return the capitalized words after "in", "for" or "at", such as `New York`."""
        return self._first(_Text.place)

    def subject(self) -> str | None:
        """Return the words after "for", "about" or "with" in the first text, or else its remaining words."""
        found = SUBJECT.search(self._texts[0].loose)
        before, words = None, (found[1] if found else self._texts[0].loose).strip()[:LONGEST_SUBJECT]
        while before != words:
            before, words = words, FILLER.sub("", words.strip(" .,;:?!\n"))
        self._texts[0].loose = ""
        return words or None

    def mentioned(self, words: Sequence[str]) -> str | None:
        """Return the first of the words that occurs in a text, ignoring case."""
        patterns = {word: re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE) for word in words}
        return self._first(lambda text: next((word for word in words if patterns[word].search(text.text)), None))
