"""The HTTP client of the hot path behaves like the OpenAI SDK's client, over real sockets."""

import asyncio
import gzip
import resource
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai._types import RequestOptions
from pytest_django import Settings

from launcher.address import any_free_port
from providers.clients import (
    SDK_ERRORS,
    Form,
    SdkAnswer,
    UpstreamClients,
    UpstreamFailed,
    clients_for,
    close_clients,
    from_sdk,
    post,
)
from providers.http_client import (
    Answer,
    AnswerBroken,
    AnswerStalled,
    ErrorStatus,
    NoAnswer,
    RequestFailed,
    max_connections,
    tls_context,
)
from tenants.directory import Route, UpstreamEndpoint
from tests.support.certificates import self_signed

CONTENT = b'{"model":"m","messages":[{"role":"user","content":"\xc3\xa4"}],"stream":true}'
CHUNK = b'data: {"choices":[]}\n\n'
PAUSE = 0.8
"""A pause that is longer than the timeouts of these tests."""
Piece = bytes | float | None
"""Bytes that are sent, a pause in seconds, or None to cut the connection."""
Outcome = tuple[object, ...]


def answer(*body: Piece, status: str = "200 OK", **headers: str) -> list[Piece]:
    """Return an answer that ends with the connection by default."""
    fields = {"content_type": "text/event-stream", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return [f"HTTP/1.1 {status}\r\n{head}\r\n".encode(), *body]


def sized(body: bytes, *, status: str = "200 OK", **headers: str) -> list[Piece]:
    """Return a JSON answer with its length."""
    fields = {"content_type": "application/json", "content_length": str(len(body)), "connection": "close", **headers}
    return answer(body, status=status, **fields)


def chunked(*pieces: bytes) -> list[Piece]:
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]


ANSWERS: dict[str, list[Piece]] = {
    "a stream that ends with the connection": answer(CHUNK, CHUNK),
    "a chunked stream": answer(*chunked(CHUNK, CHUNK), b"0\r\n\r\n", transfer_encoding="chunked"),
    "a compressed stream": answer(gzip.compress(CHUNK * 50), content_encoding="gzip"),
    "a compressed and chunked stream": answer(
        *chunked(gzip.compress(CHUNK)), b"0\r\n\r\n", transfer_encoding="chunked", content_encoding="gzip"
    ),
    "slow bytes": answer(*(one for byte in CHUNK for one in (bytes([byte]), 0.01))),
    "a document": sized(b'{"id": 1}'),
    "another success": sized(b"{}", status="201 Created"),
    "an empty answer": answer(content_length="0"),
    "headers in pieces": [b"HTTP/1.1 200 OK\r\ncontent-", 0.05, b"type: text/plain\r\n\r\n", 0.05, b"x"],
    **{
        f"status {status}": sized(b'{"error": {"message": "No.", "code": "c"}}', status=f"{status} No", retry_after="7")
        for status in (304, 400, 401, 404, 408, 409, 429, 500, 502, 503)
    },
    "an error that is a string": sized(b'{"error": "No."}', status="400 Bad"),
    "an error without the field": sized(b'{"detail": "No."}', status="422 Bad"),
    "an error that is a page": answer(b"<html> No. </html>\n", status="502 Bad", content_type="text/html"),
    "a compressed error": sized(
        gzip.compress(b'{"error": {"message": "No."}}'), status="400 Bad", content_encoding="gzip"
    ),
    "no answer": [PAUSE],
    "half of the headers": [b"HTTP/1.1 200 OK\r\ncontent-type: te", PAUSE],
    "a cut before the answer": [None],
    "a cut in the headers": [b"HTTP/1.1 200 OK\r\ncontent-type: te", None],
    "garbage": [b"\x00\x01garbage\r\n\r\n"],
    "a cut in a chunked stream": answer(*chunked(CHUNK), None, transfer_encoding="chunked"),
    "a cut in a document": answer(b'{"id"', None, content_length="9", content_type="application/json"),
    "broken compression": answer(b"not gzip at all", content_encoding="gzip"),
    "broken chunks": answer(*chunked(CHUNK), b"zz\r\n", transfer_encoding="chunked"),
}


