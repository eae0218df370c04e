"""Connections that send no request, a slow request or an invalid request."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import orjson
import pytest

from tests.support.api import Caller
from tests.support.chunks import text
from tests.support.raw_http import RawConnection
from tests.support.upstream import Gate, Script, ScriptedUpstream, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow

MOST = 30
POST = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
INVALID: dict[str, bytes] = {
    "binary": b"\x00\x01\x02\xff\xfe\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a length and chunks": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "a space after a name": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\nhello",
    "a NUL in a header": GET + b"X-A: a\x00b\r\n\r\n",
    "bytes in the path": b"GET /v1/responses/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
# Valid requests that are rare.
UNUSUAL: dict[str, tuple[bytes, int]] = {
    "PROPFIND": (b"PROPFIND /v1/responses HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    "TRACE": (b"TRACE /v1/responses HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    "OPTIONS": (b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    "another Expect": (POST + b"Expect: magic\r\nContent-Length: 5\r\n\r\nhello", 401),
    "invalid UTF-8 in a header": (GET + b"Authorization: Bearer \xff\xc3\r\n\r\n", 401),
    "NUL in the path": (b"GET /v1/responses/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    "NUL in the query": (b"GET /v1/responses?after=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
}


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def strict(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that waits one second for headers and accepts 30 connections."""
    with running_web(server=request.param, HEADERS_SECONDS="1", MAX_CONNECTIONS=str(MOST)) as process:
        yield process


@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_request_gets_400_and_is_not_continued(strict: WebProcess, kind: str) -> None:
    written = strict.written
    with RawConnection(strict.url) as peer:
        peer.send(INVALID[kind])
        answer = peer.response()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.error["message"] == "Invalid HTTP request."
        assert peer.is_closed_within(10)
    assert "Traceback" not in strict.output(since=written)


@pytest.mark.parametrize("kind", UNUSUAL)
def test_an_unsupported_request_gets_an_error(strict: WebProcess, kind: str) -> None:
    request, status = UNUSUAL[kind]
    written = strict.written
    with RawConnection(strict.url) as peer:
        peer.send(request)
        answer = peer.response()
        assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")
    assert "Traceback" not in strict.output(since=written)


def test_headers_sent_byte_by_byte_time_out(strict: WebProcess) -> None:
    with RawConnection(strict.url) as peer:
        peer.send(GET + b"X-Slow: ")
        peer.trickle(15)
        answer = peer.response()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.error["message"] == "The request headers arrived too slowly."
        assert peer.is_closed_within(10)


def test_an_incomplete_request_does_not_disturb_the_previous_response(
    strict: WebProcess, caller: Caller, script: Script
) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    body = orjson.dumps({"model": script.model, "input": "Hi", "stream": True})
    with RawConnection(strict.url) as peer:
        head = {"Authorization": f"Bearer {caller.secret}", "Content_Type": "application/json"}
        peer.send_head("POST", "/v1/responses", Content_Length=len(body), **head)
        peer.send(body)
        gate.wait_until_reached()
        peer.send(GET)
        received = b""
        # Longer than headers may take.
        peer.socket.settimeout(1.3)
        with suppress(TimeoutError):
            while data := peer.socket.recv(65536):
                received += data
        # An id may contain the number.
        assert b"HTTP/1.1 408 " not in received
        gate.open()
        peer.socket.settimeout(20)
        with suppress(ConnectionResetError):
            while data := peer.socket.recv(65536):
                received += data
    assert 0 < received.index(b"event: response.completed") < received.index(b"HTTP/1.1 408 ")


def test_a_connection_without_a_request_is_closed(strict: WebProcess) -> None:
    with RawConnection(strict.url) as peer:
        assert peer.is_closed_within(15)


def test_a_kept_alive_connection_is_not_subject_to_the_header_timeout(strict: WebProcess) -> None:
    with RawConnection(strict.url) as peer:
        for _ in range(2):
            peer.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.response().status == 200
            # Longer than headers may take.
            assert not peer.is_closed_within(1.3)
            peer.socket.settimeout(20)


def test_a_websocket_is_not_subject_to_the_header_timeout(strict: WebProcess, caller: Caller) -> None:
    with RawConnection(strict.url) as peer:
        key = base64.b64encode(bytes(16)).decode()
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": 13}
        authorization = f"Bearer {caller.secret}"
        peer.send_head("GET", "/v1/responses", Authorization=authorization, Sec_WebSocket_Key=key, **upgrade)
        assert peer.response().status == 101
        assert not peer.is_closed_within(1.3)


def test_connections_beyond_the_limit_get_503_until_others_end(strict: WebProcess) -> None:
    def status(stack: ExitStack) -> int:
        peer = stack.enter_context(RawConnection(strict.url))
        peer.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return peer.response().status

    with ExitStack() as stack:
        assert {status(stack) for _ in range(MOST - 5)} == {200}
        eventually(lambda: status(stack) == 503)
        with RawConnection(strict.url) as peer:
            assert peer.response().error["code"] == "server_is_overloaded"
    with ExitStack() as stack:
        eventually(lambda: status(stack) == 200)
