"""The stream of bytes from a run to its client."""

import pytest

from responses.runs.client_stream import UNREAD_BYTES, ClientStream


async def test_bytes_are_read_before_the_error_that_ends_the_stream() -> None:
    stream = ClientStream(ping=b":", has_reader=True)
    stream.put(b"one")
    stream.close(ValueError("end"))
    reading = stream.read()
    assert await anext(reading) == b"one"
    with pytest.raises(ValueError, match="end"):
        await anext(reading)


async def test_only_the_first_end_of_a_stream_counts() -> None:
    stream = ClientStream(ping=b":", has_reader=True)
    stream.close()
    stream.close(ValueError("late"))
    assert [data async for data in stream.read()] == []


async def test_nothing_is_kept_for_a_client_that_has_disconnected() -> None:
    stream = ClientStream(ping=b":", has_reader=True)
    stream.put(b"x" * (UNREAD_BYTES + 1))
    assert stream.is_full
    stream.drop_reader()
    stream.put(b"more")
    stream.close()
    assert not stream.is_full
    assert [data async for data in stream.read()] == []
