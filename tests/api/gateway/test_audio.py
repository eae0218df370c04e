"""`POST /v1/audio/transcriptions`, `…/translations` and `…/speech`: forms, forwarding, streams and usage records."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from core.errors import ModelNotFound
from tenants import scope, services
from tenants.models import Model
from tenants.prices import PriceEntry, PriceList
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.limits import limit
from tests.support.metrics import Samples
from tests.support.upstream import Answer, Cut, Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.usage_records import stored_usage_records, usage_record, usage_records
from tests.support.waiting import eventually
from tests.support.web import WebProcess

WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(30)
TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
SPOKEN = {"text": "Hello there.", "usage": TOKENS}
DELTA = {"type": "transcript.text.delta", "delta": "Hello"}
DONE = {"type": "transcript.text.done", "text": "Hello there.", "usage": TOKENS}
PATHS = ("/audio/transcriptions", "/audio/translations", "/audio/speech")


@pytest.fixture(scope="module")
def audio_upstream() -> Iterator[ScriptedUpstream]:
    """Start a scripted upstream that offers only audio."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application(client_max_size=64 * 1024 * 1024)
    for path in PATHS:
        app.router.add_post(f"/v1{path}", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def script(audio_upstream: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name."""
    with audio_upstream.script() as script:
        services.add_upstream(name="audio", base_url=audio_upstream.url, models=[script.model])
        yield script


def send(api: Api, path: str, fields: dict[str, Any], *files: tuple[str, bytes]) -> httpx2.Response:
    """Send a form, by default with a short file."""
    parts: list[Any] = [(name, ("a.wav", content, "audio/wav")) for name, content in files or [("file", WAV)]]
    return api.request("POST", path, data=fields, files=parts)


def ask(api: Api, path: str, model: str) -> httpx2.Response:
    """Send a valid request to one of the endpoints."""
    if path == "/audio/speech":
        return api.post(path, {"model": model, "input": "Hi", "voice": "alloy"})
    return send(api, path, {"model": model})


def audio(*pieces: Any, content_type: str = "audio/mpeg") -> Answer:
    """Return an answer with the bytes of a file."""
    return Answer(pieces=pieces, content_type=content_type, done=False)


def test_the_form_and_the_answer_are_forwarded(client: OpenAI, script: Script, caller: Caller) -> None:
    script.then(whole(SPOKEN))
    made = client.audio.transcriptions.create(
        file=("talk.wav", WAV, "audio/wav"),
        model=script.model,
        language="en",
        prompt="Names: Ada.",
        temperature=0.2,
        include=["logprobs"],
        chunking_strategy={"type": "server_vad", "threshold": 0.4},
    )
    assert made.text == "Hello there."
    (received,) = script.received
    assert received.files == {"file": ("talk.wav", "audio/wav", WAV)}
    assert received.body == {
        "model": script.model,
        "language": "en",
        "prompt": "Names: Ada.",
        "temperature": "0.2",
        "include[]": ["logprobs"],
        "chunking_strategy[type]": "server_vad",
        "chunking_strategy[threshold]": "0.4",
    }
    row = usage_record(caller)
    assert (row.endpoint, row.outcome, row.input_tokens, row.output_tokens) == ("audio.transcriptions", "stop", 14, 45)
    assert (row.estimated, row.audio_seconds, row.request_id != "") == (False, 0, True)


def test_a_json_answer_has_a_content_length(api: Api, script: Script) -> None:
    script.then(whole(SPOKEN))
    answer = send(api, "/audio/transcriptions", {"model": script.model})
    assert ok(answer) == SPOKEN
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(("kind", "text"), [("text", "Hello.\n"), ("srt", "1\n00:00:00,000 --> 00:00:01,500\nHi\n")])
def test_text_formats_are_forwarded(client: OpenAI, script: Script, caller: Caller, kind: Any, text: str) -> None:
    script.then(audio(text.encode(), content_type="text/plain; charset=utf-8"))
    made = client.audio.transcriptions.create(file=("a.wav", WAV), model=script.model, response_format=kind)
    assert str(made) == text
    assert (usage_record(caller).estimated, usage_record(caller).output_tokens > 0) == (True, True)


def test_a_verbose_transcription_has_its_segments_and_its_duration(
    client: OpenAI, script: Script, caller: Caller
) -> None:
    word = {"word": "Hello", "start": 0.0, "end": 0.5}
    script.then(whole({"language": "english", "duration": "1.5", "text": "Hello", "words": [word]}))
    made = client.audio.transcriptions.create(
        file=("a.wav", WAV), model=script.model, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert made.words
    assert made.words[0].word == "Hello"
    assert script.bodies[0]["timestamp_granularities[]"] == ["word"]
    assert (usage_record(caller).audio_seconds, usage_record(caller).estimated) == (1.5, False)


def test_reported_seconds_are_recorded_without_a_cost(client: OpenAI, script: Script, caller: Caller) -> None:
    services.set_prices(Model.objects.get(name=script.model), PriceList.simple(input="1", output="1").entries)
    script.then(whole({"text": "Hello", "usage": {"type": "duration", "seconds": 9}}))
    client.audio.transcriptions.create(file=("a.wav", WAV), model=script.model)
    row = usage_record(caller)
    assert (row.audio_seconds, row.input_tokens, row.estimated, row.cost) == (9, 0, False, None)


def test_a_transcription_is_streamed(client: OpenAI, script: Script, caller: Caller) -> None:
    gate = Gate()
    script.then(stream(DELTA, gate, DONE))
    events = client.audio.transcriptions.create(file=("a.wav", WAV), model=script.model, stream=True)
    first = next(iter(events))
    # The second event is not sent before the client has the first.
    gate.open()
    assert [first.type, *(event.type for event in events)] == ["transcript.text.delta", "transcript.text.done"]
    assert script.bodies[0]["stream"] == "true"
    assert (usage_record(caller).input_tokens, usage_record(caller).output_tokens) == (14, 45)


def test_an_error_inside_of_a_stream_is_an_event(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(DELTA, {"error": {"message": "Out of memory at 10.0.0.7.", "code": 500}}))
    answer = send(api, "/audio/transcriptions", {"model": script.model, "stream": "true"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert '"delta":"Hello"' in answer.text
    assert '"code":"server_error"' in answer.text
    assert "10.0.0.7" not in answer.text
    assert usage_record(caller).outcome == "failed"


def test_a_translation_is_forwarded(client: OpenAI, script: Script, caller: Caller) -> None:
    script.then(whole({"text": "Good morning."}))
    made = client.audio.translations.create(file=("a.wav", WAV), model=script.model, prompt="Polite.")
    assert made.text == "Good morning."
    assert script.bodies == [{"model": script.model, "prompt": "Polite."}]
    row = usage_record(caller)
    assert (row.endpoint, row.estimated, row.output_tokens) == ("audio.translations", True, 4)


def test_speech_is_streamed_as_it_arrives(client: OpenAI, script: Script, caller: Caller, tmp_path: Path) -> None:
    gate, target = Gate(), tmp_path / "speech.mp3"
    script.then(audio(b"ID3 first", gate, b" second"))
    speech = client.audio.speech.with_streaming_response
    with speech.create(model=script.model, input="Hello", voice="alloy", speed=1.5) as response:
        pieces = response.iter_bytes()
        first = next(pieces)
        gate.open()
        target.write_bytes(first + b"".join(pieces))
        assert response.headers["content-type"] == "audio/mpeg"
    assert (first, target.read_bytes()) == (b"ID3 first", b"ID3 first second")
    assert script.bodies == [{"model": script.model, "input": "Hello", "voice": "alloy", "speed": 1.5}]
    row = usage_record(caller)
    assert (row.endpoint, row.characters, row.input_tokens, row.cost) == ("audio.speech", 5, 0, None)


def test_speech_events_are_forwarded_with_their_usage(api: Api, script: Script, caller: Caller) -> None:
    ended = {"type": "speech.audio.done", "usage": {"input_tokens": 3, "output_tokens": 70, "total_tokens": 73}}
    script.then(stream({"type": "speech.audio.delta", "audio": "QUJD"}, ended, done=False))
    body = {"model": script.model, "input": "Hi", "voice": {"id": "voice_1"}, "stream_format": "sse"}
    answer = api.post("/audio/speech", body)
    assert answer.text.count("data: ") == 2
    assert script.bodies == [body]
    assert (usage_record(caller).input_tokens, usage_record(caller).output_tokens) == (3, 70)


def test_interrupted_speech_is_incomplete(client: OpenAI, script: Script, caller: Caller) -> None:
    gate = Gate()
    script.then(audio(b"ID3", gate, Cut()))
    speech = client.audio.speech.with_streaming_response
    with speech.create(model=script.model, input="Hello", voice="alloy") as response:
        pieces = response.iter_bytes()
        assert next(pieces) == b"ID3"
        gate.open()
        with pytest.raises(httpx2.TransportError):
            list(pieces)
    row = usage_record(caller)
    assert (row.outcome, row.characters, row.estimated) == ("failed", 5, True)


@pytest.mark.parametrize("pieces", [[Gate()], [b"ID3", Gate()]])
def test_a_disconnect_cancels_the_upstream_call(api: Api, script: Script, caller: Caller, pieces: list[Any]) -> None:
    script.then(audio(*pieces))
    with api.open("/audio/speech", {"model": script.model, "input": "Hello", "voice": "alloy"}):
        received = script.wait_for_call()
    assert received.was_closed()
    row = usage_record(caller)
    assert (row.outcome, row.characters, row.estimated) == ("interrupted", 5, True)


@pytest.mark.slow
def test_a_client_that_disconnects_after_a_rejection_is_not_charged(
    api: Api, script: Script, caller: Caller, web: WebProcess
) -> None:
    samples = Samples(f"{web.url}/metrics")
    script.always(refusal(503, "Busy.", headers={"x-should-retry": "true"}))
    with api.open("/audio/speech", {"model": script.model, "input": "Hello", "voice": "alloy"}):
        # A second passes until the third request.
        eventually(lambda: samples.added("ors_upstream_requests_total", upstream="audio", code="503") >= 2)
    rows = eventually(lambda: stored_usage_records(caller))
    # Two requests are recorded, or three if the client left too late on a busy machine.
    assert [row.outcome for row in rows] in (["failed", "interrupted"], ["failed", "failed", "failed"])
    assert {(row.characters, row.estimated) for row in rows} == {(0, False)}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, None, "invalid_prompt")),
        (401, (500, None, "server_error")),
        (429, (429, None, "rate_limit_exceeded")),
        (503, (503, None, "server_is_overloaded")),
    ],
)
def test_errors_of_the_upstream_are_mapped(
    api: Api, script: Script, caller: Caller, path: str, status: int, expected: tuple[int, str | None, str]
) -> None:
    script.then(refusal(status, "Bad audio."))
    assert error(ask(api, path, script.model)) == expected
    row = usage_record(caller)
    assert (row.outcome, row.estimated, row.audio_seconds, row.characters) == ("failed", False, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_an_unanswered_request_is_recorded(api: Api, script: Script, caller: Caller, path: str) -> None:
    good = audio(b"ID3") if path == "/audio/speech" else whole(SPOKEN)
    script.then(Answer(pieces=[Cut()], delayed_head=True, done=False), good)
    assert ask(api, path, script.model).status_code == 200
    lost, answered = usage_records(caller, 2)
    assert (lost.outcome, lost.estimated, lost.endpoint) == ("failed", True, answered.endpoint)
    assert answered.outcome == "stop"


@pytest.mark.parametrize("path", PATHS)
def test_an_unanswered_request_is_not_repeated_under_a_budget(
    api: Api, script: Script, caller: Caller, path: str
) -> None:
    limit(caller, budget="1000")
    entries = [
        PriceEntry(dimension=dimension, amount=Decimal(1), per=1_000_000)
        for dimension in ("input", "output", "character")
    ]
    Model.objects.filter(name=script.model).update(max_output_tokens=1_000, max_audio_seconds=60)
    services.set_prices(Model.objects.get(name=script.model), entries)
    script.then(Answer(pieces=[Cut()], delayed_head=True, done=False))
    assert error(ask(api, path, script.model)) == (503, None, "upstream_unreachable")
    row = usage_record(caller)
    assert (len(script.received), row.outcome) == (1, "failed")
    assert row.budget_cost or row.cost


@pytest.mark.parametrize("path", PATHS)
def test_an_upstream_without_the_endpoint_does_not_support_it(api: Api, upstream: ScriptedUpstream, path: str) -> None:
    answer = ask(api, path, "chats-only")
    assert error(answer) == (400, "model", "unsupported_value")
    assert "The model 'chats-only' does not support" in answer.json()["error"]["message"]


FORMS: list[tuple[dict[str, Any], list[tuple[str, bytes]], tuple[int, str, str | None]]] = [
    ({}, [], (400, "model", "missing_required_parameter")),
    ({"model": "m"}, [("other", WAV)], (400, "other", "unknown_parameter")),
    ({"model": "m"}, [("file", b"")], (400, "file", None)),
    ({"model": "m"}, [("file", WAV), ("file", WAV)], (400, "file", "invalid_value")),
    ({"model": "m", "tempo": "1"}, [], (400, "tempo", "unknown_parameter")),
    ({"model": "m", "temperature": "warm"}, [], (400, "temperature", "invalid_type")),
    ({"model": "m", "temperature": "2"}, [], (400, "temperature", "decimal_above_max_value")),
    ({"model": "m", "response_format": "mp3"}, [], (400, "response_format", "invalid_value")),
]


@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize(("fields", "files", "expected"), FORMS)
def test_invalid_forms_are_rejected(
    api: Api, path: str, fields: dict[str, Any], files: list[tuple[str, bytes]], expected: tuple[int, str, str | None]
) -> None:
    assert error(send(api, path, fields, *files)) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"include[]": "usage"}, "include[0]"),
        ({"chunking_strategy": "manual"}, "chunking_strategy"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "2"}, "chunking_strategy.threshold"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"language": ["en", "de"]}, "language"),
    ],
)
def test_invalid_fields_of_a_transcription_are_rejected(api: Api, fields: dict[str, Any], param: str) -> None:
    assert error(send(api, "/audio/transcriptions", {"model": "m", **fields}))[:2] == (400, param)


def test_a_form_without_a_file_is_rejected(api: Api) -> None:
    answer = api.request("POST", "/audio/transcriptions", files=[("model", (None, b"m"))])
    assert error(answer) == (400, "file", "missing_required_parameter")


@pytest.mark.slow
def test_audio_has_the_size_limit_of_openai(api: Api, script: Script) -> None:
    answer = send(api, "/audio/transcriptions", {"model": script.model}, ("file", bytes(25 * 1024 * 1024 + 1)))
    assert error(answer) == (413, "file", "request_too_large")
    assert "Maximum content size limit (26214400) exceeded (26214401 bytes read)" in answer.text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"input": ""}, ("input", "empty_string")),
        ({"input": "a" * 4097}, ("input", "string_above_max_length")),
        ({"voice": None}, ("voice", "invalid_type")),
        ({"voice": {}}, ("voice.id", "missing_required_parameter")),
        ({"speed": 5}, ("speed", "decimal_above_max_value")),
        ({"response_format": "midi"}, ("response_format", "invalid_value")),
        ({"stream": True}, ("stream", "unknown_parameter")),
    ],
)
def test_invalid_requests_for_speech_are_rejected(api: Api, values: dict[str, Any], expected: tuple[str, str]) -> None:
    body = {"model": "m", "input": "Hi", "voice": "alloy", **values}
    assert error(api.post("/audio/speech", body)) == (400, *expected)


@pytest.mark.parametrize("path", PATHS)
def test_another_teams_model_is_not_found(api: Api, outsider: Api, script: Script, path: str) -> None:
    with scope.every_team():
        Model.objects.get(name=script.model).teams.set([api.caller.team])
    foreign, unknown = ask(outsider, path, script.model), ask(outsider, path, "unknown")
    # Both are routed by `*`, to an upstream that only chats; an unexpected call of `script` would fail this test.
    assert (foreign.status_code, foreign.text.replace(script.model, "unknown")) == (400, unknown.text)


@pytest.mark.parametrize("path", PATHS)
def test_a_model_the_key_may_not_use_is_not_found(make_api: MakeApi, script: Script, path: str) -> None:
    answer = ask(make_api(allowed_models=["other"]), path, script.model)
    assert error(answer) == (400, "model", "model_not_found")
    assert answer.json()["error"]["message"] == ModelNotFound(script.model).message


@pytest.mark.parametrize("path", PATHS)
def test_audio_requires_its_scope(make_api: MakeApi, script: Script, path: str) -> None:
    rejected = ask(make_api(scopes=["images.write", "chat_completions.write"]), path, script.model)
    assert error(rejected) == (403, None, "insufficient_scope")
    script.then(whole(SPOKEN))
    ok(ask(make_api(scopes=["audio.write"]), path, script.model))


@pytest.mark.parametrize("path", PATHS)
def test_a_key_is_required(api: Api, path: str) -> None:
    answer = api.request("POST", path, headers={"Authorization": "Bearer sk-wrong"}, json={})
    assert error(answer) == (401, None, "invalid_api_key")


def test_the_sdk_gets_speech_and_transcriptions(client: OpenAI, script: Script) -> None:
    script.then(audio(WAV, content_type="audio/wav"))
    spoken = client.audio.speech.create(model=script.model, voice="alloy", input="Hello there.", response_format="wav")
    script.then(whole(SPOKEN))
    heard = client.audio.transcriptions.create(model=script.model, file=("speech.wav", spoken.content))
    assert (spoken.content, heard.text) == (WAV, "Hello there.")
    script.then(stream(DELTA, {**DELTA, "delta": " there."}, DONE))
    events = client.audio.transcriptions.create(model=script.model, file=("speech.wav", spoken.content), stream=True)
    *deltas, last = list(events)
    assert last.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == last.text == heard.text


def test_the_sdk_raises_the_upstreams_refusal_of_a_format(client: OpenAI, script: Script) -> None:
    script.then(refusal(400, "This model has no 'opus'."))
    with pytest.raises(openai.BadRequestError, match="opus"):
        client.audio.speech.create(model=script.model, voice="alloy", input="One", response_format="opus")
