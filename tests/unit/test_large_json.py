"""Large JSON is parsed and written in pieces with the results of orjson."""

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest

from core.json import large_json
from core.json.large_work import short_turns

# Two pieces.
_SIZE = 1_600_000
# Prime lengths, so that the cuts hit every position of a character or an escape sequence.
_TEXTS = {
    "plain": "abcdefg",
    "escapes": 'say "hi"\\\n\t',
    "two bytes": "éèê",
    "four bytes": "a😀b",
    "backslashes": "\\\\\\",
    "escaped escapes": "\\ud83d\\\\u0041",
}


@pytest.mark.parametrize("kind", _TEXTS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_long_strings_are_the_same_as_parsed_at_once(kind: str, is_ascii: bool) -> None:
    text = _TEXTS[kind] * (_SIZE // len(_TEXTS[kind]))
    raw = json.dumps({"a": [text, {"b": text[1:], "": 0}], "c": "short"}, ensure_ascii=is_ascii).encode()
    assert large_json.loads(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "document",
    [
        "x" * _SIZE,
        {"k" * _SIZE: 1},
        {"x" * _SIZE: "x" * _SIZE},
        [["y" * _SIZE] * 2, 1.5, None, 2**63],
        ["word"] * (_SIZE // 7),
        # The JSON between two strings is as long as a long string.
        ["a", [1] * _SIZE, "b", "x" * _SIZE, [2] * _SIZE, 'y"\\' * _SIZE, "\\"],
        ["x" * size for size in range(100_000, 400_000, 37_037)],
    ],
)
def test_any_document_is_the_same_as_parsed_at_once(document: Any) -> None:
    raw = orjson.dumps(document)
    assert large_json.loads(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "broken",
    [
        b'{"a":"%b' % (b"x" * _SIZE),
        b'{"a":"%b"' % (b"x" * _SIZE),
        b'{"a":"%b\\"}' % (b"x" * _SIZE),
        b'{"a":"%b\n"}' % (b"x" * _SIZE),
        b'{"a":"%b"}' % (b"\x80" * _SIZE),
        b'{"a":"%b\\ud800"}' % (b"x" * _SIZE),
        b'{"a":"%b" "b"}' % (b"x" * _SIZE),
        b'"' * _SIZE,
        b"\\" * _SIZE,
        b'{"a":"' + b"\\" * _SIZE,
    ],
)
def test_broken_json_is_an_error(broken: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        large_json.loads(broken)


@pytest.mark.parametrize("kind", _TEXTS)
def test_long_strings_are_the_same_as_written_at_once(kind: str) -> None:
    text = _TEXTS[kind] * (2 * _SIZE // len(_TEXTS[kind]))
    document = {"a": [text, {"b": text[1:], "": 0}, text], "c": "short", "d": Decimal("1.50")}
    with short_turns():
        assert large_json.dumps(document, default=str) == orjson.dumps(document, default=str)


@pytest.mark.parametrize(
    "document", ["x" * _SIZE, {"k" * _SIZE: 1}, [["y" * _SIZE] * 2, 1.5, None], [[[[[[["x" * _SIZE]]]]]]], {}]
)
def test_a_document_written_in_parts_equals_one_written_at_once(document: Any) -> None:
    with short_turns():
        assert large_json.dumps(document) == orjson.dumps(document)
    assert large_json.dumps(document) == orjson.dumps(document)


def test_a_long_string_that_is_no_text_is_rejected_as_by_orjson() -> None:
    with short_turns(), pytest.raises(orjson.JSONEncodeError):
        large_json.dumps({"a": "x" * _SIZE + "\ud800"})
