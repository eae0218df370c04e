"""JSON that strict parsers refuse: nonstandard output of upstreams is parsed, truncated JSON is not."""

from typing import Any

import orjson
import pytest

from core.json import lenient_json

ODD: dict[str, tuple[bytes, Any]] = {
    "NaN": (b'{"a": NaN}', {"a": None}),
    "infinities": (b"[Infinity, -Infinity]", [None, -9999.0]),
    "infinities of C": (b"[nan, -nan, inf, -inf, +inf]", [None, None, None, -9999.0, None]),
    "constants of Python": (b'{"a": None, "b": True}', {"a": None, "b": True}),
    "a number beyond floats": (b"[1e999, -1e999]", [None, -9999.0]),
    "an integer beyond 64 bits": (b"[18446744073709551616, 18446744073709551615]", [2.0**64, 2**64 - 1]),
    "an integer of 5,000 digits": (b'{"a": %b, "b": NaN}' % (b"9" * 5000), {"a": None, "b": None}),
    "half of a pair": (rb'{"\ud83d": "a\ude00"}', {"\ufffd": "a\ufffd"}),
    "a pair in UTF-8": (b'"\xed\xa0\xbd\xed\xb8\x80"', "\U0001f600"),
    "invalid UTF-8": (b'"Gr\xfc\xdfe"', "Gr\ufffd\ufffde"),
    "control characters": (b'"a\x01\tb\nc"', "a\x01\tb\nc"),
    "NUL": (b'"a\x00b\\u0000c\x01"', "abc\x01"),
    "a byte-order mark": (b"\xef\xbb\xbf{}", {}),
    "a comma at the end": (b'{"a": [1, 2,],}', {"a": [1, 2]}),
    "escapes of JavaScript": (rb'"it\'s \d"', r"it's \d"),
    "words in texts": (rb'{"a": "NaN, nan, None,]", "b": nan}', {"a": "NaN, nan, None,]", "b": None}),
    "a key twice": (b'{"a": 1, "a": NaN}', {"a": None}),
}


@pytest.mark.parametrize("what", ODD)
def test_nonstandard_values_are_parsed_into_storable_ones(what: str) -> None:
    raw, expected = ODD[what]
    parsed = lenient_json.loads(raw)
    assert parsed == expected
    assert orjson.loads(orjson.dumps(parsed)) == parsed


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"a": "b', b'{"a": NaN', b"oops", b"{oops}", b"<html>", b"{} {}", b"[" * 100_000 + b"]" * 100_000],
)
def test_truncated_and_invalid_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        lenient_json.loads(raw)
