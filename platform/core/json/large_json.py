"""Parsing and writing of large JSON in steps, between which other threads run.

orjson keeps the interpreter lock while it works: it parses an image of 20 MB in 25 to 35 ms and writes it in 10 to 15
ms, during which no thread can send anything. Large bodies consist of few long strings, so these are cut out and
converted piece by piece, 2 ms each, with a pause after each piece.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any
from uuid import uuid4

import orjson

from core.json.large_work import has_short_turns, join_pieces, pause

# Smaller bodies are parsed at once, in less than 5 ms.
_SMALL_BYTES = 1024 * 1024
_LONG_BYTES = 256 * 1024
_PIECE_BYTES = 1024 * 1024
# Text is searched for long strings in windows of this size; a long string contains three whole ones.
_WINDOW_BYTES = 64 * 1024
_QUOTE, _ESCAPED_QUOTE, _BACKSLASH = b'"', b'\\"', ord("\\")
# The longest escape sequence is a pair of surrogates, `\ud83d\ude00`.
_LONGEST_ESCAPE = 12
# The level of the longest path to a long string: `messages[0].content[0].image_url.url`. To look at all levels of 128
# tools with 2 MB of schemas takes 34 ms.
_LEVELS = 6


def loads(raw: bytes) -> Any:
    """Parse JSON like `orjson.loads`, with the same results and errors."""
    if len(raw) < _SMALL_BYTES:
        return orjson.loads(raw)
    mark = uuid4().hex
    strings = [*_long_strings(raw)]
    if not strings:
        return orjson.loads(raw)
    parts: list[bytes] = []
    kept = 0
    for index, (start, end) in enumerate(strings):
        parts += [raw[kept:start], f"{mark}{index}".encode()]
        kept = end
    try:
        root = [orjson.loads(b"".join([*parts, raw[kept:]]))]
        texts = {f"{mark}{index}": _parse_string(raw, *string) for index, string in enumerate(strings)}
    except orjson.JSONDecodeError:
        # Parse the whole text instead: a string may have no position where it can be cut, and the text between two
        # strings may have been taken for a string.
        return orjson.loads(raw)
    # If a long string was a key, it could not be restored: parse the whole text instead.
    return root[0] if _restore(root, texts) == len(texts) else orjson.loads(raw)


def _long_strings(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of the contents of long strings, and possibly of long text between two strings."""
    # Looking at every string would take 40 ms for 2 MB of tools, and 145 ms for 9 MB of text with quotes.
    searched = 0
    for window in range(_WINDOW_BYTES, len(raw) - _WINDOW_BYTES, _WINDOW_BYTES):
        if window < searched or _has_end(raw, window):
            continue
        start = raw.rfind(_QUOTE, searched, window)
        while start >= 0 and _is_escaped(raw, start):
            start = raw.rfind(_QUOTE, searched, start)
        searched = window + _WINDOW_BYTES
        while searched < len(raw) and not _has_end(raw, searched):
            searched += _WINDOW_BYTES
        end = raw.find(_QUOTE, searched)
        while end >= 0 and _is_escaped(raw, end):
            end = raw.find(_QUOTE, end + 1)
        if start >= 0 and end - start > _LONG_BYTES:
            yield start + 1, end
            searched = end + 1


def _has_end(raw: bytes, window: int) -> bool:
    """Return false if the window can be the middle of a string, in which each quote follows a backslash."""
    end = window + _WINDOW_BYTES
    quotes = raw.count(_QUOTE, window, end)
    return quotes > 0 and quotes > raw.count(_ESCAPED_QUOTE, window - 1, end)


def _is_escaped(raw: bytes, position: int) -> bool:
    first = position
    while first and raw[first - 1] == _BACKSLASH:
        first -= 1
    return (position - first) % 2 == 1


def _parse_string(raw: bytes, start: int, end: int) -> str:
    text = ""
    while start < end:
        cut = _cut(raw, start + _PIECE_BYTES, end)
        # Python appends to a local variable in place: `str.join` of 20 MB keeps the interpreter lock for 12 ms.
        text += orjson.loads(b'"%b"' % raw[start:cut])
        start = cut
        pause()
    return text


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
    """Put the long strings back in their places below `root`, and return the number of restored strings."""
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


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """Write JSON like `orjson.dumps`, with the same results and errors. Long strings are written in steps."""
    if not has_short_turns():
        return orjson.dumps(value, default=default)
    mark = uuid4().hex
    texts: list[str] = []
    short = orjson.dumps(_without_long_strings(value, mark, texts, levels=_LEVELS), default=default)
    if not texts:
        return short
    size = len(short) + sum(map(len, texts))
    return join_pieces(_written(short.split(b'"%b"' % mark.encode()), texts), size=size)


def _without_long_strings(value: Any, mark: str, texts: list[str], *, levels: int) -> Any:
    """Return the value with `mark` in the places of long strings, which are appended to `texts`."""
    kind = type(value)
    if kind is str and len(value) > _LONG_BYTES:
        texts.append(value)
        return mark
    if kind is dict and levels:
        return {name: _without_long_strings(entry, mark, texts, levels=levels - 1) for name, entry in value.items()}
    if kind is list and levels:
        return [_without_long_strings(entry, mark, texts, levels=levels - 1) for entry in value]
    return value


def _written(parts: Sequence[bytes], texts: Sequence[str]) -> Iterator[bytes | memoryview]:
    """Yield the parts, with one of the texts between each part and the next."""
    yield parts[0]
    for part, text in zip(parts[1:], texts, strict=True):
        yield b'"'
        for start in range(0, len(text), _PIECE_BYTES):
            # Without the quotes.
            yield memoryview(orjson.dumps(text[start : start + _PIECE_BYTES]))[1:-1]
            pause()
        yield b'"'
        yield part
