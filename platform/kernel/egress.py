"""The one guarded way out: every URL that a caller can influence is fetched, posted to or connected to through here.

A name is looked up once, all its addresses are checked, and the connection goes to one of the checked ones while Host
and SNI keep the name: an answer of the DNS that changes in between changes nothing. No proxy, no netrc, no cookies, and
no connection is shared between fetches.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address

import httpcore2
import httpx2
from django.conf import settings
from typing_extensions import override

from kernel.addresses import Address, AllowList, parse_url, target
from kernel.errors import EgressFailed, EgressRefused

MAX_REDIRECTS = 3
_MAX_ADDRESSES = 8
_CONNECT_SECONDS = 10.0
_USER_AGENT = "responses-platform"

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A name → its addresses of both families; raises `OSError` where it has none."""
Headers = Mapping[str, str]


async def resolve(name: str) -> Sequence[str]:
    """The system's look-up."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@lru_cache(maxsize=1)
def _system_trust() -> ssl.SSLContext:
    """The system's certificate authorities, or those of SSL_CERT_FILE; reading them takes 20 ms."""
    return httpx2.create_ssl_context()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A complete answer. `content_type` is without parameters, `charset` the one that it named; `url` is where it came
    from after all redirects."""

    status: int
    content: bytes
    content_type: str
    url: str
    charset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """A client for URLs that a caller can influence; holds no connection, so one value serves every event loop.

    Refused URLs raise `EgressRefused`, before anything is sent; whatever else goes wrong raises `EgressFailed`.
    """

    allow: AllowList = field(default_factory=AllowList)
    resolve: Resolve = resolve
    tls: ssl.SSLContext = field(default_factory=_system_trust, repr=False)

    def check(self, url: str) -> None:
        """Refuse a URL that no look-up could make acceptable; for bodies that name a URL which is used later."""
        self.allow.check(parse_url(url))

    def vouching(self, url: str) -> "Egress":
        """The same for a URL that an operator has chosen: its host is reached wherever it is."""
        return replace(self, allow=self.allow.opening(parse_url(url)))

    def transport(self) -> "GuardedTransport":
        """A transport for another library's httpx2 client, which must be made with `trust_env=False`.

        Each of that client's requests is checked, redirected ones too; how much it reads is the client's own business.
        """
        return GuardedTransport(self)

    async def get(
        self,
        url: str,
        *,
        max_bytes: int,
        timeout: float,  # noqa: ASYNC109 - the limit for everything together, which only this function knows
        accept: Sequence[str] | None = None,
        headers: Headers | None = None,
    ) -> Fetched:
        """Fetch a URL, after at most three redirects; anything but a 2xx fails.

        `timeout` in seconds from the look-up to the last byte. `accept` are media types, `image/*` included; an answer
        of another type fails. `headers` are not repeated to another origin.
        """
        accepted = {"accept": ", ".join(accept)} if accept else {}
        async with self._requests(url, timeout) as client:
            response = await _follow(client, url, accepted, {**(headers or {})})
            async with aclosing(response):
                if not response.is_success:
                    status = response.status_code
                    raise EgressFailed(f"The URL could not be fetched: its server answered with {status}.")
                _check_type(response, accept)
                return await _read(response, max_bytes)

    async def post(
        self,
        url: str,
        *,
        content: bytes,
        max_bytes: int,
        timeout: float,  # noqa: ASYNC109 - as above
        headers: Headers | None = None,
        truncate: bool = False,
    ) -> Fetched:
        """Post to a URL; every status is an answer, and a redirect is one that nobody follows.

        With `truncate` a longer body is cut, and a compressed one left unread, where they would fail otherwise.
        """
        async with self._requests(url, timeout) as client:
            request = client.build_request("POST", url, content=content, headers=_plain(headers))
            async with aclosing(await client.send(request, stream=True)) as response:
                return await (_read_beginning if truncate else _read)(response, max_bytes)

    @asynccontextmanager
    async def _requests(self, url: str, seconds: float) -> AsyncIterator[httpx2.AsyncClient]:
        """A client for one fetch within its time; what goes wrong with it becomes an `EgressFailed`."""
        self.check(url)
        limit = httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        try:
            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(transport=self.transport(), trust_env=False, timeout=limit) as client,
            ):
                yield client
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise EgressFailed("The URL could not be fetched: its server did not answer in time.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise EgressFailed from error


@lru_cache(maxsize=1)
def default() -> Egress:
    """The platform's own, with what EGRESS_ALLOW opens."""
    return Egress(allow=settings.EGRESS_ALLOW)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Checks each request's URL, and lets its connection be made by a guard."""

    def __init__(self, egress: Egress) -> None:
        self._allow = egress.allow
        self._pools = {
            scheme: httpcore2.AsyncConnectionPool(
                ssl_context=egress.tls, network_backend=_Guard(egress, scheme), keepalive_expiry=5.0
            )
            for scheme in ("http", "https")
        }

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if url.userinfo:
            raise EgressRefused
        wanted = target(url.scheme, url.raw_host.decode("ascii"), url.port)
        self._allow.check(wanted)
        outgoing = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=url.raw_scheme, host=wanted.host.encode("ascii"), port=wanted.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _httpx_errors(request):
            answer = await self._pools[wanted.scheme].handle_async_request(outgoing)
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer, request),
            extensions=answer.extensions,
        )

    @override
    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


