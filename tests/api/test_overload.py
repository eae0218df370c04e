"""Overload: new work is refused early with 503, and everything else is served."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from tests.support.api import Api, Caller
from tests.support.chunks import text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, web_fixture

PATHS = [
    "/responses",
    "/chat/completions",
    "/messages",
    "/embeddings",
    "/moderations",
    "/files",
    "/uploads/upload_0/parts",
    "/audio/transcriptions",
    "/images/edits",
]


# It is overloaded if one request waits.
small_web = web_fixture(scope="module", OVERLOAD_REQUESTS="1", OVERLOAD_LAG_MS="0")


@pytest.fixture
def small(small_web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    return Api(http, url=small_web.url, caller=caller)


@pytest.fixture
def waiting(small_web: WebProcess, small: Api) -> Iterator[socket.socket]:
    """A request whose body never ends, so that it waits."""
    # The one of the test before may not have been noticed to be gone.
    eventually(lambda: small.post("/responses", b"{").status_code != 503)
    address = urlsplit(small_web.url)
    with closing(socket.create_connection((address.hostname or "", address.port or 0))) as connection:
        connection.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        eventually(lambda: small.post("/responses", b"{").status_code == 503)
        yield connection


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("path", PATHS)
def test_new_work_is_refused_before_its_body_is_read(small: Api, path: str) -> None:
    began = time.monotonic()
    answer = small.post(path, b"{")
    assert time.monotonic() - began < 0.5
    assert answer.status_code == (529 if path == "/messages" else 503)
    assert 1 <= int(answer.headers["retry-after"]) <= 3
    assert 1000 <= int(answer.headers["retry-after-ms"]) <= 3000
    if path != "/messages":
        assert answer.json()["error"]["code"] == "server_is_overloaded"


@pytest.mark.usefixtures("waiting")
def test_everything_but_new_work_is_served(small: Api, small_web: WebProcess, http: httpx2.Client) -> None:
    assert http.get(f"{small_web.url}/livez").status_code == 200
    assert http.get(f"{small_web.url}/readyz").status_code == 200
    assert small.get("/responses").status_code == 200
    assert small.post("/responses/resp_0/cancel", b"").status_code in {400, 404}
    metrics = http.get(f"{small_web.url}/metrics").text
    (rejections,) = re.findall(r"^overload_rejections_total (\S+)$", metrics, re.MULTILINE)
    assert float(rejections) >= 1


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
    connection.close()
    # The client of OpenAI waits as long as it is asked to, and tries again.
    script.say("Hello")
    client = openai.OpenAI(base_url=f"{small_web.url}/v1", api_key=small.caller.secret, max_retries=3)
    assert client.responses.create(model=script.model, input="Hi").output_text == "Hello"
