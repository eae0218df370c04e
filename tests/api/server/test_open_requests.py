"""The limit on open requests and streams of a key in a web process."""

from contextlib import ExitStack

import httpx2
import pytest

from tests.support.api import Api, MakeCaller
from tests.support.chunks import text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, web_fixture

small_web = web_fixture(scope="module", MAX_OPEN_REQUESTS_PER_KEY="2")


@pytest.fixture
def small(small_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    return Api(http, url=small_web.url, caller=make_caller())


@pytest.mark.slow
def test_a_key_with_too_many_open_streams_is_refused_until_one_has_ended(
    small: Api, small_web: WebProcess, script: Script, http: httpx2.Client, make_caller: MakeCaller
) -> None:
    gates = [Gate(), Gate()]
    for gate in gates:
        script.then(stream(gate, *text("Hello")))
    with ExitStack() as opened:
        lives = []
        for _ in gates:
            lives.append(opened.enter_context(small.stream(model=script.model, input="Hi")))
            assert lives[-1].next()["type"] == "response.created"
        for answer in (small.get("/responses"), small.post("/responses", {"model": script.model, "input": "Hi"})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "slow_down")
            assert "already has 2 requests and streams open" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "1"
        # Another key has its own limit, and so has another process.
        assert Api(http, url=small_web.url, caller=make_caller()).get("/responses").status_code == 200
        gates[0].open()
        assert lives[0].rest()[-1]["type"] == "response.completed"
        eventually(lambda: small.get("/responses").status_code == 200)
        gates[1].open()
        assert lives[1].rest()[-1]["type"] == "response.completed"


@pytest.mark.slow
def test_requests_without_a_key_have_no_common_limit(small_web: WebProcess, http: httpx2.Client) -> None:
    for _ in range(3):
        assert http.get(f"{small_web.url}/v1/models").status_code == 401