class _Guard(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses. What it is asked for is all that counts: no earlier check is relied upon."""

    def __init__(self, egress: Egress, scheme: str) -> None:
        self._egress = egress
        self._scheme = scheme
        self._network = httpcore2.AnyIOBackend()

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: object = None,
    ) -> httpcore2.AsyncNetworkStream:
        wanted = target(self._scheme, host, port)
        self._egress.allow.check(wanted)
        addresses = [wanted.address] if wanted.address else await self._look_up(wanted.host)
        self._egress.allow.check_addresses(wanted, addresses)
        return await self._connect(addresses[:_MAX_ADDRESSES], port, timeout)

    async def _look_up(self, name: str) -> list[Address]:
        try:
            found = await self._egress.resolve(name)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise EgressFailed from error
            raise EgressRefused from error
        except (OSError, UnicodeError) as error:
            raise EgressRefused from error
        if not found:
            raise EgressRefused
        return [ip_address(text) for text in dict.fromkeys(found)]

    async def _connect(
        self, addresses: Sequence[Address], port: int, seconds: float | None
    ) -> httpcore2.AsyncNetworkStream:
        *others, last = addresses
        for address in others:
            try:
                return await self._network.connect_tcp(str(address), port, timeout=seconds)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(str(last), port, timeout=seconds)


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, with httpx2's errors."""

    def __init__(self, answer: httpcore2.Response, request: httpx2.Request) -> None:
        self._answer = answer
        self._request = request

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        with _httpx_errors(self._request):
            async for piece in self._answer.aiter_stream():
                yield piece

    @override
    async def aclose(self) -> None:
        await self._answer.aclose()


@contextmanager
def _httpx_errors(request: httpx2.Request) -> Iterator[None]:
    """httpcore's errors under the same names in httpx2, whose users know only those."""
    try:
        yield
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise getattr(httpx2, type(error).__name__)(str(error), request=request) from error


async def _follow(client: httpx2.AsyncClient, url: str, always: Headers, own: Headers) -> httpx2.Response:
    """The unread answer at the end of the redirects, whose own bodies nobody reads."""
    request = client.build_request("GET", url, headers=_plain({**always, **own}))
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        if response.next_request is None:
            return response
        await response.aclose()
        following = response.next_request.url
        if following.origin != request.url.origin:
            own = {}
        client.cookies.clear()
        request = client.build_request("GET", following, headers=_plain({**always, **own}))
    raise EgressFailed("The URL could not be fetched: it redirects too often.")


def _plain(headers: Headers | None) -> dict[str, str]:
    """Compressed bodies are not asked for: a small one could become a large one."""
    return {"user-agent": _USER_AGENT, **(headers or {}), "accept-encoding": "identity"}


def _check_type(response: httpx2.Response, accept: Sequence[str] | None) -> None:
    found = _media_type(response)
    family = found.partition("/")[0] + "/*"
    if accept is not None and found not in accept and family not in accept:
        raise EgressFailed("The URL could not be fetched: it is of a type that cannot be used here.")


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read(response: httpx2.Response, max_bytes: int) -> Fetched:
    """The answer with its body, as long as that keeps to its limit and comes as it is."""
    too_large = EgressFailed(f"The URL could not be fetched: it is larger than {max_bytes} bytes.")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise EgressFailed("The URL could not be fetched: its server insists on compressing it.")
    announced = response.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > max_bytes:
            raise too_large
    return _fetched(response, bytes(content))


async def _read_beginning(response: httpx2.Response, max_bytes: int) -> Fetched:
    """The answer with the beginning of its body; without any where that is compressed."""
    content = bytearray()
    if response.headers.get("content-encoding", "identity").lower() == "identity":
        async for piece in response.aiter_raw():
            content += piece
            if len(content) >= max_bytes:
                break
    return _fetched(response, bytes(content[:max_bytes]))


def _fetched(response: httpx2.Response, content: bytes) -> Fetched:
    return Fetched(
        status=response.status_code,
        content=content,
        content_type=_media_type(response),
        url=str(response.url),
        charset=response.charset_encoding or "",
    )
