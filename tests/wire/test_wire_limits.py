"""Hostile raw requests, which no HTTP client sends: they reach no application and take no memory."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
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
IDLE = 16 * MIB
PROXY = "10.9.8.7"


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def server(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process behind a proxy, which passes on what it receives."""
    with running_web(server=request.param, TRUSTED_PROXIES="1") as process:
        yield process


def bearer(caller: Caller) -> str:
    return f"Bearer {caller.secret}"


def post(peer: RawConnection, body: bytes, *trailers: str, **headers: str) -> None:
    """Send a request with trailers in one piece, so that the trailers have arrived when the application is called."""
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
            # The connection continues with the next request, which has no trailers either.
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


def test_lines_between_chunks_are_limited(server: WebProcess, caller: Caller) -> None:
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


POST = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
# Requests whose end servers and proxies may see at different places, or that hide a header from a proxy.
AMBIGUOUS = {
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 3\r\n\r\n{}",
    "a length with an underscore": POST + b"Content-Length: 1_0\r\n\r\n{}12345678",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "chunks before a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in gzip": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "gzip in chunks": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "identity with a length": POST + b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
    "a vertical tab before chunked": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "lines that end with LF": POST.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}",
    "a key behind LF": GET + b"X-A: b\nAuthorization: Bearer KEY\r\n\r\n",
    "a key behind CR": GET + b"X-A: b\rAuthorization: Bearer KEY\r\n\r\n",
    "a key before NUL": GET + b"Authorization: Bearer KEY\x00\r\n\r\n",
    "a key in a continued line": GET + b"Authorization:\r\n Bearer KEY\r\n\r\n",
    "a continued line": POST + b"X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a colon": GET + b"Foo\r\n\r\n",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "HTTP/1.2": b"GET /livez HTTP/1.2\r\nHost: localhost\r\n\r\n",
    "HTTP/2.0": b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "a chunk with 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk of negative size": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    "chunks that end with LF": CHUNKED + b"2\n{}\n0\n\n",
    "a chunk that is too long": CHUNKED + b"2\r\n{}xx\r\n0\r\n\r\n",
    "a continued trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX-A: b\r\n c\r\n\r\n",
    "a trailer without a colon": CHUNKED + b"2\r\n{}\r\n0\r\nFoo\r\n\r\n",
    "a trailer that ends with LF": CHUNKED + b"2\r\n{}\r\n0\r\nX-A: b\n\r\n",
    "a control character in a header": GET + b"X-A: \x01\r\n\r\n",
    "DEL in a header": GET + b"X-A: \x7f\r\n\r\n",
    "a method in lower case": GET.lower().replace(b"http/1.1", b"HTTP/1.1") + b"\r\n",
    "a method with an underscore": GET.replace(b"GET", b"G_T") + b"\r\n",
    "a path without a slash": GET.replace(b"/v1", b"%2fv1") + b"\r\n",
    "a subprotocol that is not ASCII": b"UPGRADE Sec-WebSocket-Protocol: \xff, a\r\n\r\n",
}
HIDDEN = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_an_ambiguous_request_ends_its_connection(server: WebProcess, caller: Caller, kind: str) -> None:
    with RawConnection(server.url) as peer:
        request = AMBIGUOUS[kind].replace(b"UPGRADE ", upgrade(caller)[:-2])
        peer.send(request.replace(b"KEY", caller.secret.encode()) + HIDDEN)
        refused = peer.response()
        assert (refused.status, refused.error["message"]) == (400, "Invalid HTTP request.")
        assert peer.is_closed_within(10)


def upgrade(caller: Caller, **headers: object) -> bytes:
    """Return a request for a WebSocket."""
    return request_head(
        "GET",
        "/v1/responses",
        Authorization=bearer(caller),
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key=base64.b64encode(bytes(16)).decode(),
        Sec_WebSocket_Version=13,
        **headers,
    )


