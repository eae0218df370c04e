"""Bodies of requests: limits of size and speed by caller, and the state of the connection afterwards."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from tests.support.api import Caller, MakeCaller
from tests.support.raw_http import RawConnection
from tests.support.upstream import Script, ScriptedUpstream
from tests.support.waiting import HANGS_AFTER, PATIENCE
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow

KIB, MIB = 1024, 1024 * 1024


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.fixture(scope="module", params=["uvicorn", pytest.param("daphne", marks=pytest.mark.slow)])
def hasty_web(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that expects 1 KB in each second of a body."""
    with running_web(server=request.param, BODY_WINDOW_SECONDS="1") as process:
        yield process


def bearer(secret: str) -> str:
    return f"Bearer {secret}"


def bytes_in_deleted_files(pid: int) -> int:
    """Return the size of the temporary files that a process has open."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(entry.readlink()).endswith("(deleted)"):
                found += entry.stat().st_size
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/files", "/v1/chat/completions"])
@pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer sk-nobody"}], ids=["no key", "unknown key"])
def test_a_request_without_a_key_is_rejected_before_its_body(
    server: WebProcess, path: str, key: dict[str, str]
) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", path, Content_Length=60 * MIB, **key)
        answer = peer.response()
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert answer.error["type"] == "invalid_request_error"
    assert {"x-request-id", "openai-version"} <= set(answer.headers)


def test_anthropic_clients_get_their_own_error(server: WebProcess, caller: Caller) -> None:
    sent = {"anthropic_version": "2023-06-01"}
    for key, size, kind, status in (
        ("sk-nobody", 60 * MIB, "authentication_error", 401),
        (caller.secret, 65 * MIB, "request_too_large", 413),
    ):
        with RawConnection(server.url) as peer:
            peer.send_head("POST", "/v1/messages", Content_Length=size, X_Api_Key=key, **sent)
            # Not only after the server has waited for the rest of the body.
            peer.socket.settimeout(0.9)
            answer = peer.response()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert orjson.loads(answer.body)["type"] == "error"
        assert answer.error["type"] == kind


def test_requests_without_a_key_cannot_fill_the_disk(server: WebProcess) -> None:
    before = bytes_in_deleted_files(server.pid)
    with ExitStack() as stack:
        peers = [stack.enter_context(RawConnection(server.url)) for _ in range(6)]
        for number, peer in enumerate(peers):
            length = {"Content_Length": (60 + 88 * number) * MIB} if number % 2 else {"Transfer_Encoding": "chunked"}
            peer.send_head("POST", "/v1/files", Content_Type="multipart/form-data; boundary=b", **length)
            piece = b"x" * MIB if number % 2 else b"100000\r\n" + b"x" * MIB + b"\r\n"
            for _ in range(8):
                if not peer.send(piece):
                    break
        assert bytes_in_deleted_files(server.pid) - before < 2 * MIB
        assert {peer.response().status for peer in peers} <= {401, 413}


def test_a_chunked_body_needs_a_key_beyond_64_kib(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Transfer_Encoding="chunked")
        peer.send(b"11000\r\n" + b"x" * 0x11000 + b"\r\n")
        answer = peer.response()
    assert (answer.status, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize(("path", "size"), [("/v1/responses", 65 * MIB), ("/v1/files", 514 * MIB)])
def test_an_excessive_length_is_rejected_immediately(server: WebProcess, caller: Caller, path: str, size: int) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", path, Content_Length=size, Authorization=bearer(caller.secret))
        answer = peer.response()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.error["message"].endswith(f"the limit is {size // MIB - 1} MiB.")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/responses", 413),
        ("POST", "/v1/responses/resp_a/cancel", 413),
    ],
)
def test_urls_without_a_body_accept_64_kib(
    server: WebProcess, caller: Caller, method: str, path: str, status: int
) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head(method, path, Content_Length=65 * KIB, Authorization=bearer(caller.secret))
        assert peer.response().status == status


@pytest.mark.parametrize(("size", "status"), [(64 * MIB, 100), (64 * MIB + 1, 413)])
def test_a_body_may_have_exactly_the_largest_size(server: WebProcess, caller: Caller, size: int, status: int) -> None:
    with RawConnection(server.url) as peer:
        headers = {"Content_Length": size, "Authorization": bearer(caller.secret), "Expect": "100-continue"}
        peer.send_head("POST", "/v1/responses", **headers)
        assert peer.response().status == status


@pytest.mark.parametrize("path", ["/account/login/", "/admin/", "/nothing", "/readyz"])
def test_pages_accept_64_kib_from_visitors(server: WebProcess, path: str) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", path, Content_Length=65 * KIB, Cookie="sessionid=unknown")
        answer = peer.response()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_browsers_get_a_page(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/account/login/", Content_Length=100 * MIB, Accept="text/html")
        answer = peer.response()
    assert (answer.status, answer.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert b"The request body is too large: the limit is 8 MiB." in answer.body


def test_expect_100_continue_is_answered_with_the_refusal(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Content_Length=2 * MIB, Expect="100-continue")
        assert peer.response().status == 401
        assert peer.is_closed_within(8)


def test_the_rest_of_a_refused_body_is_not_read_as_a_request(server: WebProcess) -> None:
    smuggled = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Content_Length=2 * MIB)
        assert peer.response().status == 401
        peer.send(smuggled * 10)
        assert peer.is_closed_within(8)


def test_a_client_that_sends_everything_first_reads_the_refusal(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", Content_Length=20 * MIB)
        for _ in range(20):
            assert peer.send(b"x" * MIB)
        assert peer.response().status == 401


def test_a_small_refused_body_keeps_the_connection(server: WebProcess, caller: Caller, script: Script) -> None:
    script.say("Hello")
    body = orjson.dumps({"model": script.model, "input": "Hi"})
    with RawConnection(server.url) as peer:
        for key, status in (("sk-nobody", 401), (caller.secret, 200)):
            peer.send_head("POST", "/v1/responses", Content_Length=len(body), Authorization=bearer(key))
            peer.send(body[:5])
            peer.send(body[5:])
            answer = peer.response()
            assert answer.status == status
            assert answer.headers.get("connection") != "close"


@pytest.mark.parametrize("authorized", [True, False])
def test_a_slow_body_times_out(hasty_web: WebProcess, caller: Caller, *, authorized: bool) -> None:
    key = {"Authorization": bearer(caller.secret)} if authorized else {}
    with RawConnection(hasty_web.url) as peer:
        peer.send_head("POST", "/v1/responses", Content_Length=30_000, **key)
        peer.trickle(10)
        answer = peer.response()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"


def test_a_body_that_never_arrives_times_out_on_pages(hasty_web: WebProcess) -> None:
    with RawConnection(hasty_web.url) as peer:
        peer.send_head("POST", "/account/login/", Content_Length=1000)
        assert peer.response().status == 408


@pytest.mark.slow
def test_a_body_at_the_minimum_rate_is_accepted(hasty_web: WebProcess, caller: Caller, script: Script) -> None:
    script.say("Hello")
    body = orjson.dumps({"model": script.model, "input": "x" * 20_000})
    with RawConnection(hasty_web.url) as peer:
        peer.send_head("POST", "/v1/responses", Content_Length=len(body), Authorization=bearer(caller.secret))
        for start in range(0, len(body), 1000):
            peer.send(body[start : start + 1000])
            assert not peer.is_closed_within(0.2)
        peer.socket.settimeout(20)
        assert peer.response().status == 200


def test_large_bodies_of_one_team_wait_for_a_slot(server: WebProcess, caller: Caller, make_caller: MakeCaller) -> None:
    def started(stack: ExitStack, secret: str) -> RawConnection:
        peer = stack.enter_context(RawConnection(server.url))
        head = {"Content_Length": 2 * MIB, "Authorization": bearer(secret), "Expect": "100-continue"}
        peer.send_head("POST", "/v1/responses", **head)
        return peer

    with ExitStack() as stack:
        # A request that has a slot is asked for its body.
        uploading = [started(stack, caller.secret) for _ in range(32)]
        assert {peer.response().status for peer in uploading} == {100}
        waiting = started(stack, caller.secret)
        assert started(stack, make_caller().secret).response().status == 100
        assert not waiting.is_closed_within(0.2)
        uploading[0].send(b"x" * 2 * MIB)
        waiting.socket.settimeout(20)
        assert uploading[0].response().status == 400
        assert waiting.response().status == 100


@pytest.mark.parametrize("server", ["web", "daphne_web"])
def test_a_chunked_body_beyond_the_limit_is_rejected(
    request: pytest.FixtureRequest, server: str, caller: Caller
) -> None:
    process: WebProcess = request.getfixturevalue(server)
    assert b" 413 " in send_in_chunks(process.url, caller.secret, 65 * MIB)


def send_in_chunks(url: str, secret: str, size: int) -> bytes:
    """POST without a Content-Length; return the head of the response."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/responses HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {secret}\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as peer:
        peer.sendall(f"{head}Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n".encode())
        try:
            for _ in range(size // MIB):
                peer.sendall(b"%x\r\n" % MIB + b"x" * MIB + b"\r\n")
            peer.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has responded and closed the connection
        return peer.recv(65536)


@pytest.mark.parametrize("server", ["web", "daphne_web"])
def test_expect_100_continue_is_supported(
    request: pytest.FixtureRequest, server: str, caller: Caller, script: Script
) -> None:
    """curl sends it with bodies of more than a mebibyte."""
    script.say("Hello")
    process: WebProcess = request.getfixturevalue(server)
    host, port = process.url.removeprefix("http://").split(":")
    body = orjson.dumps({"model": script.model, "input": "x" * 2 * MIB})
    head = f"Host: {host}\r\nAuthorization: Bearer {caller.secret}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port)), timeout=HANGS_AFTER) as peer:
        peer.sendall(f"POST /v1/responses HTTP/1.1\r\n{head}Expect: 100-continue\r\n\r\n".encode())
        assert b" 100 " in peer.recv(4096)
        peer.sendall(body)
        assert b" 200 " in peer.recv(65536)
