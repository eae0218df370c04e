"""The bodies of `/v1/audio`. Settings of audio models are forwarded unchanged, because each model has its own."""

from typing import Annotated, Literal

from pydantic import Field

from conversations.items import MAX_TEXT
from core.errors import UnsupportedValue
from core.http.wire import STRING_OR, Wire
from responses.schema.images import ModelName

MAX_AUDIO_BYTES = 25 * 1024 * 1024
"""OpenAI's limit of an audio file."""
MAX_SPEECH_CHARACTERS = 4096
_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Word = Annotated[str, Field(min_length=1, max_length=200)]
_Temperature = Annotated[float, Field(ge=0, le=1)]
_MAX_SPEAKERS = 4


class ServerVad(Wire):
    """Splitting of the audio at pauses, with its own parameters."""

    type: Literal["server_vad"]
    prefix_padding_ms: Annotated[int, Field(ge=0)] | None = None
    silence_duration_ms: Annotated[int, Field(ge=0)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class CreateTranslation(Wire):
    """Form of a translation of audio into English. The file is not one of these fields."""

    model: ModelName
    prompt: _Text | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] | None = None
    temperature: _Temperature | None = None


class CreateTranscription(Wire):
    """Form of a transcription of audio. The file is not one of these fields."""

    model: ModelName
    chunking_strategy: Annotated[Literal["auto"] | ServerVad, STRING_OR] | None = None
    include: list[Literal["logprobs"]] | None = None
    keywords: list[_Word] | None = None
    known_speaker_names: Annotated[list[_Word], Field(max_length=_MAX_SPEAKERS)] | None = None
    known_speaker_references: Annotated[list[_Text], Field(max_length=_MAX_SPEAKERS)] | None = None
    language: _Word | None = None
    languages: list[_Word] | None = None
    prompt: _Text | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] | None = None
    stream: bool | None = None
    temperature: _Temperature | None = None
    timestamp_granularities: list[Literal["word", "segment"]] | None = None

    def check(self) -> None:
        """Raise `UnsupportedValue` for parameters that exclude each other."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise UnsupportedValue(
                "'timestamp_granularities' is only allowed when 'response_format' is 'verbose_json'.",
                param="timestamp_granularities",
            )


class CustomVoice(Wire):
    """A voice that was created from audio samples."""

    id: _Word


class CreateSpeech(Wire):
    """A request for audio of a text."""

    model: ModelName
    input: Annotated[str, Field(min_length=1, max_length=MAX_SPEECH_CHARACTERS)]
    voice: Annotated[_Word | CustomVoice, STRING_OR]
    instructions: _Text | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    stream_format: Literal["sse", "audio"] | None = None