@pytest.mark.parametrize(
    "framing", [{"Content_Length": 2000}, {"Transfer_Encoding": "chunked"}], ids=["length", "chunks"]
)
def test_an_upgrade_with_a_body_is_refused_before_the_body(
    server: WebProcess, caller: Caller, framing: dict[str, object]
) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(upgrade(caller, **framing))
        refused = peer.response()
        assert (refused.status, refused.headers["connection"]) == (400, "close")
        assert refused.error["message"] == "A request for an upgrade cannot have a body."
        assert peer.is_closed_within(10)


# Java's client offers HTTP/2 with every request to an URL with http.
OTHER_UPGRADES = ["h2c", "TLS/1.0", "websocket, h2c", "h2c\r\nUpgrade: websocket"]


@pytest.mark.parametrize("protocol", OTHER_UPGRADES)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_an_upgrade_to_another_protocol_is_ignored(
    server: WebProcess, caller: Caller, script: Script, body: bytes, protocol: str, is_chunked: bool
) -> None:
    script.say("Hello")
    framing: dict[str, object] = {"Transfer_Encoding": "chunked"} if is_chunked else {"Content_Length": len(body)}
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2_Settings": "AAMAAABkAAQAAP__"}
    with RawConnection(server.url) as peer:
        head = request_head("POST", "/v1/responses", Authorization=bearer(caller), **offer, **framing)
        peer.socket.sendall(head + (in_chunks(body) if is_chunked else body) + request_head("GET", "/livez", **offer))
        assert [peer.response().status for _ in range(2)] == [200, 200]
        peer.send_head("GET", "/livez")
        assert peer.response().status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_a_get_request_becomes_a_websocket(server: WebProcess, caller: Caller, method: str) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(upgrade(caller, Content_Length=0).replace(b"GET", method.encode()) + HIDDEN)
        assert [peer.response().status for _ in range(2)] == [400 if method == "POST" else 405, 200]


HEADERS_OF_A_SOCKET: dict[str, dict[str, object]] = {
    "a length of 0": {"Content_Length": 0},
    "a large cookie": {"Cookie": "a" * 20 * KIB},
    "many": {f"X-{number}": "a" for number in range(400)},
}


@pytest.mark.parametrize("which", HEADERS_OF_A_SOCKET)
def test_a_websocket_may_have_the_headers_of_any_request(server: WebProcess, caller: Caller, which: str) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(upgrade(caller, **HEADERS_OF_A_SOCKET[which]))
        assert peer.response().status == 101


