"""HTTP client for every URL that a client can influence; guards against server-side request forgery.

A name is resolved once, all of its addresses are checked, and the connection goes to a checked address while Host and
SNI keep the name. A DNS answer that changes in between (DNS rebinding) has no effect. No proxy, netrc or cookies are
used, and fetches share no connections.
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

from core.egress_policy import Address, AllowList, parse_url, target
from core.errors import EgressFailed, EgressRefused

MAX_REDIRECTS = 3
# Addresses are tried one after the other; a name with hundreds of them must not multiply the connect timeout.
_MAX_ADDRESSES = 8
_CONNECT_SECONDS = 10.0
_USER_AGENT = "responses-platform"

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Resolves a name to its IPv4 and IPv6 addresses; raises `OSError` if it has none."""
Headers = Mapping[str, str]


async def resolve(name: str) -> Sequence[str]:
    """Resolve a name with the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@lru_cache(maxsize=1)
def _system_trust() -> ssl.SSLContext:
    # The certificate authorities of the system or of SSL_CERT_FILE. Cached, because reading them takes 20 ms.
    return httpx2.create_ssl_context()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Complete response: `content_type` without parameters, its parameter `charset`, and `url` after all redirects."""

    status: int
    content: bytes
    content_type: str
    url: str
    charset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Client for URLs that clients can influence; has no open connections, so all event loops can share one.

    Raises `EgressRefused` for a URL that is not allowed, before anything is sent, and `EgressFailed` for other errors.
    """

    allow: AllowList = field(default_factory=AllowList)
    resolve: Resolve = resolve
    tls: ssl.SSLContext = field(default_factory=_system_trust, repr=False)

    def check(self, url: str) -> None:
        """Raise `EgressRefused` for a URL that can never be allowed; for requests that name a URL for later use."""
        self.allow.check(parse_url(url))

    def trusting(self, url: str) -> "Egress":
        """Return a client that also reaches this URL's host in private networks; for URLs that an operator set."""
        return replace(self, allow=self.allow.allowing(parse_url(url)))

    def transport(self) -> "GuardedTransport":
        """Return a transport for another library's httpx2 client, which must be created with `trust_env=False`.

        Every request of that client is checked, including redirects. Limits of time and size are left to the client.
        """
        return GuardedTransport(self)

    async def connect(self, host: str, port: int) -> httpcore2.AsyncNetworkStream:
        """Open a connection for traffic of containers, which stays encrypted; only to https servers and EGRESS_ALLOW.

        Raises `EgressRefused` and `EgressFailed`.
        """
        try:
            return await _Guard(self, "https").connect_tcp(host, port, timeout=_CONNECT_SECONDS)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, OSError) as error:
            raise EgressFailed from error

    async def get(
        self,
        url: str,
        *,
        max_bytes: int,
        timeout: float,  # noqa: ASYNC109 - covers all requests of a redirect chain, which a caller cannot see
        accept: Sequence[str] | None = None,
        headers: Headers | None = None,
    ) -> Fetched:
        """Fetch a URL, following at most three redirects; raises `EgressFailed` for any status but 2xx.

        `timeout`: seconds from the DNS query to the last byte. `accept`: media types or ranges such as `image/*`; other
        types fail. `headers` are not sent to another origin.
        """
        accepted = {"accept": ", ".join(accept)} if accept else {}
        async with self._requests(url, timeout) as client:
            response = await _follow(client, url, accepted, {**(headers or {})})
            async with aclosing(response):
                if not response.is_success:
                    status = response.status_code
                    raise EgressFailed(f"The URL could not be fetched: the server responded with HTTP {status}.")
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
        """Post to a URL and return the response, whatever its status; redirects are not followed.

        With `truncate` a body beyond `max_bytes` is cut, and a compressed body is not read. Otherwise both raise
        `EgressFailed`.
        """
        async with self._requests(url, timeout) as client:
            request = client.build_request("POST", url, content=content, headers=_plain(headers))
            async with aclosing(await client.send(request, stream=True)) as response:
                return await (_read_beginning if truncate else _read)(response, max_bytes)

    @asynccontextmanager
    async def _requests(self, url: str, seconds: float) -> AsyncIterator[httpx2.AsyncClient]:
        """Open a client for one fetch with a time limit; raises `EgressFailed` for its errors."""
        self.check(url)
        limit = httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        try:
            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(transport=self.transport(), trust_env=False, timeout=limit) as client,
            ):
                yield client
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise EgressFailed("The URL could not be fetched: the server did not respond in time.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise EgressFailed from error


@lru_cache(maxsize=1)
def default() -> Egress:
    """Return the client that uses EGRESS_ALLOW."""
    return Egress(allow=settings.EGRESS_ALLOW)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Transport that checks each request's URL and connects to checked addresses only."""

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
        # Parsed by httpx2 here, so the outgoing request is built from the checked parts, not from the URL's text.
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
            response = await self._pools[wanted.scheme].handle_async_request(outgoing)
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_ResponseStream(response, request),
            extensions=response.extensions,
        )

    @override
    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


