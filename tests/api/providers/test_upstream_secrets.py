"""Credentials of upstreams: how they are sent, and their redaction in errors for clients and in stored rows."""

import base64
import uuid
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web as aiohttp
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connection
from pytest_django import DjangoDbBlocker

from engine.events.compression import decompress
from responses.models import EventBatch
from tenants import scope, services
from tenants.models import Upstream, WireApi
from tests.support.aiohttp_server import serving
from tests.support.api import Api
from tests.support.rows import every_row_with
from tests.support.upstream import Answer, Script, ScriptedUpstream, refusal, stream, whole

# Ids contain no letter after v, so none of them contains the end of this key by chance.
KEY = "sk-upstream-4f6bd1a9wxyz"
PASSWORD = "pass/word+7d2e9b"
BASIC = "Basic " + base64.b64encode(f"robot:{PASSWORD}".encode()).decode()
EMBEDDING = {"input": "Hi"}
IMAGE = {"prompt": "A cat"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
MESSAGE = {**CHAT, "max_tokens": 9}
SPEECH = {"input": "Hi", "voice": "alloy"}
# Endpoints and their bodies, without the model.
JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/responses", {"input": "Hi"}),
    "unstored responses": ("/responses", {"input": "Hi", "store": False}),
    "compact": ("/responses/compact", {"input": "Hi"}),
    "chat": ("/chat/completions", CHAT),
    "messages": ("/messages", MESSAGE),
    "completions": ("/completions", {"prompt": "Hi"}),
    "embeddings": ("/embeddings", EMBEDDING),
    "moderations": ("/moderations", EMBEDDING),
    "images": ("/images/generations", IMAGE),
    "speech": ("/audio/speech", SPEECH),
}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/responses", {"input": "Hi"}),
    "chat": ("/chat/completions", CHAT),
    "messages": ("/messages", MESSAGE),
    "completions": ("/completions", {"prompt": "Hi"}),
}
# Messages, and the text that they may not contain after redaction.
MESSAGES = {
    "the key": f"The account cannot do this with: {KEY}.",
    "a header": f"Bad header: Authorization: Bearer {KEY}",
    "a masked key": "The account cannot do this with: sk-upstr****wxyz.",
    "a key cut at the end": "x" * (500 - 12) + KEY,
    "a key after the end": " ".join([KEY] * 60),
}


@pytest.fixture(scope="module")
def upstream_of_all() -> Iterator[ScriptedUpstream]:
    """Start a scripted upstream that offers every endpoint."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/{path:.*}", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def script(upstream_of_all: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name, of an upstream with a key."""
    with upstream_of_all.script() as script:
        services.add_upstream(name="keyed", base_url=upstream_of_all.url, api_key=KEY, models=[script.model])
        yield script


