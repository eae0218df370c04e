"""Large files: the web process never holds them in memory, and files over the limit are rejected."""

import socket
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.api import Api, Caller, error, ok
from tests.support.memory import MemoryMeter
from tests.support.upstream import ScriptedUpstream
from tests.support.waiting import HANGS_AFTER
from tests.support.web import WebProcess, running_web

MIB = 1024 * 1024
FEW = 16 * MIB


HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="zeros.bin"\r\n\r\n'
)
TAIL = b"\r\n--b--\r\n"


def form_of_zeros(size: int) -> Iterator[bytes]:
    """Yield a form with a file of this many zeros, generated while it is sent."""
    yield HEAD
    for start in range(0, size, MIB):
        yield bytes(min(MIB, size - start))
    yield TAIL


def send_zeros(api: Api, size: int, *, announced: bool = True) -> httpx2.Response:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if announced:
        headers["Content-Length"] = str(len(HEAD) + size + len(TAIL))
    return api.request("POST", "/files", content=form_of_zeros(size), headers=headers, timeout=HANGS_AFTER)


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def fresh_web(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A fresh web process: memory freed by earlier requests would hide new allocations."""
    with running_web(server=request.param) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False])
def test_a_large_upload_is_not_held_in_memory(
    fresh_web: WebProcess, http: httpx2.Client, caller: Caller, *, announced: bool
) -> None:
    api = Api(http, url=fresh_web.url, caller=caller)
    ok(send_zeros(api, MIB))
    with MemoryMeter(fresh_web.pid) as memory:
        made = ok(send_zeros(api, 100 * MIB, announced=announced))
    assert made["bytes"] == 100 * MIB
    assert memory.most < FEW


@pytest.mark.slow
def test_a_slow_reader_does_not_fill_the_memory(fresh_web: WebProcess, http: httpx2.Client, caller: Caller) -> None:
    api = Api(http, url=fresh_web.url, caller=caller)
    content = f"{fresh_web.url}/v1/files/{ok(send_zeros(api, 100 * MIB))['id']}/content"
    read = 0
    with MemoryMeter(fresh_web.pid) as memory, http.stream("GET", content, headers=api.headers) as answer:
        for piece in answer.iter_raw():
            read += len(piece)
            if read < 4 * MIB:
                time.sleep(0.01)
    assert read == 100 * MIB
    assert memory.most < FEW


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_too_large_is_rejected_with_an_api_error(api: Api, *, announced: bool) -> None:
    assert error(send_zeros(api, 514 * MIB, announced=announced)) == (413, None, "request_too_large")
    assert ok(api.get("/files"))["data"] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_the_limit_applies_to_the_file_and_not_to_its_form(api: Api) -> None:
    assert error(send_zeros(api, 512 * MIB + 1)) == (413, "file", "request_too_large")
    assert ok(send_zeros(api, 512 * MIB))["bytes"] == 512 * MIB


def test_an_announced_size_is_rejected_immediately(web: WebProcess, caller: Caller) -> None:
    url = httpx2.URL(web.url)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {caller.secret}\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {514 * MIB}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), timeout=HANGS_AFTER) as client:
        client.sendall(head.encode())
        answer = client.recv(4096)
        while not answer.endswith(b"}"):
            answer += client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer


def test_json_bodies_have_their_own_limit(api: Api) -> None:
    assert error(api.request("POST", "/responses", content=bytes(65 * MIB))) == (413, None, "request_too_large")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/responses", "/conversations"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_json_body_of_100_mb_is_refused_without_filling_the_memory(
    fresh_web: WebProcess, http: httpx2.Client, caller: Caller, path: str, *, announced: bool
) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"model":"m","input":"'
        for _ in range(100):
            yield b"x" * MIB

    api = Api(http, url=fresh_web.url, caller=caller)
    headers = {"Content-Type": "application/json"}
    if announced:
        headers["Content-Length"] = str(sum(map(len, body())))
    assert error(api.post(path, b"{"))[0] == 400
    with MemoryMeter(fresh_web.pid) as memory:
        refused = api.request("POST", path, content=body(), headers=headers, timeout=HANGS_AFTER)
    assert error(refused) == (413, None, "request_too_large")
    assert memory.most < FEW