class Server:
    """A server that sends the pieces of its answers, the last one to all further requests. Requests are recorded."""

    def __init__(self, *answers: Sequence[Piece]) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((head[0], headers, body))
            for piece in self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]:
                match piece:
                    case None:
                        writer.transport.abort()
                    case float():
                        await asyncio.sleep(piece)
                    case _:
                        writer.write(piece)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def running(*answers: Sequence[Piece], tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await close_clients()
        listening.close()


async def send_with_sdk(clients: UpstreamClients) -> Answer:
    """Send the request as the SDK does, undecoded."""
    headers = {"X-Stainless-Raw-Response": "stream", "Content-Type": "application/json"}
    options: RequestOptions = {"headers": headers}
    try:
        raw = await clients.sdk.post("/chat/completions", content=CONTENT, cast_to=object, options=options)
        return SdkAnswer(raw, began=time.monotonic())
    except SDK_ERRORS as error:
        raise from_sdk(error) from error


async def send_directly(clients: UpstreamClients) -> Answer:
    """Send the request as a run does."""
    return await clients.http.post("/chat/completions", CONTENT)


Send = Callable[[UpstreamClients], Awaitable[Answer]]


async def outcome_of(send: Send, base_url: str, *, read: bool = True) -> Outcome:
    """Return the answer or the error in a form that can be compared."""
    upstream = UpstreamEndpoint(id="up", base_url=base_url, api_key="sk-upstream")
    try:
        got = await send(clients_for(upstream))
    except ErrorStatus as error:
        return "error", error.status, error.body, error.headers.get("Retry-After"), error.headers.get("content-type")
    except RequestFailed as error:
        return type(error).__name__, "sent" if error.was_sent else "not sent"
    body, end = b"", "complete"
    try:
        while read and (piece := await got.read()):
            body += piece
    except (AnswerBroken, AnswerStalled) as error:
        end = type(error).__name__
    finally:
        await got.close()
    return got.status, got.headers.get("Content-Type"), body, end


async def compare(*answers: Sequence[Piece], host: str = "127.0.0.1", path: str = "/v1") -> tuple[Server, Outcome]:
    """Assert that both clients have the same outcome; return it, and the server."""
    async with running(*answers) as server:
        url = f"http://{host}:{server.port}{path}"
        direct = await outcome_of(send_directly, url)
    async with running(*answers) as reference:
        expected = await outcome_of(send_with_sdk, f"http://{host}:{reference.port}{path}")
    assert direct == expected
    assert len(server.requests) == len(reference.requests)
    for mine, theirs in zip(server.requests, reference.requests, strict=True):
        assert (mine[0], mine[2]) == (theirs[0], theirs[2])
        assert comparable(mine[1]) == comparable(theirs[1])
    return server, direct


def comparable(headers: dict[str, str]) -> dict[str, str]:
    """Return headers without the address, and without those that only the SDK sends."""
    own = {"host", "connection", "x-stainless-raw-response"}
    return {name: value for name, value in headers.items() if name not in own}


@pytest.fixture(autouse=True)
def short_timeouts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.UPSTREAM_CONNECT_TIMEOUT = 1
    settings.UPSTREAM_IDLE_TIMEOUT = 0.3
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("kind", ANSWERS)
def test_both_clients_read_the_same_answer(kind: str) -> None:
    asyncio.run(compare(ANSWERS[kind]))


def test_both_clients_send_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    server, _ = asyncio.run(compare(ANSWERS["a document"]))
    ((line, headers, body),) = server.requests
    assert (line, body) == ("POST /v1/chat/completions HTTP/1.1", CONTENT)
    assert (headers["authorization"], headers["openai-organization"]) == ("Bearer sk-upstream", "org-1")
    assert headers["user-agent"].startswith("AsyncOpenAI/Python")


@pytest.mark.parametrize("path", ["", "/", "/v1/", "/a%20b/v1"])
def test_both_clients_join_paths_alike(path: str) -> None:
    asyncio.run(compare(ANSWERS["a document"], path=path))


@pytest.mark.slow
def test_a_document_may_take_longer_than_the_idle_timeout_of_a_stream() -> None:
    async def scenario(*, silent: bool) -> bytes:
        async with running([PAUSE, *ANSWERS["a document"]]) as server:
            upstream = UpstreamEndpoint(id="up", base_url=f"http://127.0.0.1:{server.port}/v1", api_key="")
            return await (await clients_for(upstream).http.post("/chat/completions", CONTENT, silent=silent)).read()

    assert asyncio.run(scenario(silent=True)) == b'{"id": 1}'
    with pytest.raises(NoAnswer):
        asyncio.run(scenario(silent=False))


def test_an_absolute_url_is_not_joined() -> None:
    async def scenario() -> list[str]:
        async with running(ANSWERS["a document"]) as server:
            address = f"http://127.0.0.1:{server.port}"
            upstream = UpstreamEndpoint(id="up", base_url=f"{address}/v1", api_key="")
            await (await clients_for(upstream).http.post(f"{address}/tokenize", CONTENT)).close()
        return [line for line, _, _ in server.requests]

    assert asyncio.run(scenario()) == ["POST /tokenize HTTP/1.1"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_both_clients_follow_redirects(status: int) -> None:
    target = sized(b"{}", status=f"{status} Moved", location="/elsewhere")
    server, outcome = asyncio.run(compare(target, ANSWERS["a document"]))
    assert outcome[0] == 200
    assert server.requests[1][0].split()[1] == "/elsewhere"


def test_both_clients_keep_the_key_from_other_origins() -> None:
    async def scenario(send: Send) -> list[dict[str, str]]:
        async with running(ANSWERS["a document"]) as other:
            moved = sized(b"{}", status="307 Moved", location=f"http://localhost:{other.port}/")
            async with running(moved) as server:
                await outcome_of(send, f"http://127.0.0.1:{server.port}/v1")
            return [comparable(headers) for _, headers, _ in (*server.requests, *other.requests)]

    direct, expected = asyncio.run(scenario(send_directly)), asyncio.run(scenario(send_with_sdk))
    assert direct == expected
    assert ["authorization" in headers for headers in direct] == [True, False]


def test_both_clients_give_up_on_endless_redirects() -> None:
    _, outcome = asyncio.run(compare(sized(b"{}", status="307 Moved", location="/again")))
    assert outcome == ("Unreachable", "sent")


@pytest.mark.parametrize("kind", ["a cut before the answer", "a cut in the headers", "garbage"])
def test_a_request_without_an_answer_counts_as_sent(kind: str) -> None:
    assert asyncio.run(compare(ANSWERS[kind]))[1] == ("Unreachable", "sent")


def test_a_request_reset_after_sending_counts_as_sent() -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closing with unread bytes resets the connection.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async def scenario(send: Send) -> Outcome:
        listening = await asyncio.start_server(reset, "127.0.0.1", 0)
        try:
            return await outcome_of(send, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1")
        finally:
            await close_clients()
            listening.close()

    direct, expected = asyncio.run(scenario(send_directly)), asyncio.run(scenario(send_with_sdk))
    assert direct == expected == ("Unreachable", "sent")


@pytest.mark.slow
def test_a_failed_handshake_does_not_count_as_sent() -> None:
    async def scenario(send: Send) -> Outcome:
        silent = await asyncio.start_server(lambda *_: asyncio.sleep(30), "127.0.0.1", 0)
        try:
            return await outcome_of(send, f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1")
        finally:
            await close_clients()
            silent.close()

    direct, expected = asyncio.run(scenario(send_directly)), asyncio.run(scenario(send_with_sdk))
    assert direct == expected == ("Unreachable", "not sent")


def test_both_clients_report_a_refused_connection() -> None:
    async def scenario(send: Send) -> Outcome:
        outcome = await outcome_of(send, f"http://127.0.0.1:{any_free_port()}/v1")
        await close_clients()
        return outcome

    assert asyncio.run(scenario(send_directly)) == asyncio.run(scenario(send_with_sdk)) == ("Unreachable", "not sent")


def test_both_clients_report_an_unknown_host() -> None:
    async def scenario(send: Send) -> Outcome:
        outcome = await outcome_of(send, "http://unknown.invalid/v1")
        await close_clients()
        return outcome

    assert asyncio.run(scenario(send_directly)) == asyncio.run(scenario(send_with_sdk)) == ("Unreachable", "not sent")


@pytest.mark.parametrize("trusted", [False, True])
def test_both_clients_check_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    certificate, key = self_signed(tmp_path, "localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def scenario(send: Send) -> Outcome:
        async with running(ANSWERS["a document"], tls=tls) as server:
            return await outcome_of(send, f"https://localhost:{server.port}/v1")

    tls_context.cache_clear()
    try:
        direct, expected = asyncio.run(scenario(send_directly)), asyncio.run(scenario(send_with_sdk))
    finally:
        tls_context.cache_clear()
    assert direct == expected
    assert direct[0] == (200 if trusted else "Unreachable")


@pytest.mark.parametrize(
    ("variable", "proxied"),
    [("http_proxy", True), ("all_proxy", True), ("HTTP_PROXY", True), ("https_proxy", False)],
)
def test_both_clients_use_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxied: bool
) -> None:
    lines, _ = proxy_requests(monkeypatch, variable, "http://upstream.invalid/v1")
    assert lines == (["POST http://upstream.invalid/v1/chat/completions HTTP/1.1"] if proxied else [])


def test_both_clients_connect_through_the_proxy_for_https(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = proxy_requests(monkeypatch, "https_proxy", "https://upstream.invalid/v1")
    assert lines == ["CONNECT upstream.invalid:443 HTTP/1.1"]


def test_both_clients_send_the_password_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    _, headers = proxy_requests(monkeypatch, "http_proxy", "http://upstream.invalid/v1", userinfo="me:secret@")
    assert headers[0]["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize("excluded", ["upstream.invalid", ".invalid", "*", "other.invalid, upstream.invalid:81"])
def test_both_clients_honour_no_proxy(monkeypatch: pytest.MonkeyPatch, excluded: str) -> None:
    monkeypatch.setenv("no_proxy", excluded)
    assert proxy_requests(monkeypatch, "http_proxy", "http://upstream.invalid:81/v1")[0] == []


def proxy_requests(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str, *, userinfo: str = ""
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the requests that reach the proxy; assert that they are the same for both clients."""

    async def scenario(send: Send) -> tuple[Any, ...]:
        async with running(sized(b"{}", status="200 OK")) as proxy:
            monkeypatch.setenv(variable, f"http://{userinfo}127.0.0.1:{proxy.port}")
            outcome = await outcome_of(send, url)
        return outcome, [line for line, _, _ in proxy.requests], [comparable(head) for _, head, _ in proxy.requests]

    direct, expected = asyncio.run(scenario(send_directly)), asyncio.run(scenario(send_with_sdk))
    assert direct == expected
    return direct[1], direct[2]


@pytest.mark.slow
def test_a_form_fails_with_the_errors_of_the_sdk() -> None:
    async def scenario(kind: str) -> str:
        async with running(ANSWERS[kind]) as server:
            upstream = UpstreamEndpoint(id="up", base_url=f"http://127.0.0.1:{server.port}/v1", api_key="")
            form = Form(fields={"tags": ["a", "b"]}, files=[("file", ("a.txt", b"x", "text/plain"))])
            try:
                route = Route(model="m", upstream_model="m", upstream=upstream)
                async with post(route, "/files", form, attempts=[]) as got:
                    assert b'name="tags[]"' in server.requests[0][2]
                    return (await got.read()).decode()
            except UpstreamFailed as failed:
                return failed.failure.message

    assert asyncio.run(scenario("a document")) == '{"id": 1}'
    assert asyncio.run(scenario("status 400")) == "The model's server rejected the request: No."
    assert asyncio.run(scenario("no answer")) == "The model's server did not answer in time. Model: 'm'."


def test_a_connection_is_reused_after_a_complete_answer() -> None:
    async def scenario() -> int:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(b"".join(piece for piece in ANSWERS["a chunked stream"] if isinstance(piece, bytes)))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        for _ in range(3):
            assert (await outcome_of(send_directly, url))[3] == "complete"
        await close_clients()
        server.close()
        return connections

    assert asyncio.run(scenario()) == 1


def test_a_connection_is_closed_when_an_answer_is_abandoned() -> None:
    async def scenario() -> None:
        async with running(answer(CHUNK, PAUSE, CHUNK)) as server:
            await outcome_of(send_directly, f"http://127.0.0.1:{server.port}/v1", read=False)

    asyncio.run(asyncio.wait_for(scenario(), PAUSE))


def test_an_upstream_gets_half_of_the_files_that_a_process_may_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    try:
        assert max_connections() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
