"""Splits a text into overlapping passages of a bounded number of tokens.

The tokenizer of the embedding model is not known, so tokens are estimated: four characters per token, or one in scripts
without spaces between words. A passage ends at a paragraph, line, sentence or word boundary if possible.
"""

import regex

from engine.compaction.token_estimate import CHARACTERS_PER_TOKEN

# Preferred ends of a passage, best first.
_BREAKS = ("\n\n", "\n", ". ", "。", " ")
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}]")
# The beginning is enough to recognise the script of a text.
_SAMPLE_CHARACTERS = 20_000


def passages(text: str, *, most_tokens: int, overlap_tokens: int) -> list[str]:
    """Return the passages in order, without blank ones.

    `overlap_tokens` must be at most half of `most_tokens`.
    """
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
    sample = text[:_SAMPLE_CHARACTERS]
    # Mixed texts occur: a quarter of wide characters is enough to assume a script without spaces.
    return 1 if len(_WIDE.findall(sample)) * 4 > len(sample) else CHARACTERS_PER_TOKEN


def _end(text: str, start: int, most: int) -> int:
    end = start + most
    if end >= len(text):
        return len(text)
    # Only the last quarter is searched for a break, so that passages do not become too short.
    earliest = start + most - most // 4
    for mark in _BREAKS:
        if (found := text.rfind(mark, earliest, end)) >= 0:
            return found + len(mark)
    return end


def _beginning(text: str, start: int, end: int) -> int:
    # Start at a word, so that no passage begins in the middle of one.
    found = text.find(" ", start, end)
    return found + 1 if found >= 0 else start
