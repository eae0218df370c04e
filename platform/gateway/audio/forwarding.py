"""`POST /v1/audio/transcriptions`, `…/translations` and `…/speech`, passed on to the upstream of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from typing_extensions import override

from engine.compaction.token_estimate import tokens
from engine.converter.base import read_usage
from engine.converter.chat import Chunk
from engine.turn import Usage
from gateway.streaming import AnswerReader, ForwardedAnswer, ForwardedRequest, forward
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from tenants import directory
from tenants.principal import Principal

# Maximum output of a transcription, for models that report tokens.
_MOST_TRANSCRIBED = 2_000
_MAX_SECONDS = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioUpload:
    """The audio file of a form."""

    filename: str
    content: bytes
    content_type: str


class TranscriptReader(AnswerReader):
    """Reads the usage of a transcription or a translation."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: Mapping[str, Any] = {}
        self._seconds: object = None
        self._texts: list[str] = []

    @override
    def read(self, document: Chunk) -> None:
        super().read(document)
        if isinstance(reported := document.get("usage"), dict) and reported:
            self._reported = reported
        # `verbose_json` has the duration of the audio, which some servers write as a string.
        self._seconds = document.get("duration", self._seconds)
        if document.get("type") in {None, "transcript.text.done"}:
            self._texts.append(str(document.get("text") or ""))

    @override
    def read_text(self, text: bytes) -> None:
        self._texts.append(text.decode(errors="replace"))

    @override
    def usage(self, outcome: str) -> Usage:
        reported = self._reported
        seconds = _seconds(reported.get("seconds", self._seconds))
        if any(name.endswith("_tokens") for name in reported):
            used = read_usage(
                reported,
                read="prompt" if "prompt_tokens" in reported else "input",
                written="completion" if "completion_tokens" in reported else "output",
            )
            return replace(used, audio_seconds=seconds)
        if seconds:
            return Usage(audio_seconds=seconds)
        if outcome == "failed":
            return Usage()
        return Usage(output_tokens=tokens(*self._texts), estimated=True)


class SpeechReader(AnswerReader):
    """Reads the usage of speech. OpenAI bills the characters of the text, or tokens, which only events report."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._characters = len(text)
        self._reported: Mapping[str, Any] = {}

    @override
    def read(self, document: Chunk) -> None:
        super().read(document)
        if isinstance(reported := document.get("usage"), dict) and reported:
            self._reported = reported

    @override
    def usage(self, outcome: str) -> Usage:
        used = read_usage(self._reported, read="input", written="output")
        return replace(
            used,
            # The output is speech, even if the upstream does not report audio tokens.
            output_audio_tokens=used.output_tokens,
            # A failed call has read no text. A call that broke off has read an unknown part of the text, so all is
            # counted.
            characters=0 if outcome == "failed" else self._characters,
            estimated=outcome == "interrupted" and not self._reported,
        )


def _seconds(value: object) -> float:
    match value:
        case bool() | None:
            return 0.0
        case int() | float() | str():
            try:
                found = float(value)
            except ValueError:
                return 0.0
            # NaN fails this comparison too.
            return round(found, 3) if 0 <= found <= _MAX_SECONDS else 0.0
    return 0.0


async def forward_audio(
    *, principal: Principal, values: dict[str, Any], upload: AudioUpload, translates: bool, request: RequestInfo
) -> ForwardedAnswer:
    """Send audio to be transcribed, or translated into English. Raises `ApiError`."""
    forwarded = ForwardedRequest(
        path="/audio/translations" if translates else "/audio/transcriptions",
        endpoint="audio.translations" if translates else "audio.transcriptions",
        supports="translations of audio" if translates else "transcriptions",
        values=values,
        files=(("file", (upload.filename, upload.content, upload.content_type)),),
        max_output_tokens=_MOST_TRANSCRIBED,
        most=partial(cost_bounds.of_transcription, values, upload.content),
    )
    route = await directory.aroute(principal, values["model"])
    return await forward(forwarded, TranscriptReader, principal=principal, route=route, request=request)


async def forward_speech(*, principal: Principal, values: dict[str, Any], request: RequestInfo) -> ForwardedAnswer:
    """Send a text to be spoken. Raises `ApiError`."""
    forwarded = ForwardedRequest(
        path="/audio/speech",
        endpoint="audio.speech",
        supports="speech",
        values=values,
        max_output_tokens=2 * len(values["input"]),
        most=partial(cost_bounds.of_speech, values),
    )
    route = await directory.aroute(principal, values["model"])
    new_reader = partial(SpeechReader, values["input"])
    return await forward(forwarded, new_reader, principal=principal, route=route, request=request)
