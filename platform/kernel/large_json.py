"""Parsing of large JSON in steps, between which other threads run.

orjson keeps the interpreter lock while it parses: 25 to 35 ms for an image of 20 MB, during which no thread can send
anything. Large bodies consist of few long strings, so these are cut out and parsed piece by piece, 2 ms each.
"""

from itertools import chain
from typing import Any
from uuid import uuid4

import orjson

# Smaller bodies are parsed at once, in less than 5 ms.
_SMALL_BYTES = 1024 * 1024
_LONG_BYTES = 256 * 1024
_PIECE_BYTES = 1024 * 1024
_QUOTE, _BACKSLASH = b'"', ord("\\")
# The longest escape sequence is a pair of surrogates, `\ud83d\ude00`.
_LONGEST_ESCAPE = 12


def loads(raw: bytes) -> Any:
    """Parse JSON like `orjson.loads`, with the same results and errors."""
    if len(raw) < _SMALL_BYTES:
        return orjson.loads(raw)
    mark = uuid4().hex
    frame, strings = _without_long_strings(raw, mark)
    if not strings:
        return orjson.loads(raw)
    try:
        root = [orjson.loads(frame)]
        texts = {f"{mark}{index}": _parse_string(raw, *string) for index, string in enumerate(strings)}
    except orjson.JSONDecodeError:
        # The whole text decides: a string may have no place where it can be cut.
        return orjson.loads(raw)
    # A long string that is a key has not been restored.
    return root[0] if _restore(root, texts) == len(texts) else orjson.loads(raw)


def _without_long_strings(raw: bytes, mark: str) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the JSON with a mark in place of each long string, and the places of their contents."""
    parts: list[bytes] = []
    strings: list[tuple[int, int]] = []
    kept = 0
    start = raw.find(_QUOTE)
    while start >= 0:
        end = raw.find(_QUOTE, start + 1)
        while end > 0 and raw[end - 1] == _BACKSLASH and _is_escaped(raw, end):
            end = raw.find(_QUOTE, end + 1)
        if end < 0:
            break
        if end - start > _LONG_BYTES:
            parts += [raw[kept : start + 1], f"{mark}{len(strings)}".encode()]
            strings.append((start + 1, end))
            kept = end
        start = raw.find(_QUOTE, end + 1)
    return b"".join([*parts, raw[kept:]]), strings


def _is_escaped(raw: bytes, position: int) -> bool:
    first = position
    while raw[first - 1] == _BACKSLASH:
        first -= 1
    return (position - first) % 2 == 1


def _parse_string(raw: bytes, start: int, end: int) -> str:
    pieces = []
    while start < end:
        cut = _cut(raw, start + _PIECE_BYTES, end)
        pieces.append(orjson.loads(b'"%b"' % raw[start:cut]))
        start = cut
    return "".join(pieces)


def _cut(raw: bytes, position: int, end: int) -> int:
    """Return a position near this one between two characters, which may have several bytes or be escaped."""
    if position >= end:
        return end
    if (escape := raw.rfind(b"\\", position - _LONGEST_ESCAPE, position)) >= 0:
        # Before the escape sequence, unless it is the second half of a pair.
        return escape - 6 if raw[escape : escape + 3].lower() == b"\\ud" else escape
    # Back to the first of a character's bytes, which are at most four.
    return next(at for at in range(position, position - 4, -1) if raw[at] & 0xC0 != 0x80 or at == position - 3)


def _restore(root: list[Any], texts: dict[str, str]) -> int:
    """Put the long strings back in their places below `root`, and return how many were."""
    restored = 0
    level: list[Any] = [root]
    while level:
        for node in level:
            for key, entry in list(node.items() if isinstance(node, dict) else enumerate(node)):
                if isinstance(entry, str) and entry in texts:
                    node[key] = texts[entry]
                    restored += 1
        entries = chain.from_iterable(node.values() if isinstance(node, dict) else node for node in level)
        level = [entry for entry in entries if isinstance(entry, dict | list)]
    return restored
