"""The headers that name the upstream of an answer, which the setting `UPSTREAM_HEADERS` switches on."""

from dataclasses import replace
from urllib.parse import quote

import httpx2
import pytest

from tenants.models import Upstream
from tests.support.api import Api, MakeCaller
from tests.support.chunks import text
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import Answer, Cut, Gate, Script, stream, whole
from tests.support.web import WebProcess, web_fixture

pytestmark = pytest.mark.slow
WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
INVALID = whole({"error": {"message": "Bad value.", "type": "invalid_request_error"}}, status=400)
EMBEDDED = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}], "model": "m"}
OWN = {"x-upstream": "secret", "x-upstream-model": "secret"}
NAMES = ("x-upstream", "x-upstream-model")

revealing_web = web_fixture(UPSTREAM_HEADERS="true", EGRESS_ALLOW="127.0.0.1")
both_forms = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
endpoints = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def revealing(revealing_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of a web process whose setting is on."""
    return Api(http, url=revealing_web.url, caller=make_caller())


def shown(answer: httpx2.Response) -> tuple[str | None, str | None]:
    """Return the values of the headers."""
    upstream, model = (answer.headers.get(name) for name in NAMES)
    return upstream, model


def named(script: Script) -> tuple[str, str]:
    """Return the headers that name a target."""
    return f"up-{script.model}", script.model


@both_forms
@endpoints
def test_the_headers_name_the_target_that_answered(
    revealing: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    first, second = targets.two()
    first.then(WRONG_KEY)
    second.say("Hello")
    answer = post(revealing, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)
    assert shown(answer) == named(second)


@both_forms
@endpoints
def test_the_headers_name_the_only_target(revealing: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    only = targets.add()
    only.then(stream(*text("Hello"), headers=OWN))
    assert shown(post(revealing, path, targets.name, stream=is_streamed)) == named(only)


@both_forms
@endpoints
def test_without_the_setting_there_are_no_headers(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    first, second = targets.two()
    first.then(replace(WRONG_KEY, headers=OWN))
    second.then(stream(*text("Hello"), headers=OWN))
    answer = post(api, path, targets.name, stream=is_streamed)
    assert answer.status_code == 200
    assert shown(answer) == (None, None)


@endpoints
def test_an_error_of_the_request_names_no_target(revealing: Api, targets: Targets, path: str) -> None:
    targets.add().then(replace(INVALID, headers=OWN))
    answer = post(revealing, path, targets.name)
    assert answer.status_code == 400
    assert shown(answer) == (None, None)


def test_a_stream_names_the_target_that_began_to_answer(revealing: Api, targets: Targets) -> None:
    first, second = targets.two()
    # The text is continued by another target, after the headers were sent.
    first.then(stream(*text("Hel")[:1], Cut()))
    second.say("Hello")
    answer = post(revealing, "/chat/completions", targets.name, stream=True)
    assert shown(answer) == named(first)
    assert len(second.received) == 1


def test_a_document_names_the_target_that_answered_last(revealing: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(Answer(pieces=[b": waiting\n\n", Cut()]))
    second.say("Hello")
    assert shown(post(revealing, "/responses", targets.name)) == named(second)


def test_a_stream_whose_upstream_is_slow_has_no_headers(revealing: Api, targets: Targets) -> None:
    gate = Gate()
    targets.add().then(Answer(pieces=[gate, b"data: [DONE]\n\n"], done=False, delayed_head=True))
    with revealing.stream(model=targets.name, input="Hi") as live:
        assert live.next()["type"] == "response.created"
        gate.open()
        live.rest()
    assert live.headers.get("x-upstream") is None


@pytest.mark.parametrize("is_on", [True, False])
def test_embeddings_have_the_headers(request: pytest.FixtureRequest, forwarding_targets: Targets, is_on: bool) -> None:
    api: Api = request.getfixturevalue("revealing" if is_on else "api")
    first, second = forwarding_targets.two()
    first.then(WRONG_KEY)
    second.then(whole(EMBEDDED, headers=OWN))
    answer = api.post("/embeddings", {"model": forwarding_targets.name, "input": "Hi"})
    assert answer.status_code == 200
    assert shown(answer) == (named(second) if is_on else (None, None))


def test_names_are_percent_encoded(revealing: Api, targets: Targets) -> None:
    script = targets.add().say("Hello")
    name = f"Modèle ä\r\nx: {script.model}"
    Upstream.objects.filter(name=f"up-{script.model}").update(name=name)
    assert shown(post(revealing, "/responses", targets.name)) == (quote(name), script.model)


def test_a_background_response_has_no_headers(revealing: Api, no_worker: None, targets: Targets) -> None:
    targets.add()
    answer = post(revealing, "/responses", targets.name, background=True)
    assert answer.json()["status"] == "queued"
    assert shown(answer) == (None, None)
