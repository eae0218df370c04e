"""Cuts a text into passages of a bounded number of tokens that overlap.

Which tokens a model makes of a text only the model knows. They are estimated: four characters a token, and one in
scripts that write words without letters; a passage ends where a paragraph, a line, a sentence or at least a word does.
"""

import regex

from responses.engine.compaction.token_estimate import CHARACTERS_PER_TOKEN

_BREAKS = ("\n\n", "\n", ". ", "。", " ")
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}]")
_SAMPLE = 20_000


def passages(text: str, *, most_tokens: int, overlap_tokens: int) -> list[str]:
    """The passages in their order; blank ones are left out. `overlap_tokens` is at most half of `most_tokens`."""
    per_token = _characters_per_token(text)
    most, overlap = most_tokens * per_token, overlap_tokens * per_token
    found, start = [], 0
    while start < len(text):
        end = _end(text, start, most)
        if passage := text[start:end].strip():
            found.append(passage)
        if end == len(text):
            break
        start = _beginning(text, end - overlap, end)
    return found


def _characters_per_token(text: str) -> int:
    sample = text[:_SAMPLE]
    return 1 if len(_WIDE.findall(sample)) * 4 > len(sample) else CHARACTERS_PER_TOKEN


def _end(text: str, start: int, most: int) -> int:
    """Where the passage that begins at `start` ends: at the best break in its last quarter."""
    end = start + most
    if end >= len(text):
        return len(text)
    earliest = start + most - most // 4
    for mark in _BREAKS:
        if (found := text.rfind(mark, earliest, end)) >= 0:
            return found + len(mark)
    return end


def _beginning(text: str, start: int, end: int) -> int:
    """The first beginning of a word from `start` on, so that no passage begins in the middle of one."""
    found = text.find(" ", start, end)
    return found + 1 if found >= 0 else start
