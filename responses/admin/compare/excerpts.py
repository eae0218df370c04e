"""Excerpts of two texts around their differences, with the differing words marked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_EXCERPT = 600
_BEFORE, _AFTER = 120, 80
# Words are compared up to this number; in longer texts, everything between the first and the last difference is marked.
_MAX_WORDS = 120
_WORD = re.compile(r"\d+(?:\.\d+)?|\w+|\s+|[^\w\s]")
# Longest part of a word by which a difference is extended to whole words.
_MAX_PART = 40


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text; `is_marked` if the other text differs there."""

    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Segments of a text, and the number of characters that were left out before and after them."""

    segments: Sequence[Segment]
    before: int = 0
    after: int = 0


def beginning(text: str) -> Excerpt:
    """Return the beginning of a text."""
    return Excerpt([Segment(text[:MAX_EXCERPT])], after=max(0, len(text) - MAX_EXCERPT))


def differences(left: str, right: str) -> tuple[Excerpt, Excerpt]:
    """Return excerpts of two texts around their first difference."""
    start = _common_start(left, right)
    longest = min(len(left), len(right)) - start
    end = _common_start(left[: -longest - 1 : -1], right[: -longest - 1 : -1]) if longest else 0
    start -= _part_of_word(left[max(0, start - _MAX_PART) : start][::-1])
    end -= _part_of_word(left[len(left) - end : len(left) - end + _MAX_PART])
    middles = (left[start : len(left) - end], right[start : len(right) - end])
    marked = _words(*middles)
    excerpts = []
    for text, middle, segments in zip((left, right), middles, marked, strict=True):
        first = max(0, start - _BEFORE)
        last = min(start + len(middle) + _AFTER, len(text))
        kept = segments
        if len(middle) > MAX_EXCERPT:
            kept, last = [Segment(middle[:MAX_EXCERPT], is_marked=True)], start + MAX_EXCERPT
        around = [Segment(text[first:start]), *kept, Segment(text[start + len(middle) : last])]
        excerpts.append(Excerpt([segment for segment in around if segment.text], first, len(text) - last))
    return excerpts[0], excerpts[1]


def _common_start(left: str, right: str) -> int:
    """Return the length of the common prefix."""
    # By halves: comparing slices is much faster than comparing characters, and texts may be megabytes.
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _part_of_word(text: str) -> int:
    """Return the length of the word or number with which a text begins."""
    return next((at for at, character in enumerate(text) if not (character.isalnum() or character in "._")), len(text))


def _words(left: str, right: str) -> tuple[list[Segment], list[Segment]]:
    """Return both texts as segments, with the words marked that differ."""
    if max(len(left), len(right)) > MAX_EXCERPT:
        return [Segment(left, is_marked=True)], [Segment(right, is_marked=True)]
    words = _WORD.findall(left), _WORD.findall(right)
    if max(map(len, words)) > _MAX_WORDS:
        return [Segment(left, is_marked=True)], [Segment(right, is_marked=True)]
    found: tuple[list[Segment], list[Segment]] = ([], [])
    for kind, *ranges in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        for side, (first, last) in enumerate((ranges[:2], ranges[2:])):
            if first < last:
                found[side].append(Segment("".join(words[side][first:last]), is_marked=kind != "equal"))
    return found