@pytest.fixture
def responses_script(upstream_of_all: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name, of an upstream with a key and the Responses API."""
    with upstream_of_all.script() as script:
        services.add_upstream(
            name="keyed responses",
            base_url=upstream_of_all.url,
            api_key=KEY,
            models=[script.model],
            wire_api=WireApi.RESPONSES.value,
        )
        yield script


@pytest.fixture
def basic_script(upstream_of_all: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name, of an upstream with user and password in its URL."""
    url = upstream_of_all.url.replace("://", f"://robot:{quote(PASSWORD, safe='')}@")
    with upstream_of_all.script() as script:
        services.add_upstream(name=f"basic {uuid.uuid4().hex}", base_url=url, models=[script.model])
        yield script


@pytest.fixture(scope="module", autouse=True)
def rows_without_secrets(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Search all rows for the secrets of this file once, after its tests: it takes a second."""
    yield
    with django_db_blocker.unblock():
        basic = BASIC.removeprefix("Basic ").rstrip("=")
        assert every_row_with(KEY, PASSWORD, quote(PASSWORD, safe=""), basic, "sesame-1@") == []


def rejection(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": 400, **fields}}


def assert_not_revealed(api: Api, shown: str) -> None:
    """Check an answer and the compressed logs of events."""
    with scope.team(api.caller.team.pk):
        logs = b"".join(decompress(batch.compressed) for batch in EventBatch.objects.all()).decode()
    for part in (KEY, "sk-ups", "wxyz"):
        assert part not in shown
        assert part not in logs


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize(("path", "body"), JSON.values(), ids=JSON.keys())
def test_a_key_in_an_http_error_is_redacted(
    api: Api, script: Script, path: str, body: dict[str, Any], message: str
) -> None:
    script.then(refusal(400, message))
    shown = api.post(path, {"model": script.model, **body}).text
    assert "rejected the request" in shown
    assert_not_revealed(api, shown)


@pytest.mark.parametrize(("path", "body"), JSON.values(), ids=JSON.keys())
def test_a_key_in_an_error_with_status_200_is_redacted(
    api: Api, script: Script, path: str, body: dict[str, Any]
) -> None:
    script.then(whole(rejection(MESSAGES["the key"])))
    shown = api.post(path, {"model": script.model, **body}).text
    assert "The account cannot do this with: [redacted]." in shown
    assert_not_revealed(api, shown)


@pytest.mark.parametrize(
    "event", [rejection(MESSAGES["the key"]), {"type": "error", "message": MESSAGES["the key"], "code": 400}]
)
@pytest.mark.parametrize(("path", "body"), STREAMS.values(), ids=STREAMS.keys())
def test_a_key_in_an_error_of_a_stream_is_redacted(
    api: Api, script: Script, path: str, body: dict[str, Any], event: dict[str, Any]
) -> None:
    script.then(stream(event, done=False))
    shown = api.post(path, {"model": script.model, "stream": True, **body}).text
    assert "rejected the request" in shown
    assert_not_revealed(api, shown)


ERROR = {"code": "invalid_prompt", "message": MESSAGES["the key"]}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        refusal(400, MESSAGES["the key"]),
        whole({"id": "resp_1", "object": "response", "status": "failed", "output": [], "error": ERROR}),
        stream({"type": "error", **ERROR}, done=False),
        stream({"type": "error", "error": ERROR}, done=False),
        stream({"type": "response.failed", "response": {"status": "failed", "error": ERROR}}, done=False),
    ],
)
def test_a_key_in_an_error_of_a_responses_upstream_is_redacted(
    api: Api, responses_script: Script, answer: Answer, *, streamed: bool
) -> None:
    responses_script.then(answer)
    shown = api.post("/responses", {"model": responses_script.model, "input": "Hi", "stream": streamed}).text
    assert "[redacted]" in shown
    assert_not_revealed(api, shown)


def test_a_key_in_an_error_of_a_streamed_transcription_is_redacted(api: Api, script: Script) -> None:
    script.then(stream({"type": "error", "message": MESSAGES["the key"], "code": 400}, done=False))
    form = {"model": script.model, "stream": "true"}
    files = {"file": ("a.wav", b"RIFF", "audio/wav")}
    shown = api.request("POST", "/audio/transcriptions", data=form, files=files).text
    assert "rejected the request" in shown
    assert_not_revealed(api, shown)


@pytest.mark.parametrize("status", [200, 400, 429, 503])
@pytest.mark.parametrize(("path", "body"), JSON.values(), ids=JSON.keys())
def test_a_key_in_a_header_is_redacted(api: Api, script: Script, path: str, body: dict[str, Any], status: int) -> None:
    headers = {"x-request-id": f"req-1:{KEY}", "retry-after": KEY, "retry-after-ms": KEY}
    error = rejection("Busy.")
    script.then(refusal(status, "Busy.", headers=headers) if status != 200 else whole(error, headers=headers))
    answer = api.post(path, {"model": script.model, **body})
    assert len(script.received) == 1
    assert_not_revealed(api, answer.text + str(answer.headers))


@pytest.mark.slow
def test_redaction_reads_every_text_of_an_upstream(api: Api, script: Script) -> None:
    script.then(refusal(503, "Busy.", headers={"x-request-id": f"req-2:{KEY}"}))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    assert every_row_with("req-2:[redacted]")


# -- user and password in the URL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), JSON.values(), ids=JSON.keys())
def test_credentials_in_the_url_are_sent_as_basic_authentication(
    api: Api, basic_script: Script, path: str, body: dict[str, Any]
) -> None:
    message = f"Wrong: {BASIC}, robot:{PASSWORD}, {quote(PASSWORD, safe='')} or {PASSWORD}."
    basic_script.then(refusal(400, message))
    shown = api.post(path, {"model": basic_script.model, **body}).text
    assert basic_script.received[0].headers["Authorization"] == BASIC
    assert "rejected the request" in shown
    for secret in (PASSWORD, quote(PASSWORD, safe=""), BASIC.removeprefix("Basic ")):
        assert secret.rstrip("=") not in shown


def test_forms_send_the_credentials_in_the_url(api: Api, basic_script: Script) -> None:
    basic_script.then(whole({"text": "Hi"}))
    files = {"file": ("a.wav", b"RIFF", "audio/wav")}
    answer = api.request("POST", "/audio/transcriptions", data={"model": basic_script.model}, files=files)
    assert answer.status_code == 200
    assert basic_script.received[0].headers["Authorization"] == BASIC


@pytest.mark.parametrize("key", ["", KEY])
def test_credentials_that_an_earlier_version_stored_in_the_url_are_sent(
    api: Api, upstream_of_all: ScriptedUpstream, database: None, key: str
) -> None:
    with upstream_of_all.script() as script:
        made = services.add_upstream(
            name=f"old {uuid.uuid4().hex}", base_url=upstream_of_all.url, api_key=key, models=[script.model]
        )
        Upstream.objects.filter(pk=made.pk).update(base_url=made.base_url.replace("://", "://robot:sesame-1@"))
        api.create(model=script.say("Hi").model, input="Hi")
        sent = {name.lower(): value for name, value in script.received[0].headers.items()}["authorization"]
        assert sent == (f"Bearer {key}" if key else "Basic cm9ib3Q6c2VzYW1lLTE=")
        migration = import_module("tenants.migrations.0005_upstream_credentials")
        migration.encrypt_credentials(apps, SimpleNamespace(connection=connection))
        made.refresh_from_db()
        assert made.base_url == upstream_of_all.url
        assert made.api_key == (key or "Basic cm9ib3Q6c2VzYW1lLTE=")


@pytest.mark.slow
def test_a_key_beside_credentials_in_the_url_is_refused(database: None) -> None:
    with pytest.raises(ValidationError):
        services.add_upstream(name="both", base_url="http://robot:sesame-1@127.0.0.1:9/v1", api_key=KEY)
