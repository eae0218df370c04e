"""Incremental reading of a string property of JSON."""

import json

import pytest

from engine.converter.json_string import StringProperty

TEXTS = ["", "plain", 'a "quoted" \\\\ word', "line\nline\ttab\r\b\f", "grüße 😀 \U0001f600\U0001f600", "\u2028\u0001"]


def read(document: str, *, size: int) -> tuple[str, list[str]]:
    """Return the text read from pieces of this size, and the pieces returned before the end."""
    reader = StringProperty("input")
    pieces = [reader.feed(document[at : at + size]) for at in range(0, len(document), size)]
    return "".join([*pieces, reader.end()]), pieces


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_text_does_not_depend_on_the_chunking(text: str, size: int, ascii_only: bool) -> None:
    document = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert read(document, size=size)[0] == text
    assert read(f" {{ \n\t{document[1:-1]} }} ", size=size)[0] == text


def test_text_is_returned_while_it_arrives() -> None:
    assert read('{"input":"abc"}', size=1)[1] == [*[""] * 10, "a", "b", "c", "", ""]


def test_half_a_surrogate_pair_waits_for_the_other_half() -> None:
    reader = StringProperty("input")
    pieces = [reader.feed(piece) for piece in ('{"input":"x\\ud83d', "\\", "ude", '00y"}')]
    assert pieces == ["x", "", "", "😀y"]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ('{"input":"\\ud83d"}', "�"),
        ('{"input":"\\ude00x"}', "�x"),
        ('{"input":"a\\u0000b"}', "ab"),
        ('{"input":"\\d+\\.\\uzz"}', "\\d+\\.\\uzz"),
        ('{"input":"line\nbreak"}', "line\nbreak"),
        ('{"input":"cut here', "cut here"),
        ('{"input":"cut\\u00', "cut"),
        ('{"input":"x","more":1}', "x"),
        ('{"more":1,"input":"x"}', "x"),
        ('{"code":"x"}', "x"),
        ('{"input":{"a":1}}', '{"a": 1}'),
        ("{}", ""),
        ("", ""),
        ('"just a string"', "just a string"),
        ("no JSON at all", "no JSON at all"),
        ("[1]", "[1]"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_unexpected_documents_keep_as_much_text_as_possible(document: str, text: str, size: int) -> None:
    assert read(document, size=size)[0] == text
