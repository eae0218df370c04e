"""One string property of a JSON object, read while the object is still being written.

Custom tools take free text; upstreams that know functions only write it as `{"input": "…"}`, in pieces that end
anywhere: within an escape, or between the halves of a surrogate pair.
"""

import json
from enum import Enum, auto
from typing import Any

import regex

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = r"[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_TOKEN = regex.compile(rf'{_HIGH}{_LOW}|\\u{_HEX}{{4}}|\\[^u]|\\u(?!{_HEX}{{0,3}}\Z)|[^"\\]+', regex.DOTALL)
# What may still become another token when more comes: half an escape, or the first half of a pair.
_HALF = regex.compile(rf"(?:{_HIGH})?\\(?:u{_HEX}{{0,3}})?\Z|{_HIGH}\Z")


class _State(Enum):
    HEAD = auto()
    TEXT = auto()
    OVER = auto()
    ELSEWHERE = auto()


class StringProperty:
    """Reads the property `name`, which normally is the only one. An object of another form is read at its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening = regex.compile(rf'\s*\{{\s*"{regex.escape(name)}"\s*:\s*"')
        self._state = _State.HEAD
        self._rest = ""
        self._later: list[str] = []

    def feed(self, piece: str) -> str:
        """What this piece adds to the text."""
        if self._state is _State.OVER:
            return ""
        if self._state is _State.ELSEWHERE:
            self._later.append(piece)
            return ""
        if self._state is _State.HEAD and piece.isspace() and self._rest[-1:].isspace():
            return ""  # some models never stop writing blanks, and what came so far is read again each time
        self._rest += piece
        if self._state is _State.HEAD:
            self._begin()
        return self._read(final=False) if self._state is _State.TEXT else ""

    def end(self) -> str:
        """What is left of the text, now that nothing more comes."""
        match self._state:
            case _State.TEXT:
                return self._read(final=True)
            case _State.HEAD | _State.ELSEWHERE:
                return _clean(_sought("".join([self._rest, *self._later]), self._name))
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
            if token is None:  # the closing quote, or an escape that was cut for good
                self._state = _State.OVER
                break
            text.append(_decoded(token[0]))
            position = token.end()
        self._rest = self._rest[position:]
        return _clean("".join(text))


def _decoded(token: str) -> str:
    """A token as text. What is no escape of JSON's is meant as it stands: models write `\\d`."""
    if not token.startswith("\\"):
        return token
    kind = token[1]
    if kind == "u":
        return str(json.loads(f'"{token}"')) if len(token) > len("\\u") else token
    return _ESCAPES.get(kind, kind if kind in '"\\/' else token)


def _clean(text: str) -> str:
    """Without NUL, which cannot be stored, and with halves of pairs marked as what they are."""
    text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _sought(text: str, name: str) -> str:
    """The property in a whole document. A model that wraps its words otherwise, or not at all, has still said them."""
    try:
        document: Any = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text.strip() if text.lstrip()[:1] != "{" else text
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return text
    words = [value for value in document.values() if isinstance(value, str)]
    given = document.get(name, words[0] if len(words) == 1 else "" if not document else text)
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
