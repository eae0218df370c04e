"""Parsing of an upstream's bytes into chunks, and the ends of streams."""

import orjson
import pytest

from engine.converter.chat import ChatConverter
from engine.turn import Finish
from providers.event_stream import EventStreamDecoder
from tests.support.chunks import Chunk, chunk

FIRST, SECOND = chunk(content="a"), chunk(content="b")


def data(value: Chunk) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def read(*pieces: bytes) -> tuple[list[Chunk], EventStreamDecoder]:
    """Return the chunks of these pieces and the decoder after its end."""
    lines, chunks = EventStreamDecoder(), list[Chunk]()
    for piece in pieces:
        chunks += lines.feed(piece)
        if lines.done or lines.failure is not None:
            return chunks, lines
    return chunks + lines.end(), lines


@pytest.mark.parametrize(("done", "finish"), [(True, None), (False, "stop"), (True, "stop")])
def test_done_or_a_finish_reason_completes_the_turn(done: bool, finish: str | None) -> None:
    converter = ChatConverter(first_output_index=0)
    converter.feed([FIRST, chunk(finish=finish)])
    converter.end(done=done)
    assert converter.result().finish is Finish.STOP


def test_a_stream_without_done_or_finish_reason_fails() -> None:
    converter = ChatConverter(first_output_index=0)
    converter.feed([FIRST])
    converter.end(done=False)
    result = converter.result()
    assert result.finish is Finish.ERROR
    assert result.failure is not None
    assert result.failure.code == "server_error"
    assert result.items[0]["status"] == "incomplete"


def test_reads_may_split_characters_and_lines() -> None:
    whole = data(chunk(content="Grüße")) + data(SECOND) + b"data: [DONE]\n\n"
    pieces = [whole[i : i + 1] for i in range(len(whole))]
    chunks, lines = read(*pieces)
    assert (chunks, lines.done) == ([chunk(content="Grüße"), SECOND], True)


def test_comments_other_fields_and_carriage_returns_are_ignored() -> None:
    noisy = b": ping\r\n\r\nevent: x\r\nid: 1\r\n" + data(FIRST).replace(b"\n", b"\r\n") + b"data:[DONE]\r\n\r\n"
    chunks, lines = read(noisy)
    assert (chunks, lines.done, lines.failure) == ([FIRST], True, None)


def test_multi_line_data_is_joined() -> None:
    lines = orjson.dumps(FIRST, option=orjson.OPT_INDENT_2).split(b"\n")
    chunks, ended = read(b"".join(b"data: " + line + b"\n" for line in lines) + b"\n", data(SECOND))
    assert (chunks, ended.failure) == ([FIRST, SECOND], None)


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n"])
def test_the_last_line_needs_no_line_break(end: bytes) -> None:
    chunks, lines = read(data(FIRST), end)
    assert (chunks, lines.done) == ([FIRST], True)


def test_a_last_chunk_without_line_break_or_done_is_read() -> None:
    chunks, lines = read(data(FIRST), data(SECOND).rstrip())
    assert (chunks, lines.done, lines.failure) == ([FIRST, SECOND], False, None)


@pytest.mark.parametrize(
    "broken", [b"data: {oops\n\n", b"data: {oops", b"data: [1]\n\n", b'data: "x"\n\n', b"data: {\ndata: [DONE]\n\n"]
)
def test_an_invalid_chunk_ends_the_stream_and_keeps_earlier_chunks(broken: bytes) -> None:
    chunks, lines = read(data(FIRST), broken, data(SECOND))
    assert chunks == [FIRST]
    assert lines.failure is not None
    assert lines.failure.code == "server_error"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "slow down", "code": 429}, "rate_limit_exceeded"),
        ({"message": "bad", "code": 400}, "invalid_prompt"),
        ({"message": "gone", "code": "overloaded"}, "server_is_overloaded"),
        ({"message": "gone", "code": "gone"}, "server_error"),
        ("just words", "server_error"),
    ],
)
def test_an_error_in_the_stream_ends_it(error: object, code: str) -> None:
    chunks, lines = read(data(FIRST), data({"error": error}), data(SECOND))
    assert chunks == [FIRST]
    assert lines.failure is not None
    assert lines.failure.code == code


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_may_end_in_any_way_in_any_read(end: bytes, size: int) -> None:
    whole = b"\xef\xbb\xbf" + (data(FIRST) + b": ping\n\n" + data(SECOND) + b"data: [DONE]\n\n").replace(b"\n", end)
    chunks, lines = read(*[whole[start : start + size] for start in range(0, len(whole), size)])
    assert (chunks, lines.done, lines.failure) == ([FIRST, SECOND], True, None)


