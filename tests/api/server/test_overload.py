"""Overload: new work is refused early with 503, and everything else is served."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import psycopg
import pytest

from tests.support.api import Api, Caller
from tests.support.chunks import text
from tests.support.machine_clock import machine_time
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, web_fixture
from tests.support.work import SERVED, paths_of_work

# The process is overloaded after a request has waited for two seconds.
small_web = web_fixture(scope="module", OVERLOAD_DELAY_MS="0", OVERLOAD_MIN_REQUESTS="1")


@pytest.fixture
def small(small_web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    return Api(http, url=small_web.url, caller=caller)


@pytest.fixture
def waiting(small: Api, script: Script) -> Iterator[psycopg.Connection]:
    """A request that waits for a lock in the database, which the connection holds."""
    body = {"model": script.model, "input": "Hi", "conversation": small.post("/conversations", {}).json()["id"]}
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection, ThreadPoolExecutor() as threads:
        connection.execute("LOCK TABLE responses_conversationhold IN SHARE MODE")
        answer = threads.submit(small.post, "/responses", body)
        eventually(lambda: small.post("/responses", b"{").status_code == 503)
        script.say("Hello")
        yield connection
        connection.rollback()
        assert answer.result().status_code == 200


@pytest.mark.slow
@pytest.mark.usefixtures("waiting")
def test_new_work_is_refused_before_its_body_is_read(small: Api) -> None:
    for path in paths_of_work():
        began = machine_time()
        answer = small.post(path, b"{")
        assert machine_time() - began < 0.5
        assert answer.status_code == (529 if path.startswith("/messages") else 503), path
        assert 1 <= int(answer.headers["retry-after"]) <= 3
        assert 1000 <= int(answer.headers["retry-after-ms"]) <= 3000
        if not path.startswith("/messages"):
            assert answer.json()["error"]["code"] == "server_is_overloaded"
    # Its client is still sending when the answer is complete.
    assert small.post("/responses", b"{" * 9_000_000).status_code == 503


@pytest.mark.slow
@pytest.mark.usefixtures("waiting")
def test_requests_other_than_new_work_are_served(small: Api, small_web: WebProcess, http: httpx2.Client) -> None:
    assert http.get(f"{small_web.url}/livez").status_code == 200
    assert http.get(f"{small_web.url}/readyz").status_code == 200
    assert small.get("/responses").status_code == 200
    for path in SERVED:
        assert small.post(path, b"").status_code in {400, 401, 403, 404}
    metrics = http.get(f"{small_web.url}/metrics").text
    (rejections,) = re.findall(
        r'^ors_rejected_requests_total{reason="server_is_overloaded"} (\S+)$', metrics, re.MULTILINE
    )
    assert float(rejections) >= 1


@pytest.mark.slow
def test_accepted_streams_continue_and_work_is_accepted_again(
    small: Api, small_web: WebProcess, script: Script, request: pytest.FixtureRequest
) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with small.stream(model=script.model, input="Hi") as live:
        assert live.next()["type"] == "response.created"
        connection = request.getfixturevalue("waiting")
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"
    connection.rollback()
    # OpenAI's client waits for the requested time and retries.
    script.say("Hello")
    client = openai.OpenAI(base_url=f"{small_web.url}/v1", api_key=small.caller.secret, max_retries=3)
    assert client.responses.create(model=script.model, input="Hi").output_text == "Hello"
