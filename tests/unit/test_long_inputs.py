"""Inputs of custom tools that are long, or never begin, in small pieces: none is read again for each of them."""

import time
from collections.abc import Iterable

import pytest

from responses.engine.chat.json_string import StringProperty

_SECONDS = 3.0


def read(pieces: Iterable[str]) -> str:
    """The property, read in at most so many seconds."""
    found = StringProperty("input")
    started = time.monotonic()
    text = "".join(found.feed(piece) for piece in pieces) + found.end()
    assert time.monotonic() - started < _SECONDS
    return text


@pytest.mark.parametrize("blank", [" ", "\n", "\t\n"])
def test_blanks_without_end_cost_nothing(blank: str) -> None:
    assert read(["{", *[blank] * 100_000, '"input":"a b"}']) == "a b"
    assert read([*[blank] * 100_000, '{"input":"a b"}']) == "a b"


def test_blanks_within_the_text_stay() -> None:
    assert read(['{"input":"', *[" "] * 1_000, '"}']) == " " * 1_000


def test_a_long_input_beside_another_property_is_read_once() -> None:
    long = "x" * 40
    assert read(['{"other":1,"input":"', *[long] * 50_000, '"}']) == long * 50_000
