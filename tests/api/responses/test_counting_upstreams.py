"""`POST /v1/responses/input_tokens` where the upstream can count: its count is returned."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web as aiohttp

from tenants import services
from tests.support.aiohttp_server import serving
from tests.support.api import Api, ok
from tests.support.upstream import Answer, Script, ScriptedUpstream, refusal, whole

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
PATHS = ["/tokenize", "/v1/responses/input_tokens"]


@pytest.fixture(scope="module")
def counters() -> Iterator[dict[str, ScriptedUpstream]]:
    """Scripted upstreams that count and do nothing else, by the path of their endpoint."""
    app = aiohttp.Application()
    upstreams = {path: ScriptedUpstream() for path in PATHS}
    for path, upstream in upstreams.items():
        app.router.add_post(path, upstream.answer)
    with serving(app) as url:
        for upstream in upstreams.values():
            upstream.url = url
        yield upstreams


@pytest.fixture(params=["tokenize", "responses"])
def how(request: pytest.FixtureRequest) -> str:
    """An API with an endpoint that counts tokens."""
    return str(request.param)


@pytest.fixture
def script(counters: dict[str, ScriptedUpstream], how: str, database: None) -> Iterator[Script]:
    """The answers of a model's upstream to requests to count."""
    upstream = counters[PATHS[how == "responses"]]
    with upstream.script() as script:
        can = {"token_counting": how, "files": False}
        name = f"counter {uuid.uuid4().hex}"
        services.add_upstream(name=name, base_url=upstream.url, models=[script.model], capabilities=can)
        yield script


def counted(tokens: Any) -> Answer:
    """Return an upstream's answer with a count."""
    return whole({"object": "response.input_tokens", "input_tokens": tokens, "count": tokens, "max_model_len": 4096})


def count(api: Api, script: Script, **body: Any) -> int:
    """Return the token count of a body."""
    found: int = ok(api.post("/responses/input_tokens", {"model": script.model, **body}))["input_tokens"]
    return found


def test_the_upstream_counts_the_input_tokens(api: Api, script: Script) -> None:
    script.then(counted(1234))
    assert count(api, script, input="abcd", instructions="Be brief.") == 1234


def test_the_counting_endpoint_gets_the_input_of_the_model(api: Api, script: Script, how: str) -> None:
    script.then(counted(7))
    count(api, script, input="abcd", instructions="Be brief.", tools=[LOOK])
    body = script.bodies[0]
    if how == "tokenize":
        assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abcd"}]
        assert body.keys() == {"model", "messages", "tools"}
    else:
        assert (body["instructions"], body["input"][0]["role"]) == ("Be brief.", "user")
        assert body.keys() == {"model", "input", "instructions", "tools"}


@pytest.mark.parametrize(
    "answer",
    [refusal(400), refusal(404), counted("many"), counted(None), counted(-1), counted(True), whole(b"[]"), whole(b"{")],
)
def test_the_count_is_an_estimate_if_the_upstream_has_none(api: Api, script: Script, answer: Answer) -> None:
    script.then(answer)
    assert count(api, script, input="abcdefgh") == 2


def test_an_empty_request_is_not_sent_to_the_upstream(api: Api, script: Script) -> None:
    assert count(api, script) == 0