def test_a_carriage_return_ends_a_line_at_once() -> None:
    lines = EventStreamDecoder()
    assert lines.feed(data(FIRST).rstrip() + b"\r") == [FIRST]
    assert lines.feed(b"\n\r\n" + data(SECOND)) == [SECOND]


KEEP_ALIVES = [
    b"data: : OPENROUTER PROCESSING\n\n",
    b"data: : OPENROUTER PROCESSING\n",
    b"data: ping\n\n",
    b"data: [PING]\n\n",
    b'data: "keep-alive"\n\n',
    b"data: heartbeat\n\n",
    b"data: null\n\n",
    b"data: {}\n\n",
    b"data:\n\n",
    b"data\n\n",
    b"event: ping\ndata: {}\n\n",
    b":\n\n",
    b"retry: 5\n\n",
    b"nothing known\n\n",
]


@pytest.mark.parametrize("comment", KEEP_ALIVES)
def test_comments_sent_as_data_are_ignored(comment: bytes) -> None:
    chunks, lines = read(comment + data(FIRST) + comment, comment + data(SECOND) + b"data: [DONE]\n\n")
    assert (chunks, lines.done, lines.failure) == ([FIRST, SECOND], True, None)


@pytest.mark.parametrize("mark", [b"data:[DONE]", b"data: [done]", b'data: "[DONE]"', b"data: DONE", b"[DONE]"])
def test_the_end_mark_may_be_spelled_differently(mark: bytes) -> None:
    chunks, lines = read(data(FIRST) + mark + b"\n\n" + data(SECOND))
    assert (chunks, lines.done, lines.failure) == ([FIRST], True, None)


def test_documents_without_a_field_are_read() -> None:
    chunks, lines = read(orjson.dumps(FIRST) + b"\n" + orjson.dumps(SECOND, option=orjson.OPT_INDENT_2) + b"\n\n")
    assert (chunks, lines.failure) == ([FIRST, SECOND], None)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'event: error\ndata: {"message": "Gone."}\n\n', "The model's server failed: Gone."),
        (b'event:error\ndata: "Gone."\n\n', "The model's server failed: Gone."),
        (b"event: error\ndata: Gone.\n\n", "The model's server failed: Gone."),
        (b"event: error\ndata: {}\n\n", "The model's server failed."),
        (b"event: error\n\n", "The model's server failed."),
        (b"event: error\ndata: [DONE]\n\n", "The model's server failed."),
        # llama.cpp until September 2025
        (b'error: {"message": "Gone."}\n\n', "The model's server failed: Gone."),
        (b"error: Gone.\n\n", "The model's server failed: Gone."),
    ],
)
def test_an_event_named_error_is_a_failure(event: bytes, message: str) -> None:
    chunks, lines = read(data(FIRST) + event + data(SECOND) + b"data: [DONE]\n\n")
    assert chunks == [FIRST]
    assert lines.failure is not None
    assert lines.failure.message == message


def test_only_the_event_named_error_is_an_error() -> None:
    chunks, lines = read(b"event: error_rate\n" + data(FIRST) + b"event: message\n" + data(SECOND))
    assert (chunks, lines.failure) == ([FIRST, SECOND], None)


def test_a_line_break_in_a_string_is_kept_in_multi_line_data() -> None:
    chunks, _ = read(b'data: {"choices":[{"delta":{"content":"a \ndata:  b"}}]}\n\n')
    assert chunks == [{"choices": [{"delta": {"content": "a \n b"}}]}]


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", rb'"\ud83d"', b'"\xff"', b'"\x01"'])
def test_an_unexpected_value_does_not_end_the_stream(value: bytes) -> None:
    odd = b'data: {"choices":[{"delta":{"content":"a"}}],"x":%b}\n\n' % value
    chunks, lines = read(odd + data(SECOND))
    assert ([chunk["choices"][0]["delta"]["content"] for chunk in chunks], lines.failure) == (["a", "b"], None)
    orjson.dumps(chunks)