def test_a_websocket_waits_for_the_answer_to_the_request_before(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(GET + f"Authorization: {bearer(caller)}\r\n\r\n".encode() + upgrade(caller))
        first = peer.response()
        assert (first.status, orjson.loads(first.body)["object"]) == (200, "list")


@pytest.mark.parametrize(
    "rest",
    [b"BAD\r\n\r\n", b'{"model": "m"}\r\n', GET + b"Foo\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
    ids=["no request", "a body without a length", "an invalid header", "an invalid length"],
)
def test_a_request_is_answered_before_invalid_data_that_follows(
    server: WebProcess, caller: Caller, rest: bytes
) -> None:
    with RawConnection(server.url) as peer:
        head = GET + f"Authorization: {bearer(caller)}\r\n\r\n".encode()
        peer.socket.sendall(head + head + rest)
        assert [peer.response().status for _ in range(2)] == [200, 200]
        peer.socket.settimeout(10)
        assert b" 200 " not in peer.rest()


def test_a_url_may_be_absolute(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        for url in ("http://localhost/v1/models", "HTTPS://other.example:1/v1/models?a", "http://localhost/v1/m"):
            peer.send_head("GET", url, Authorization=bearer(caller))
        assert [peer.response().status for _ in range(3)] == [200, 200, 404]


@pytest.mark.parametrize(
    "head",
    [
        GET + b"Expect: 100-continue\r\n\r\n",
        POST + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["no body", "empty body", "HTTP/1.0"],
)
def test_a_request_sent_without_waiting_for_100_continue_gets_only_its_answer(server: WebProcess, head: bytes) -> None:
    with RawConnection(server.url) as peer:
        peer.send(head)
        assert peer.response().status == 401


def test_a_hundred_requests_in_one_piece_are_answered(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        large = request_head("POST", "/v1/responses", Authorization=bearer(caller), Content_Length=65 * MIB)
        peer.socket.sendall(HIDDEN * 100 + large)
        assert [peer.response().status for _ in range(101)] == [200] * 100 + [413]


def flood(server: WebProcess, *, connections: int, pieces: int) -> None:
    """Send many requests in each piece until the server stops reading; then read the first answers."""
    with ExitStack() as stack, ThreadPoolExecutor(connections) as threads:
        peers = [stack.enter_context(RawConnection(server.url)) for _ in range(connections)]
        list(threads.map(lambda peer: _send_without_reading(peer, pieces=pieces), peers))
        assert {peer.response().status for peer in peers} == {200}


def _send_without_reading(peer: RawConnection, *, pieces: int) -> None:
    peer.socket.settimeout(3)
    with suppress(TimeoutError):
        all(map(peer.send, repeat(b"GET /livez HTTP/1.1\r\nHost:a\r\n\r\n" * 2000, pieces)))
    peer.socket.settimeout(20)


@pytest.mark.nightly
def test_thousands_of_requests_in_one_piece_take_no_memory(server: WebProcess) -> None:
    # The first ones enlarge the heap of a new process, which keeps it: by up to 10 MB for the 2,000 requests of a
    # piece, and how many pieces are read at the same time depends on the machine. More pieces must not take more.
    flood(server, connections=8, pieces=60)
    with MemoryMeter(server.pid) as memory:
        flood(server, connections=8, pieces=200)
    assert memory.most < 40 * MIB


def socket_frame(kind: int, content: bytes, *, is_masked: bool = True) -> bytes:
    """Return a short frame, with a mask that changes nothing."""
    return bytes([kind, (0x80 if is_masked else 0) | len(content)]) + (bytes(4) if is_masked else b"") + content


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (socket_frame(0x81, b"{}", is_masked=False), 1002),
        (socket_frame(0x81, b"\xff\xfe"), 1007),
        (socket_frame(0xC1, b"{}"), 1002),
        (socket_frame(0x80, b"{}"), 1002),
        (socket_frame(0x83, b"{}"), 1002),
        (socket_frame(0x09, b""), 1002),
        (bytes([0x81, 0x80 | 127]) + (1 << 63).to_bytes(8) + bytes(4), None),
    ],
    ids=["no mask", "not UTF-8", "RSV1", "continuation", "opcode", "fragmented ping", "negative size"],
)
def test_an_invalid_frame_closes_the_connection(
    server: WebProcess, caller: Caller, frame: bytes, code: int | None
) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(upgrade(caller))
        assert peer.response().status == 101
        peer.socket.sendall(frame)
        closed = peer.socket.recv(4)
        assert closed[0] == 0x88
        assert code in (None, int.from_bytes(closed[2:4]))


def test_a_close_frame_with_a_long_reason_closes_the_connection(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(upgrade(caller))
        assert peer.response().status == 101
        peer.socket.sendall(bytes([0x88, 0x80 | 126]) + (130).to_bytes(2) + bytes(4) + b"\x03\xe8" + b"a" * 128)
        # Unread bytes of the frame may make the system reset the connection.
        with suppress(ConnectionResetError):
            while peer.socket.recv(1024):
                pass


def test_pings_of_a_client_that_does_not_read_take_no_memory(server: WebProcess, caller: Caller) -> None:
    with RawConnection(server.url) as peer, MemoryMeter(server.pid) as memory:
        peer.socket.sendall(upgrade(caller))
        assert peer.response().status == 101
        peer.socket.settimeout(2)
        with suppress(TimeoutError):
            all(map(peer.send, repeat(socket_frame(0x89, b"a" * 125) * 500, 500)))
    assert memory.most < IDLE
