"""Endpoints of `/v1/audio`."""

import re
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse

from core.errors import BadRequest, InvalidValue, MissingParameter, RequestTooLarge, UnknownParameter
from core.http.asgi import Scope as AsgiScope
from core.http.asgi import header
from core.http.endpoints import BINARY, ApiObject, Endpoint, Schema
from core.http.rendering import parse_form_in_memory
from core.http.validation import parse_json, validate
from gateway.api import SEE_BELOW, respond, unchanged
from gateway.audio.forwarding import AudioUpload, forward_audio, forward_speech
from gateway.audio.schema import MAX_AUDIO_BYTES, CreateSpeech, CreateTranscription, CreateTranslation
from responses.api.requests import FORWARDED, STREAMED, info_of
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_NUMBERS = frozenset({"temperature", "prefix_padding_ms", "silence_duration_ms", "threshold"})
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,20})?", re.ASCII)
_LISTS = frozenset(
    {"include", "keywords", "known_speaker_names", "known_speaker_references", "languages", "timestamp_granularities"}
)
_ENTRY = re.compile(r"(?P<name>\w+)\[(?P<key>\w*)\]", re.ASCII)


def _form(schema: type[CreateTranscription | CreateTranslation]) -> Schema:
    # The model validates the fields of the form; its file is not part of it.
    form = schema.model_json_schema()
    form["properties"] |= {"file": BINARY}
    if vad := form.pop("$defs", {}).get("ServerVad"):
        form["properties"]["chunking_strategy"] = {"anyOf": [{"const": "auto"}, ApiObject("ServerVad", vad)]}
    form["required"] = ["file", *form["required"]]
    return form


class TranscriptionsView(ApiView, path="audio/transcriptions"):
    """Transcriptions of audio."""

    @Endpoint(
        Scope.AUDIO_WRITE,
        "Create a transcription",
        query=None,
        calls_model=True,
        form=ApiObject("CreateTranscription", lambda: _form(CreateTranscription)),
        errors=FORWARDED,
        returns=unchanged("Transcription", "transcription: JSON, or text for the formats `text`, `srt` and `vtt`"),
        stream=f"{STREAMED}.",
        note="multipart, forwarded to the upstream, see below",
    )
    async def post(self, request: ApiRequest) -> HttpResponse | StreamingHttpResponse:
        values, upload = read_form(request.asgi)
        validate(CreateTranscription, values).check()
        return await respond(
            await forward_audio(
                principal=request.principal,
                values=values,
                upload=upload,
                translates=False,
                request=info_of(request.asgi),
            )
        )


class TranslationsView(ApiView, path="audio/translations"):
    """Translations of audio into English."""

    @Endpoint(
        Scope.AUDIO_WRITE,
        "Create a translation",
        query=None,
        calls_model=True,
        form=ApiObject("CreateTranslation", lambda: _form(CreateTranslation)),
        errors=FORWARDED,
        returns=unchanged("Translation", "translation: JSON, or text for the formats `text`, `srt` and `vtt`"),
        note="multipart, forwarded in the same way",
    )
    async def post(self, request: ApiRequest) -> HttpResponse | StreamingHttpResponse:
        values, upload = read_form(request.asgi)
        validate(CreateTranslation, values)
        return await respond(
            await forward_audio(
                principal=request.principal,
                values=values,
                upload=upload,
                translates=True,
                request=info_of(request.asgi),
            )
        )


def _parse_speech(values: dict[str, Any]) -> dict[str, Any]:
    sent = {name: value for name, value in values.items() if value is not None or name in {"model", "input", "voice"}}
    validate(CreateSpeech, sent)
    return sent


class SpeechView(ApiView, path="audio/speech"):
    """Audio of texts."""

    @Endpoint(
        Scope.AUDIO_WRITE,
        "Create speech",
        query=None,
        calls_model=True,
        body=CreateSpeech,
        parse=_parse_speech,
        errors=FORWARDED,
        returns="application/octet-stream",
        stream="Server-sent events if `stream_format` is `sse`.",
        note=f"audio or server-sent events, {SEE_BELOW}",
    )
    async def post(self, request: ApiRequest, body: dict[str, Any]) -> HttpResponse | StreamingHttpResponse:
        return await respond(
            await forward_speech(principal=request.principal, values=body, request=info_of(request.asgi))
        )


def read_form(asgi: AsgiScope) -> tuple[dict[str, Any], AudioUpload]:
    """Return the fields and the file of a form; raises `BadRequest` or `RequestTooLarge`."""
    fields, files = parse_form_in_memory(asgi["body"], header(asgi, b"content-type"))
    values: dict[str, Any] = {}
    for sent, texts in fields.lists():
        # Lists are sent as `name[]`, objects as `name[key]`; some clients omit the brackets of lists.
        entry = _ENTRY.fullmatch(sent)
        name, key = (entry["name"], entry["key"]) if entry else (sent, "")
        if name in _LISTS and not key:
            values.setdefault(name, []).extend(map(str, texts))
            continue
        if len(texts) > 1:
            raise InvalidValue(f"Invalid '{sent}': the field was sent more than once.", param=sent)
        if key:
            part = values.setdefault(name, {})
            if not isinstance(part, dict):
                raise InvalidValue(f"Invalid '{name}': it was sent in two ways.", param=name)
            part[key] = _value(key, str(texts[0]))
        else:
            values[name] = _value(name, str(texts[0]))
    several = [(name, file) for name, listed in files.lists() for file in listed]
    for name, _ in several:
        if name != "file":
            raise UnknownParameter(name)
    if not several:
        raise MissingParameter("file")
    if len(several) > 1:
        raise InvalidValue("Invalid 'file': the field was sent more than once.", param="file")
    file = several[0][1]
    content = file.read()
    if not content:
        raise BadRequest("File is empty.", param="file")
    if len(content) > MAX_AUDIO_BYTES:
        raise RequestTooLarge(
            f"Maximum content size limit ({MAX_AUDIO_BYTES}) exceeded ({len(content)} bytes read)", param="file"
        )
    # Servers recognize the format by the name and the type; the upstream's form needs both.
    return values, AudioUpload(
        filename=file.name or "audio", content=content, content_type=file.content_type or "application/octet-stream"
    )


def _value(name: str, text: str) -> Any:
    """Convert the text of a field for validation. Invalid values remain text."""
    if name in _NUMBERS and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if name == "stream" and text in {"true", "false"}:
        return text == "true"
    # Some clients send objects as JSON.
    return parse_json(text.encode()) if name == "chunking_strategy" and text.startswith("{") else text