class _Guard(httpcore2.AsyncNetworkBackend):
    """Network backend that resolves, checks and connects; relies on no earlier check."""

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
            # The resolver is unavailable; a later attempt may succeed, so this is no refusal of the URL.
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


class _ResponseStream(httpx2.AsyncByteStream):
    """Body of a response; converts httpcore's errors to httpx2's."""

    def __init__(self, response: httpcore2.Response, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        with _httpx_errors(self._request):
            async for chunk in self._response.aiter_stream():
                yield chunk

    @override
    async def aclose(self) -> None:
        await self._response.aclose()


@contextmanager
def _httpx_errors(request: httpx2.Request) -> Iterator[None]:
    # httpx2 has errors with the same names, and its users catch only errors of httpx2.
    try:
        yield
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise getattr(httpx2, type(error).__name__)(str(error), request=request) from error


async def _follow(client: httpx2.AsyncClient, url: str, always: Headers, own: Headers) -> httpx2.Response:
    """Follow redirects without reading their bodies; return the last response, unread."""
    request = client.build_request("GET", url, headers=_plain({**always, **own}))
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        if response.next_request is None:
            return response
        await response.aclose()
        next_url = response.next_request.url
        # Headers may contain credentials for the first origin. Once dropped they stay dropped, even if a later redirect
        # returns to that origin.
        if next_url.origin != request.url.origin:
            own = {}
        client.cookies.clear()
        request = client.build_request("GET", next_url, headers=_plain({**always, **own}))
    raise EgressFailed("The URL could not be fetched: too many redirects.")


def _plain(headers: Headers | None) -> dict[str, str]:
    # No compressed bodies: a small one could decompress to more than any limit.
    return {"user-agent": _USER_AGENT, **(headers or {}), "accept-encoding": "identity"}


def _check_type(response: httpx2.Response, accept: Sequence[str] | None) -> None:
    found = _media_type(response)
    family = found.partition("/")[0] + "/*"
    if accept is not None and found not in accept and family not in accept:
        raise EgressFailed("The URL could not be fetched: its content type is not supported.")


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read(response: httpx2.Response, max_bytes: int) -> Fetched:
    """Read the body; raises `EgressFailed` if it is too large or compressed."""
    too_large = EgressFailed(f"The URL could not be fetched: it is larger than {max_bytes} bytes.")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise EgressFailed("The URL could not be fetched: the server sent a compressed response.")
    # Checked first, to fail before the download; a wrong Content-Length is caught by counting.
    announced = response.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > max_bytes:
            raise too_large
    return _fetched(response, bytes(content))


async def _read_beginning(response: httpx2.Response, max_bytes: int) -> Fetched:
    """Read the beginning of the body; return an empty one if it is compressed."""
    content = bytearray()
    if response.headers.get("content-encoding", "identity").lower() == "identity":
        async for chunk in response.aiter_raw():
            content += chunk
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
