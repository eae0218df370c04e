"""Compression of the event log. Batches are small and resemble each other, so they share a preset dictionary.

Most events are text deltas. A sequence of text deltas is stored as a list of their texts, from which it is rebuilt. The
log of 64 tokens has 21 KB. It takes 0.42 KB as a list, and 0.84 KB if only its bytes are compressed. The list saves 430
bytes on disk and in the WAL, and costs 33 us of CPU (64 deltas: 50 instead of 18).
"""

import zlib
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path

import orjson

from engine.events.types import NOISE

# Events of a typical response. Stored logs cannot be read without this text, so neither the text nor the other
# constants here may ever change. A better text has to be an additional dictionary: the header of a compressed batch
# (RFC 1950) identifies its dictionary. Batches with listed text deltas use the second dictionary.
_WHOLE = Path(__file__).with_name("log_dictionary.txt").read_bytes()
_LISTED = _WHOLE + b"\0"
_LISTED_ID = zlib.adler32(_LISTED).to_bytes(4, "big")
# Level 6 takes 60 % longer for the listed log and saves another 40 bytes.
_LEVEL = 3
# The buffers are copied for each batch, 0.1 MB with these values, and in a busy process they are not in the cache of
# the processor: with a memory level of 7 the two batches of a stream took 121 us, and 186 us with 9. Larger values save
# nothing, because events resemble the events just before them.
_WINDOW_BITS, _MEMORY_LEVEL = 14, 6
# Fewer deltas are as small without a list.
_LEAST_LISTED = 3
_DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":'
_TEXT = b'"delta":'
_AFTER_TEXT = b',"logprobs":[]'
# Copied for each batch: that is faster than reading the dictionary again (64 tokens take 17 us instead of 21).
_COMPRESS_WHOLE, _COMPRESS_LISTED = (
    zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS, memLevel=_MEMORY_LEVEL, zdict=dictionary)
    for dictionary in (_WHOLE, _LISTED)
)


def compress(frames: bytes) -> bytes:
    """Return the frames of a batch as they are stored."""
    listed = _list_deltas(frames)
    compressor = _COMPRESS_WHOLE.copy() if listed is None else _COMPRESS_LISTED.copy()
    return compressor.compress(frames if listed is None else listed) + compressor.flush()


def decompress(stored: bytes | memoryview) -> bytes:
    """Return the frames of a stored batch, exactly as they were sent."""
    if stored[2:6] != _LISTED_ID:
        return zlib.decompressobj(zdict=_WHOLE).decompress(stored)
    before, listed, after = zlib.decompressobj(zdict=_LISTED).decompress(stored).split(b"\0")
    return before + _frames_of(listed) + after


def _list_deltas(frames: bytes) -> bytes | None:
    """Return the frames with a list instead of their text deltas, or None if they could not be restored exactly.

    They can be restored if they follow each other, belong to one part of a message, and have no log probabilities.
    """
    start = frames.find(_DELTA)
    if start < 0 or b"\0" in frames:
        return None
    end = frames.find(b"\n\n", frames.rfind(_DELTA)) + 2
    first, *others = frames[start:end].split(_TEXT)
    if len(others) < _LEAST_LISTED:
        return None
    number, _, place = first[len(_DELTA) :].partition(b",")
    noise = NOISE if b'"obfuscation":' in others[0] else b""
    texts = [piece.partition(_AFTER_TEXT)[0] for piece in others]
    listed = b"\n".join([number, place, noise, *texts])
    try:
        is_exact = _frames_of(listed) == frames[start:end]
    except (ValueError, TypeError):  # not a text
        return None
    return b"\0".join([frames[:start], listed, frames[end:]]) if is_exact else None


def _frames_of(listed: bytes) -> bytes:
    """Return the text deltas of a list, which has the first number, the common fields, the padding and the texts."""
    number, place, noise, *texts = listed.split(b"\n")
    endings = _endings(noise)
    # The padding depends on the number of characters in the text, which is not the length of its JSON.
    lengths = map(len, orjson.loads(b"[%b]" % b",".join(texts)))
    numbers = map(b"%d,".__mod__, range(int(number), int(number) + len(texts)))
    pieces = zip(
        repeat(_DELTA), numbers, repeat(place + _TEXT), texts, [endings[n % 16] for n in lengths], strict=False
    )
    return b"".join(chain.from_iterable(pieces))


@lru_cache(maxsize=64)
def _endings(noise: bytes) -> list[bytes]:
    """Return the ends of the frames by the length of their texts modulo 16."""
    padding = b',"obfuscation":"%b"' if noise else b"%b"
    return [_AFTER_TEXT + padding % noise[: 16 - length] + b"}\n\n" for length in range(16)]
