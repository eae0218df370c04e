"""Hostile requests, byte by byte: what no HTTP client sends reaches no application and takes no memory."""

from collections.abc import Iterator
from itertools import repeat

import orjson
import pytest

from tests.support.api import Caller, MakeCaller
from tests.support.memory import MemoryMeter
from tests.support.raw_http import RawConnection, request_head
from tests.support.upstream import Script, ScriptedUpstream
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow
KIB, MIB = 1024, 1024 * 1024
# The buffers of a connection and of the collector. A body without a key may have 64 KiB.
IDLE = 8 * MIB
PROXY = "10.9.8.7"


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def server(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process behind a proxy, which passes on what it receives."""
    with running_web(server=request.param, TRUSTED_PROXIES="1") as process:
        yield process


def bearer(caller: Caller) -> str:
    return f"Bearer {caller.secret}"


def post(peer: RawConnection, body: bytes, *trailers: str, **headers: str) -> None:
    """Send a request with trailers in one piece, so that they are there when the application is called."""
    head = request_head("POST", "/v1/responses", Transfer_Encoding="chunked", **headers)
    peer.socket.sendall(head + in_chunks(body, *trailers))


def in_chunks(body: bytes, *trailers: str) -> bytes:
    """Return a body in one chunk, and the trailers that follow it."""
    lines = "".join(f"{line}\r\n" for line in [*trailers, ""]).encode()
    return b"%x\r\n%b\r\n0\r\n%b" % (len(body), body, lines)


def many_trailers() -> Iterator[bytes]:
    yield b"0\r\n"
    yield from repeat(b"X-Trailer: " + b"a" * KIB + b"\r\n", 120 * KIB)


def short_trailers() -> Iterator[bytes]:
    yield b"0\r\n"
    yield from repeat(b"a:b\r\n" * 10 * KIB, 2 * KIB)


def endless_trailer() -> Iterator[bytes]:
    yield b"0\r\nX-Trailer: "
    yield from repeat(b"a" * 64 * KIB, 2 * KIB)


def endless_name_of_a_trailer() -> Iterator[bytes]:
    yield b"0\r\n"
    yield from repeat(b"a" * 64 * KIB, 2 * KIB)


@pytest.fixture
def body(script: Script) -> bytes:
    return orjson.dumps({"model": script.model, "input": "Hi"})


@pytest.mark.parametrize("head", [{}, {"Authorization": "Bearer sk-nobody"}], ids=["no key", "unknown key"])
def test_a_key_in_a_trailer_does_not_authenticate(server: WebProcess, caller: Caller, head: dict[str, str]) -> None:
    with RawConnection(server.url) as peer:
        post(peer, b"{}", f"Authorization: {bearer(caller)}", **head)
        assert peer.response().status == 401


@pytest.mark.parametrize("head", [{}, {"X_Forwarded_For": "10.1.1.1"}], ids=["no address", "another address"])
def test_an_address_in_a_trailer_does_not_pass_the_restriction_of_a_key(
    server: WebProcess, make_caller: MakeCaller, head: dict[str, str]
) -> None:
    restricted = bearer(make_caller(allowed_addresses=[PROXY]))
    with RawConnection(server.url) as peer:
        post(peer, b"{}", f"X-Forwarded-For: {PROXY}", Authorization=restricted, **head)
        assert (refused := peer.response()).status == 403
        assert refused.error["code"] == "ip_not_allowed"


def test_the_address_of_the_head_counts_in_spite_of_a_trailer(
    server: WebProcess, make_caller: MakeCaller, script: Script, body: bytes
) -> None:
    script.say("Hello")
    head = {"Authorization": bearer(make_caller(allowed_addresses=[PROXY])), "X_Forwarded_For": PROXY}
    with RawConnection(server.url) as peer:
        post(peer, body, "X-Forwarded-For: 10.1.1.1", **head)
        assert peer.response().status == 200


@pytest.mark.parametrize("name", ["X-Client-Request-Id", "Expect", "Connection", "Content-Type", "Host", "Cookie"])
def test_other_trailers_are_ignored(server: WebProcess, caller: Caller, name: str) -> None:
    answers = []
    for trailers in ((), (f"{name}: 100-continue\u00e9",)):
        with RawConnection(server.url) as peer:
            post(peer, b"{}", *trailers, Authorization=bearer(caller))
            answer = peer.response()
            # The connection goes on with the next request, which has none of them either.
            peer.send_head("GET", "/livez")
            answers.append((answer.status, answer.error, peer.response().status))
    assert answers[0] == answers[1]


def test_trailers_up_to_the_size_of_a_head_are_dropped(
    server: WebProcess, caller: Caller, script: Script, body: bytes
) -> None:
    script.say("Hello").say("Hello")
    with RawConnection(server.url) as peer:
        for _ in range(2):
            post(peer, body, *(f"X-{number}: {'a' * KIB}" for number in range(50)), Authorization=bearer(caller))
            assert peer.response().status == 200


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "in pieces"])
def test_larger_trailers_get_431(server: WebProcess, is_at_once: bool) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked")
        trailers = in_chunks(b"{}", *(f"X-{number}: {'a' * KIB}" for number in range(70)))
        if is_at_once:
            peer.socket.sendall(trailers)
        else:
            for start in range(0, len(trailers), 700):
                if not peer.send(trailers[start : start + 700]):
                    break
        refused = peer.response()
        assert (refused.status, refused.headers["connection"]) == (431, "close")
        assert refused.error["code"] == "headers_too_large"


@pytest.mark.parametrize("trailers", [many_trailers, short_trailers, endless_trailer, endless_name_of_a_trailer])
def test_trailers_without_an_end_take_no_memory(server: WebProcess, trailers: "type[Iterator[bytes]]") -> None:
    with RawConnection(server.url) as peer, MemoryMeter(server.pid) as memory:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked")
        assert not all(map(peer.send, trailers()))
    assert memory.most < IDLE


def extended_chunks(number: int) -> Iterator[bytes]:
    """Yield chunks of one byte with extensions."""
    return repeat(b"1;name=" + b"a" * 900 + b"\r\nx\r\n", number)


def test_lines_between_chunks_are_bounded(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked", Authorization=bearer(caller))
        all(map(peer.send, extended_chunks(1000)))
        refused = peer.response()
        assert (refused.status, refused.error["code"]) == (431, "headers_too_large")


def test_some_chunks_may_have_extensions(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked", Authorization=bearer(caller))
        assert all(map(peer.send, extended_chunks(30)))
        peer.socket.sendall(b"0\r\n\r\n")
        assert peer.response().status == 400


def test_chunks_of_one_byte_are_read(server: WebProcess, caller: Caller, script: Script) -> None:
    script.say("Hello")
    body = orjson.dumps({"model": script.model, "input": "x" * 100 * KIB})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked", Authorization=bearer(caller))
        peer.socket.sendall(chunks)
        assert peer.response().status == 200
