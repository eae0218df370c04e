"""Parser for JSON that strict parsers refuse, for a second attempt after an error.

Encoders write NaN and Infinity, numbers beyond 64 bits, half of a surrogate pair, raw control characters, and bytes
that are not UTF-8. The result has none of them: PostgreSQL can store it, and every client can read it.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

# The value that OpenAI's API has for the logarithm of a very small probability.
_MINUS_INFINITY = -9999.0
# Python refuses to parse integers of more than 4,300 digits.
_LONGEST_INTEGER = len(str(-(2**64)))
_BOM = "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Invalid bytes, as Python's error handler `surrogateescape` writes them, and the beginnings of a character.
_BYTES = re.compile("(?<![\ud800-\udbff])[\udc80-\udcff]+")
_BEGUN = re.compile("(?:[\ud800-\udbff]|[\udcc2-\udcf4][\udc80-\udcbf]{0,2})\\Z")
# Names of objects and positions in arrays.
_Place = tuple[object, ...]


@dataclass(slots=True)
class Halves:
    """Halves of characters, by the place of their string in a document of a stream.

    `first` contains the first halves at the ends of earlier strings, until their second halves are found. `later`
    contains the first halves at the ends of strings of the current document.
    """

    first: dict[_Place, str] = field(default_factory=dict)
    later: dict[_Place, str] = field(default_factory=dict)


# A string, a constant as written by C's `printf` or a language other than JavaScript, or a comma before the end.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf(?:inity)?|null|none|undefined|true|false)\b|,(?=\s*[}\]])',
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([\"\\/bfnrt]|u[0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONSTANTS = {"null": "null", "none": "null", "undefined": "null", "nan": "NaN", "true": "true", "false": "false"}


def loads(raw: bytes, *, halves: Halves | None = None) -> Any:
    """Parse JSON that `orjson.loads` has refused. Raises `ValueError` if it is not complete JSON.

    NaN, infinity and numbers beyond the range of floats become null, and -Infinity becomes the smallest logarithm of a
    probability. Invalid bytes and halves of surrogate pairs become U+FFFD, and NUL characters are removed.

    With `halves`, a first half at the end of a string is moved to `halves`, and a second half at the beginning is
    joined with the first half of an earlier document: the texts of a stream may be divided inside of a character.
    """
    text = _decoded(raw).lstrip(_BOM)
    try:
        try:
            parsed = _DECODER.decode(text)
        except ValueError:
            # Only in a second attempt, because most documents that strict parsers refuse do not need it.
            parsed = _DECODER.decode(_TOKEN.sub(_repaired, text))
        return _storable(parsed, (), halves)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _decoded(raw: bytes) -> str:
    try:
        # Some encoders write both halves of a pair as UTF-8; they are joined below.
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


def _repaired(token: re.Match[str]) -> str:
    text = token[0]
    if text.startswith('"'):
        return _ESCAPE.sub(_escape, text)
    if text == ",":
        return ""
    if constant := _CONSTANTS.get(text.lower().lstrip("+-")):
        return constant
    return "-Infinity" if text.startswith("-") else "Infinity"


def _escape(escape: re.Match[str]) -> str:
    # `\'` is valid in JavaScript; any other backslash was not meant as an escape.
    if escape[1]:
        return escape[0]
    return "'" if escape[2] == "'" else rf"\\{escape[2]}"


def _constant(name: str) -> float | None:
    return _MINUS_INFINITY if name == "-Infinity" else None


def _float(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else _constant("-Infinity" if number < 0 else "Infinity")


def _integer(text: str) -> int | float | None:
    # orjson parses integers beyond 64 bits as floats, too, and could not serialise others.
    if len(text) > _LONGEST_INTEGER or not -(2**63) <= (number := int(text)) < 2**64:
        return _float(text)
    return number


_DECODER = json.JSONDecoder(strict=False, parse_constant=_constant, parse_float=_float, parse_int=_integer)


def _storable(value: Any, place: _Place, halves: Halves | None) -> Any:
    match value:
        case str():
            return _text(value if halves is None else _joined(value, place, halves))
        case list():
            return [_storable(entry, (*place, number), halves) for number, entry in enumerate(value)]
        case dict():
            return {_text(key): _storable(entry, (*place, key), halves) for key, entry in value.items()}
    return value


def _joined(text: str, place: _Place, halves: Halves) -> str:
    if place in halves.first and "\udc00" <= text[:1] <= "\udfff":
        text = _BYTES.sub(_from_bytes, halves.first.pop(place) + text)
    if begun := _BEGUN.search(text):
        halves.later[place], text = begun[0], text[: begun.start()]
    return text


def _text(text: str) -> str:
    if _SURROGATE.search(text):
        text = _BYTES.sub(_from_bytes, text)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\x00", "")


def _from_bytes(escaped: re.Match[str]) -> str:
    return escaped[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