def texts(raw: bytes) -> list[str]:
    """Return the texts that are read from a stream."""
    return [chunk["choices"][0]["delta"]["content"] for chunk in read(raw)[0]]


def content(*values: bytes, index: int = 0) -> bytes:
    """Return a stream with these JSON strings as texts."""
    event = b'data: {"choices":[{"index":%d,"delta":{"content":%b}}]}\n\n'
    return b"".join(event % (index, value) for value in values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([rb'"a\ud83d"', rb'"\ude00b"'], ["a", "😀b"]),
        ([rb'"\ud83d"', rb'"\ude00\ud83d"', rb'"\ude01"'], ["", "😀", "😁"]),
        # The second half has a value that an invalid byte has as well.
        ([rb'"\ud83d"', rb'"\udc8a"'], ["", "💊"]),
        ([b'"a\xf0\x9f"', b'"\x98\x80b"'], ["a", "😀b"]),
        ([b'"\xf0"', b'"\x9f"', b'"\x98"', b'"\x80"'], ["", "", "", "😀"]),
        ([b'"\xc3"', b'"\xbcb\xe2\x82"', b'"\xac"'], ["", "üb", "€"]),
        ([b'"a\xed\xa0\xbd"', b'"\xed\xb8\x80"'], ["a", "😀"]),
        # The second half is missing.
        ([rb'"a\ud83d"', b'"b"'], ["a\ufffd", "b"]),
        ([rb'"a\ud83d"', b'"b\x01"'], ["a\ufffd", "b\x01"]),
        ([rb'"a\ud83d"'], ["a\ufffd"]),
        ([b'"a\xf0\x9f"', rb'"\ud83d"'], ["a\ufffd\ufffd", "\ufffd"]),
        ([rb'"\ude00"', b'"b"'], ["\ufffd", "b"]),
    ],
)
@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n", b": comment\n\n"])
def test_a_character_may_be_divided_between_two_events(values: list[bytes], expected: list[str], end: bytes) -> None:
    assert texts(content(*values) + end) == expected


def test_a_character_may_be_divided_where_the_index_counts_the_chunks() -> None:
    assert texts(content(rb'"a\ud83d"') + content(rb'"\ude00b"', index=1)) == ["a", "😀b"]


def test_an_error_after_half_a_character_keeps_its_text() -> None:
    chunks, lines = read(content(rb'"a\ud83d"') + b'event: error\ndata: {"message": "Gone."}\n\n')
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["a\ufffd"]
    assert lines.failure is not None
    assert lines.failure.message == "The model's server failed: Gone."


def test_nul_characters_are_removed() -> None:
    chunks, _ = read(data(chunk(content="a\x00b")))
    assert chunks == [chunk(content="ab")]


def test_nothing_is_read_after_done() -> None:
    chunks, _ = read(data(FIRST) + b"data: [DONE]\n\n" + data(SECOND))
    assert chunks == [FIRST]


def test_a_document_in_many_lines_is_decoded_at_the_end_of_its_event() -> None:
    lines = EventStreamDecoder()
    assert lines.feed(b"data: {\ndata: ") == []
    assert lines.feed(orjson.dumps(FIRST)[1:] + b"\n") == []
    assert lines.feed(b"\n") == [FIRST]


@pytest.mark.parametrize("piece", [b"x" * 1000, b"data: " + b"[1," * 300 + b"\n"], ids=["a line", "lines"])
def test_an_endless_event_fails(piece: bytes) -> None:
    lines = EventStreamDecoder(max_event_bytes=100_000)
    fed = 0
    while lines.failure is None:
        lines.feed(piece)
        fed += 1
    assert lines.failure.message == "The model's server sent an event that is too large."
    assert 100 <= fed <= 120


def test_a_large_event_within_the_limit_is_read() -> None:
    whole = data(chunk(content="a" * 50_000))
    lines, chunks = EventStreamDecoder(max_event_bytes=100_000), list[Chunk]()
    for start in range(0, len(whole) * 4, 1000):
        chunks += lines.feed((whole * 4)[start : start + 1000])
    assert (len(chunks), lines.failure) == (4, None)
