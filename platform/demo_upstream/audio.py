"""Audio without a model: speech is a tone for each word, and a transcription says only how much audio there was.

`/v1/audio/speech` returns WAV or PCM; `/v1/audio/transcriptions` and `…/translations` read the duration of WAV files.
"""

import base64
import io
import math
import struct
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import orjson

from demo_upstream import tokens
from demo_upstream.errors import Code, DemoApiError

_RATE = 8000
_WORD_SECONDS, _GAP_SECONDS = 0.15, 0.05
_MOST_WORDS = 500
_TOKENS_PER_SECOND = 10
# OpenAI's default is MP3. Without an encoder the demo answers WAV if no format is named.
_FORMATS = {"wav": "audio/wav", "pcm": "audio/pcm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """Spoken text."""

    text: str
    content: bytes
    content_type: str

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the speech as the data of server-sent events."""
        yield {"type": "speech.audio.delta", "audio": base64.b64encode(self.content).decode()}
        read, spoken = tokens.count(self.text), math.ceil(len(self.content) / 2 / _RATE * _TOKENS_PER_SECOND)
        usage = {"input_tokens": read, "output_tokens": spoken, "total_tokens": read + spoken}
        yield {"type": "speech.audio.done", "usage": usage}


def speak(fields: Mapping[str, Any]) -> Speech:
    """Return a tone for each word of the input. Raises DemoApiError."""
    text, kind = fields.get("input"), fields.get("response_format") or "wav"
    if not isinstance(text, str) or not text:
        raise DemoApiError("Missing required parameter: 'input'.", param="input")
    if kind not in _FORMATS:
        raise DemoApiError(
            f"The demo model speaks 'wav' and 'pcm', not '{kind}'.",
            param="response_format",
            code=Code.UNSUPPORTED_VALUE,
        )
    samples = b"".join(map(_tone, text.split()[:_MOST_WORDS]))
    if kind == "wav":
        file = io.BytesIO()
        with wave.open(file, "wb") as target:
            target.setnchannels(1)
            target.setsampwidth(2)
            target.setframerate(_RATE)
            target.writeframes(samples)
        samples = file.getvalue()
    return Speech(text=text, content=samples, content_type=_FORMATS[kind])


@cache
def _wave(frequency: int) -> bytes:
    values = (8000 * math.sin(2 * math.pi * frequency * at / _RATE) for at in range(int(_RATE * _WORD_SECONDS)))
    return b"".join(struct.pack("<h", int(value)) for value in values) + bytes(2 * int(_RATE * _GAP_SECONDS))


def _tone(word: str) -> bytes:
    # One of sixteen pitches, so that equal words sound the same.
    return _wave(300 + 40 * (blake2b(word.lower().encode(), digest_size=1).digest()[0] % 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Text about a file. `seconds` is None for formats that the demo cannot read."""

    text: str
    seconds: float | None

    def document(self, kind: str) -> tuple[str, str]:
        """Return media type and content in a format. Raises DemoApiError."""
        length = self.seconds or 1.0
        match kind:
            case "json":
                return _json({"text": self.text, "usage": self._usage()})
            case "verbose_json":
                segment = {"id": 0, "start": 0.0, "end": length, "text": self.text}
                known = {"task": "transcribe", "language": "english", "duration": length}
                return _json({**known, "text": self.text, "segments": [segment], "usage": self._usage()})
            case "text":
                return "text/plain", f"{self.text}\n"
            case "srt":
                return "text/plain", f"1\n00:00:00,000 --> {_clock(length, ',')}\n{self.text}\n"
            case "vtt":
                return "text/plain", f"WEBVTT\n\n00:00:00.000 --> {_clock(length, '.')}\n{self.text}\n"
        raise DemoApiError(
            f"The demo model has no format '{kind}'.", param="response_format", code=Code.UNSUPPORTED_VALUE
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the transcript as the data of server-sent events."""
        for token in tokens.split(self.text):
            yield {"type": "transcript.text.delta", "delta": token}
        read, written = math.ceil((self.seconds or 1.0) * _TOKENS_PER_SECOND), tokens.count(self.text)
        usage = {"type": "tokens", "input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        yield {"type": "transcript.text.done", "text": self.text, "usage": usage}

    def _usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.seconds or 1.0)}


def transcribe(filename: str, content: bytes) -> Transcript:
    """Return a sentence about the file."""
    try:
        with wave.open(io.BytesIO(content)) as source:
            seconds = source.getnframes() / source.getframerate()
        amount = f"{seconds:.1f} seconds of audio"
    except (wave.Error, EOFError, ZeroDivisionError):
        seconds, amount = None, f"{len(content):,} bytes"
    text = f"This is the demo model, which does not understand speech. The file {filename} has {amount}."
    return Transcript(text=text, seconds=seconds)


def _clock(seconds: float, separator: str) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{separator}{int(seconds % 1 * 1000):03}"


def _json(body: Mapping[str, Any]) -> tuple[str, str]:
    return "application/json", orjson.dumps(body).decode()
