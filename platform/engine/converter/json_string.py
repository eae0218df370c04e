"""Incremental reader of one string property of a JSON object.

Custom tools take free text. Upstreams that only know functions send it as `{"input": "…"}`, in pieces that may end
anywhere: inside an escape sequence, or between the halves of a surrogate pair.
"""

import json
from enum import Enum, auto
from typing import Any

import regex

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = r"[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_TOKEN = regex.compile(rf'{_HIGH}{_LOW}|\\u{_HEX}{{4}}|\\[^u]|\\u(?!{_HEX}{{0,3}}\Z)|[^"\\]+', regex.DOTALL)
# The incomplete end of a piece: part of an escape sequence, or the first half of a surrogate pair.
_HALF = regex.compile(rf"(?:{_HIGH})?\\(?:u{_HEX}{{0,3}})?\Z|{_HIGH}\Z")


class _State(Enum):
    HEAD = auto()
    TEXT = auto()
    OVER = auto()
    ELSEWHERE = auto()


class StringProperty:
    """Reader of the property `name`. An object that does not start with it is only read at its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening = regex.compile(rf'\s*\{{\s*"{regex.escape(name)}"\s*:\s*"')
        self._state = _State.HEAD
        self._rest = ""
        self._later: list[str] = []

    def feed(self, piece: str) -> str:
        """Return the text that this piece adds."""
        if self._state is _State.OVER:
            return ""
        if self._state is _State.ELSEWHERE:
            self._later.append(piece)
            return ""
        if self._state is _State.HEAD and piece.isspace() and self._rest[-1:].isspace():
            # Some models write white space endlessly. The head is matched again with each piece, so white space is
            # skipped to avoid quadratic time.
            return ""
        self._rest += piece
        if self._state is _State.HEAD:
            self._begin()
        return self._read(final=False) if self._state is _State.TEXT else ""

    def end(self) -> str:
        """Return the rest of the text at the end of the arguments."""
        match self._state:
            case _State.TEXT:
                return self._read(final=True)
            case _State.HEAD | _State.ELSEWHERE:
                return _clean(_extract("".join([self._rest, *self._later]), self._name))
        return ""

    def _begin(self) -> None:
        opening = self._opening.match(self._rest, partial=True)
        if opening is None:
            self._state = _State.ELSEWHERE
        elif not opening.partial:
            self._rest = self._rest[opening.end() :]
            self._state = _State.TEXT

    def _read(self, *, final: bool) -> str:
        text, position = [], 0
        while position < len(self._rest):
            if not final and _HALF.match(self._rest, position):
                break
            token = _TOKEN.match(self._rest, position)
            if token is None:  # the closing quote, or an incomplete escape at the end
                self._state = _State.OVER
                break
            text.append(_decoded(token[0]))
            position = token.end()
        self._rest = self._rest[position:]
        return _clean("".join(text))


def _decoded(token: str) -> str:
    # Models write invalid escapes such as `\d` in regular expressions, and mean them literally.
    if not token.startswith("\\"):
        return token
    kind = token[1]
    if kind == "u":
        return str(json.loads(f'"{token}"')) if len(token) > len("\\u") else token
    return _ESCAPES.get(kind, kind if kind in '"\\/' else token)


def _clean(text: str) -> str:
    # PostgreSQL stores neither NUL nor unpaired surrogates; the latter become U+FFFD.
    text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _extract(text: str, name: str) -> str:
    # Models that do not follow the schema still give an input: plain text, a JSON string, or a property with another
    # name.
    try:
        document: Any = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text.strip() if text.lstrip()[:1] != "{" else text
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return text
    values = [value for value in document.values() if isinstance(value, str)]
    value = document.get(name, values[0] if len(values) == 1 else "" if not document else text)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
