"""Compression of the event log: exact, small, and readable for as long as logs are kept."""

import zlib

import pytest

from responses.engine.events.compression import compress, decompress
from responses.engine.events.response_body import opening
from responses.engine.events.types import frame
from tests.support.chunks import text
from tests.support.runs import context, events_of, play

# Written with the dictionary of the first release. If this text can no longer be read, neither can stored logs.
STORED = bytes.fromhex("787d30effd83a3aefb61161f5e02321b00554021be")
FRAME = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"\xc3\xa4"}\n\n'


def test_stored_logs_stay_readable() -> None:
    assert decompress(STORED) == FRAME
    assert decompress(memoryview(STORED)) == FRAME


@pytest.mark.parametrize("frames", [b"", b"x", FRAME * 10_000, bytes(range(256))])
def test_frames_are_read_back_exactly(frames: bytes) -> None:
    assert decompress(compress(frames)) == frames


async def test_the_log_of_a_short_answer_takes_a_twentieth() -> None:
    played = await play(text(*(f" word{number * 7919 % 64}" for number in range(64))))
    events = [*opening(context().parameters), *events_of(played.steps)]
    frames = [frame(event, number, obfuscate=True) for number, event in enumerate(events)]
    raw, stored = b"".join(frames), len(compress(b"".join(frames[:2]))) + len(compress(b"".join(frames[2:])))
    assert stored < len(raw) / 20
    assert stored < len(zlib.compress(raw, 6))
