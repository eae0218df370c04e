"""Values found in a text: `key=value`, quoted strings, numbers, and phrases such as "in Paris".

Each quoted string, number and phrase is returned once, in the order of the text, so two properties get two values.
"""

import re
from collections.abc import Sequence
from typing import Self

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


class TextValues:
    """The values of one text. When it has none left, those of `beyond` are used."""

    def __init__(self, text: str, *, beyond: Self | None = None) -> None:
        self._text = text
        self._beyond = beyond
        self._named = {match[1].lower(): match[2] or match[3] or match[4] or "" for match in NAMED.finditer(text)}
        loose = NAMED.sub(" ", text)
        self._quoted = ["".join(groups) for groups in QUOTED.findall(loose)]
        loose = QUOTED.sub(" ", loose)
        self._numbers = [float(number) if "." in number else int(number) for number in NUMBER.findall(loose)]
        self._loose = loose

    def named(self, name: str) -> str | None:
        """Return the value of `name=value`."""
        value = self._named.get(name.lower())
        if value is None and self._beyond is not None:
            return self._beyond.named(name)
        return value if value is None else value.rstrip(".?!")

    def quoted(self) -> str | None:
        """Return the next quoted string."""
        if self._quoted:
            return self._quoted.pop(0)
        return self._beyond.quoted() if self._beyond is not None else None

    def all_quoted(self) -> list[str]:
        """Return all remaining quoted strings."""
        found, self._quoted = self._quoted, []
        return found or (self._beyond.all_quoted() if self._beyond is not None else [])

    def number(self) -> float | None:
        """Return the next number, as an int if it is written as one."""
        if self._numbers:
            return self._numbers.pop(0)
        return self._beyond.number() if self._beyond is not None else None

    def integer(self) -> int | None:
        """Return the next integer; fractions are skipped and stay available."""
        for position, number in enumerate(self._numbers):
            if isinstance(number, int):
                del self._numbers[position]
                return number
        return self._beyond.integer() if self._beyond is not None else None

    def all_numbers(self) -> list[float]:
        """Return all remaining numbers."""
        found, self._numbers = self._numbers, []
        return found or (self._beyond.all_numbers() if self._beyond is not None else [])

    def all_integers(self) -> list[int]:
        """Return all remaining integers."""
        found = [number for number in self._numbers if isinstance(number, int)]
        self._numbers = [number for number in self._numbers if not isinstance(number, int)]
        return found or (self._beyond.all_integers() if self._beyond is not None else [])

    def place(self) -> str | None:
        """Return the capitalized words after "in", "for" or "at", such as `New York`."""
        for match in BEFORE_PLACE.finditer(self._loose):
            words = _capitalised(self._loose[match.end() : match.end() + LONGEST_PLACE])
            if words:
                self._loose = ""
                return words
        return self._beyond.place() if self._beyond is not None else None

    def subject(self) -> str | None:
        """Return the words after "for", "about" or "with", or else the rest of the text."""
        found = SUBJECT.search(self._loose)
        words = _without_filler((found[1] if found else self._loose).strip()[:LONGEST_SUBJECT])
        self._loose = ""
        return words or None

    def mentioned(self, words: Sequence[str]) -> str | None:
        """Return the first of the words that occurs in the text, ignoring case."""
        for word in words:
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", self._text, re.IGNORECASE):
                return word
        return self._beyond.mentioned(words) if self._beyond is not None else None


def _capitalised(text: str) -> str:
    words = []
    for word in text.split():
        if not word[0].isupper():
            break
        words.append(word.rstrip(".,;:?!"))
        if words[-1] != word:
            break
    return " ".join(words)


def _without_filler(text: str) -> str:
    before = None
    while before != text:
        before, text = text, FILLER.sub("", text.strip(" .,;:?!\n"))
    return text
