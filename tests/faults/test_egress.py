"""Egress over real sockets: pinned addresses, redirects, and servers that send too much, send too slowly or hang."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import httpx2
import pytest
from aiohttp import web

from core.egress import Egress, Fetched
from core.egress_policy import AllowList
from core.errors import EgressFailed, EgressRefused
from tests.support.certificates import self_signed
from tests.support.machine_clock import machine_time

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KIB = 1024


class Server:
    """A server on loopback with handlers by path; `seen` are the requests it received."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.handlers: dict[str, Handler] = {}
        self.port = 0

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def redirect(self, path: str, to: str) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": to})

        self.handlers[path] = handler

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        handler = self.handlers.get(request.path)
        return await handler(request) if handler else web.Response(text="hello")

    async def start(self, tls: ssl.SSLContext | None = None) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.port = runner.addresses[0][1]
        return runner


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = await server.start()
    yield server
    await runner.cleanup()


class ScriptedResolver:
    """A resolver with one answer per lookup; the last one repeats."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked += 1
        return [self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]]


def allowing(*entries: str, names: ScriptedResolver | None = None, tls: ssl.SSLContext | None = None) -> Egress:
    """Return an egress client with these entries in EGRESS_ALLOW."""
    options = {} if tls is None else {"tls": tls}
    return Egress(allow=AllowList.parse(entries), resolve=names or ScriptedResolver("127.0.0.1"), **options)


async def get(egress: Egress, url: str, *, max_bytes: int = KIB, seconds: float = 5.0) -> Fetched:
    return await egress.get(url, max_bytes=max_bytes, timeout=seconds)


async def test_egress_fetches_from_allowed_hosts(server: Server) -> None:
    fetched = await get(allowing("127.0.0.1"), server.url("/a?b=c"))
    assert (fetched.status, fetched.content, fetched.content_type) == (200, b"hello", "text/plain")
    assert fetched.url == server.url("/a?b=c")
    assert server.seen[0].path_qs == "/a?b=c"


@pytest.mark.parametrize("entries", [[], ["10.0.0.0/8"], ["127.0.0.1:1"], ["files.test"]])
async def test_egress_sends_nothing_to_other_private_hosts(server: Server, entries: list[str]) -> None:
    for host in ("127.0.0.1", "rebound.example"):
        with pytest.raises(EgressRefused):
            await get(allowing(*entries), server.url(host=host))
    assert server.seen == []


async def test_egress_connects_to_the_address_that_it_checked(server: Server) -> None:
    names = ScriptedResolver("127.0.0.1", "10.255.255.1")
    fetched = await get(allowing("127.0.0.1", names=names), server.url(host="files.example.com"))
    assert (fetched.content, names.asked) == (b"hello", 1)
    assert server.seen[0].headers["Host"] == f"files.example.com:{server.port}"


async def test_a_name_that_resolves_to_a_private_address_later_is_rejected(server: Server) -> None:
    server.redirect("/", server.url("/again", host="rebound.test"))
    names = ScriptedResolver("127.0.0.1", "127.0.0.2")
    with pytest.raises(EgressRefused):
        await get(allowing("127.0.0.1", names=names), server.url(host="rebound.test"))
    assert [request.path for request in server.seen] == ["/"]


async def test_a_tunnel_opens_to_checked_addresses_only(server: Server) -> None:
    outside = await allowing("127.0.0.1").connect("files.example.com", server.port)
    await outside.write(b"GET / HTTP/1.0\r\n\r\n")
    assert (await outside.read(1024)).startswith(b"HTTP/1.0 200")
    await outside.aclose()
    public = ScriptedResolver("93.184.216.34")
    for egress, host, port in (
        (allowing(), "files.example.com", 443),
        (allowing(names=public), "files.example.com", 80),
        (allowing(names=ScriptedResolver("169.254.169.254")), "metadata.example.com", 443),
        (allowing(), "127.0.0.1", server.port),
    ):
        with pytest.raises(EgressRefused):
            await egress.connect(host, port)
    assert len(server.seen) == 1


async def test_egress_tries_the_next_address_of_a_name(server: Server) -> None:
    async def two_addresses(_: str) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    egress = Egress(allow=AllowList.parse(["127.0.0.0/8"]), resolve=two_addresses)
    assert (await get(egress, server.url(host="files.example.com"))).content == b"hello"


async def test_egress_ignores_the_proxies_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await get(allowing("127.0.0.1"), server.url())).content == b"hello"


async def test_tls_verifies_the_name_of_the_server(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "files.test")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    asked: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)
    server, trust = Server(), ssl.create_default_context(cafile=certificate)
    runner = await server.start(serving)
    try:
        fetched = await get(allowing("files.test", tls=trust), server.url(host="files.test", scheme="https"))
        with pytest.raises(EgressFailed):
            await get(allowing("other.test", tls=trust), server.url(host="other.test", scheme="https"))
    finally:
        await runner.cleanup()
    assert (fetched.content, asked) == (b"hello", ["files.test", "other.test"])


# -- redirects ---------------------------------------------------------------------------------------------------------


async def test_egress_follows_three_redirects(server: Server) -> None:
    server.redirect("/1", "/2")
    server.redirect("/2", server.url("/3"))
    server.redirect("/3", f"//127.0.0.1:{server.port}/4")
    assert (await get(allowing("127.0.0.1"), server.url("/1"))).url == server.url("/4")


async def test_egress_does_not_follow_a_fourth_redirect(server: Server) -> None:
    server.redirect("/", "/")
    with pytest.raises(EgressFailed, match="too many redirects"):
        await get(allowing("127.0.0.1"), server.url("/"))
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    "to",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2/",
        "http://2130706433/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "https://localhost/",
        "https://user:password@example.com/",
        "http://example.com/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
    ],
)
async def test_egress_rejects_a_redirect_to_another_private_host(server: Server, to: str) -> None:
    server.redirect("/", to)
    with pytest.raises(EgressRefused):
        await get(allowing("127.0.0.1", names=ScriptedResolver("93.184.216.34")), server.url("/"))
    assert len(server.seen) == 1


async def test_another_client_is_denied_the_same_redirect(server: Server) -> None:
    server.redirect("/", "http://127.0.0.2/")
    transport = allowing("127.0.0.1").transport()
    async with httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=True) as client:
        with pytest.raises(EgressRefused):
            await client.get(server.url())


async def test_egress_does_not_send_authorization_to_other_origins(server: Server) -> None:
    other = Server()
    runner = await other.start()
    server.redirect("/1", "/2")
    server.redirect("/2", other.url("/3"))
    try:
        await allowing("127.0.0.1").get(
            server.url("/1"), max_bytes=KIB, timeout=5.0, headers={"Authorization": "secret", "X-Key": "secret"}
        )
    finally:
        await runner.cleanup()
    assert [request.headers.get("Authorization") for request in server.seen] == ["secret", "secret"]
    assert "secret" not in str(other.seen[0].headers)


async def test_a_post_follows_no_redirect(server: Server) -> None:
    server.redirect("/", "/elsewhere")
    answer = await allowing("127.0.0.1").post(server.url(), content=b"{}", max_bytes=KIB, timeout=5.0)
    assert (answer.status, [request.method for request in server.seen]) == (302, ["POST"])


async def test_a_post_sends_its_body_and_headers(server: Server) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(status=410, body=await request.read(), content_type=request.content_type)

    server.handlers["/"] = echo
    answer = await allowing("127.0.0.1").post(
        server.url(), content=b"{}", max_bytes=KIB, timeout=5.0, headers={"Content-Type": "application/json"}
    )
    assert (answer.status, answer.content, answer.content_type) == (410, b"{}", "application/json")


# -- limits ------------------------------------------------------------------------------------------------------------


def endless(pause: float, piece: bytes = b"x" * KIB) -> Handler:
    """Send a body until the client disconnects."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(piece)
            await asyncio.sleep(pause)

    return handler


