"""Clients of streams that do not read: the run waits for them, in bounded memory, and leaves them after a while."""

import base64
import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx2
import orjson
import psutil
import pytest

from tests.support.api import Api, Caller
from tests.support.chunks import text
from tests.support.raw_http import RawConnection
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

PIECES, PIECE_BYTES = 200, 100_000
WORDS = "word " * (PIECE_BYTES // 5)


@pytest.fixture(scope="module", params=["daphne", "uvicorn"])
def impatient(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that gives a client one second to read something."""
    with running_web(server=request.param, SLOW_READER_SECONDS="1") as process:
        yield process


def ask(web: WebProcess, caller: Caller, script: Script) -> RawConnection:
    """Request a stream of 20 MB, and return the connection, from which nothing has been read."""
    script.then(stream(*text(*[WORDS] * PIECES)))
    body = orjson.dumps({"model": script.model, "input": "Hi", "stream": True})
    connection = RawConnection(web.url)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    headers = {"Authorization": f"Bearer {caller.secret}", "Content_Type": "application/json"}
    connection.send_head("POST", "/v1/responses", Content_Length=len(body), **headers)
    connection.send(body)
    return connection


def received_until_the_end(peer: RawConnection) -> int:
    """Read until the server has closed the connection, and return the number of bytes."""
    received = 0
    with suppress(ConnectionResetError):
        while data := peer.socket.recv(2**20):
            received += len(data)
    return received


def test_a_client_that_reads_nothing_is_disconnected_in_bounded_memory(
    impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    process, api = psutil.Process(impatient.pid), Api(http, url=impatient.url, caller=caller)
    before = process.memory_info().rss
    with ask(impatient, caller, script) as peer:
        peaks = []

        def has_left() -> bool:
            peaks.append(process.memory_info().rss - before)
            return "disconnecting a client that reads nothing" in impatient.output()

        eventually(has_left)
        assert max(peaks) < 30 * 2**20
        assert received_until_the_end(peer) < PIECES * PIECE_BYTES / 2
    # Its run goes on, as after any disconnect.
    (response,) = api.get("/responses").json()["data"]
    eventually(lambda: api.retrieve(response["id"])["status"] == "completed")
    assert len(api.retrieve(response["id"])["output"][0]["content"][0]["text"]) == PIECES * PIECE_BYTES


def test_a_websocket_that_reads_nothing_is_closed(
    impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    script.then(stream(*text(*[WORDS] * PIECES)))
    created = orjson.dumps({"type": "response.create", "model": script.model, "input": "Hi"})
    before = impatient.written
    with RawConnection(impatient.url) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": 13}
        key = base64.b64encode(bytes(16)).decode()
        peer.send_head(
            "GET", "/v1/responses", Authorization=f"Bearer {caller.secret}", Sec_WebSocket_Key=key, **upgrade
        )
        peer.socket.recv(4096)
        # A text frame whose mask is zero.
        peer.send(b"\x81" + bytes([0x80 | len(created)]) + bytes(4) + created)
        eventually(lambda: "disconnecting a client that reads nothing" in impatient.output(since=before))
        assert received_until_the_end(peer) < PIECES * PIECE_BYTES / 2
