"""Compression of the event log: exact, small, and readable for as long as logs are kept."""

import zlib
from dataclasses import replace
from typing import Any

import pytest

from engine.events.compression import compress, decompress
from engine.events.response_body import opening
from engine.events.types import ContentPartAdded, Event, OutputTextDelta, frame
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


def log_of(*texts: str, obfuscate: bool = True, **fields: Any) -> bytes:
    """Return the frames of a log with text deltas between other events."""
    added = ContentPartAdded(item_id="msg_1", output_index=0, content_index=0, part={"type": "output_text"})
    deltas = [OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text) for text in texts]
    events: list[Event] = [added, *(replace(delta, **fields) for delta in deltas), added]
    return b"".join(frame(event, number, obfuscate=obfuscate) for number, event in enumerate(events, 98))


SPECIAL = ("", 'a "quoted" word', 'a \\ and "delta":', "line\nbreak", "\0", "grüße", "数", "🎈" * 20, "x" * 40)


def test_text_deltas_are_read_back_exactly() -> None:
    for obfuscate in (True, False):
        frames = log_of(*SPECIAL, obfuscate=obfuscate)
        stored = compress(frames)
        assert decompress(stored) == decompress(memoryview(stored)) == frames


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((b'"sequence_number":101', b'"sequence_number":7'), id="numbers with a gap"),
        pytest.param((b'"item_id":"msg_1","output_index":0', b'"item_id":"msg_1","output_index":1'), id="two parts"),
        pytest.param((b'"logprobs":[]', b'"logprobs":[1]'), id="log probabilities"),
        pytest.param((b'"delta":"five"', b'"delta":"\\x"'), id="invalid JSON"),
        pytest.param((b'"delta":"five"', b'"delta":5'), id="not a text"),
        pytest.param((b'"delta":"five"', b'"delta":"\0"'), id="a zero byte"),
        pytest.param((b'"obfuscation"', b'"other"'), id="other padding"),
        pytest.param((b'"delta":', b'"text":'), id="no text"),
        pytest.param((b"\n\n", b"\n"), id="frames that do not end"),
        pytest.param((b"event: response.output_text", b": x\n\nevent: response.output_text"), id="frames between"),
    ],
)
def test_unusual_text_deltas_are_read_back_exactly(change: tuple[bytes, bytes]) -> None:
    frames = log_of("one", "two", "three", "four", "five", "six")
    for count in (1, 3, -1):
        changed = frames.replace(*change, count)
        assert decompress(compress(changed)) == changed


def test_a_log_with_log_probabilities_is_read_back_exactly() -> None:
    frames = log_of("one", "two", logprobs=[{"token": "one", "logprob": -0.1}])
    assert decompress(compress(frames)) == frames


async def test_the_log_of_a_short_answer_shrinks_to_a_thirtieth() -> None:
    played = await play(text(*(f" word{number * 7919 % 64}" for number in range(64))))
    events = [*opening(context().parameters), *events_of(played.steps)]
    frames = [frame(event, number, obfuscate=True) for number, event in enumerate(events)]
    raw, stored = b"".join(frames), len(compress(b"".join(frames[:2]))) + len(compress(b"".join(frames[2:])))
    assert stored < len(raw) / 30
    assert stored < len(zlib.compress(raw, 6))