async def test_egress_stops_reading_an_endless_body(server: Server) -> None:
    server.handlers["/"] = endless(0)
    with pytest.raises(EgressFailed, match="larger than 65536 bytes"):
        await get(allowing("127.0.0.1"), server.url(), max_bytes=64 * KIB)


async def test_egress_does_not_wait_for_a_slow_body(server: Server) -> None:
    server.handlers["/"] = endless(0.05, b"x")
    began = machine_time()
    with pytest.raises(EgressFailed, match="in time"):
        await get(allowing("127.0.0.1"), server.url(), seconds=0.5)
    assert machine_time() - began < 2


async def test_egress_does_not_wait_for_a_silent_server(server: Server) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server.handlers["/"] = silent
    with pytest.raises(EgressFailed, match="in time"):
        await get(allowing("127.0.0.1"), server.url(), seconds=0.3)


async def test_egress_does_not_wait_for_a_slow_resolver() -> None:
    async def never(_: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(EgressFailed, match="in time"):
        await get(Egress(resolve=never), "https://example.com/", seconds=0.2)


async def test_egress_does_not_read_a_body_announced_as_too_large(server: Server) -> None:
    async def large(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(KIB + 1)})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    server.handlers["/"] = large
    with pytest.raises(EgressFailed, match="larger than 1024 bytes"):
        await get(allowing("127.0.0.1"), server.url())


