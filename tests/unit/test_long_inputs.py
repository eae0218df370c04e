"""Long inputs of custom tools in small pieces take linear time."""

import time
from collections.abc import Iterable

import pytest

from engine.converter.json_string import StringProperty

_SECONDS = 3.0


def read(pieces: Iterable[str]) -> str:
    """Return the property, which must be read within this many seconds of CPU time."""
    found = StringProperty("input")
    started = time.process_time()
    text = "".join(found.feed(piece) for piece in pieces) + found.end()
    assert time.process_time() - started < _SECONDS
    return text


@pytest.mark.parametrize("blank", [" ", "\n", "\t\n"])
def test_endless_white_space_takes_linear_time(blank: str) -> None:
    assert read(["{", *[blank] * 100_000, '"input":"a b"}']) == "a b"
    assert read([*[blank] * 100_000, '{"input":"a b"}']) == "a b"


def test_white_space_inside_the_text_is_kept() -> None:
    assert read(['{"input":"', *[" "] * 1_000, '"}']) == " " * 1_000


def test_a_long_input_after_another_property_is_parsed_once() -> None:
    long = "x" * 40
    assert read(['{"other":1,"input":"', *[long] * 50_000, '"}']) == long * 50_000