async def test_egress_reads_a_body_of_exactly_the_limit(server: Server) -> None:
    async def large(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * KIB)

    server.handlers["/"] = large
    assert len((await get(allowing("127.0.0.1"), server.url())).content) == KIB


async def test_egress_does_not_inflate_a_compression_bomb(server: Server) -> None:
    async def bomb(_: web.Request) -> web.StreamResponse:
        body = gzip.compress(b"\0" * 10 * KIB * KIB)
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    server.handlers["/"] = bomb
    with pytest.raises(EgressFailed, match="compressed"):
        await get(allowing("127.0.0.1"), server.url(), max_bytes=64 * KIB)
    assert server.seen[0].headers["Accept-Encoding"] == "identity"


async def test_the_body_of_a_redirect_is_not_read(server: Server) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=302, headers={"Location": "/there"})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    server.handlers["/"] = handler
    assert (await get(allowing("127.0.0.1"), server.url())).url == server.url("/there")


@pytest.mark.parametrize("status", [304, 400, 404, 500, 503])
async def test_an_error_status_is_not_content(server: Server, status: int) -> None:
    async def failing(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    server.handlers["/"] = failing
    with pytest.raises(EgressFailed, match=str(status)):
        await get(allowing("127.0.0.1"), server.url())


@pytest.mark.parametrize(
    ("accept", "fits"), [(["image/*"], True), (["text/plain", "image/png"], True), (["text/*"], False)]
)
async def test_egress_fetches_only_accepted_types(server: Server, accept: list[str], *, fits: bool) -> None:
    async def image(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"png", headers={"Content-Type": "IMAGE/png; charset=x"})

    server.handlers["/"] = image
    fetching = allowing("127.0.0.1").get(server.url(), max_bytes=KIB, timeout=5.0, accept=accept)
    if fits:
        assert (await fetching).content_type == "image/png"
    else:
        with pytest.raises(EgressFailed, match="type"):
            await fetching
    assert server.seen[0].headers["Accept"] == ", ".join(accept)


async def test_an_unreachable_server_fails_with_a_code(server: Server) -> None:
    with pytest.raises(EgressFailed) as failed:
        await get(allowing("127.0.0.1"), "http://127.0.0.1:9/")
    assert failed.value.detail() == {
        "message": "The URL could not be fetched.",
        "type": "invalid_request_error",
        "param": None,
        "code": "url_not_fetched",
    }
