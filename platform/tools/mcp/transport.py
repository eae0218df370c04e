"""HTTP client of an MCP session: goes through `core.egress`, bounds messages and records transport failures.

The SDK reports every HTTP error of a server with the same message. `TransportFailure` records the status code for the
request in progress. A context variable is enough for that, because the SDK sends a request in the context of the task
that makes it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx2
import orjson
from pydantic_core import from_json
from typing_extensions import override

from core.egress import Egress
from core.errors import ApiError
from core.json import lenient_json
from tools.mcp.servers import RemoteServer

# Limit of one event or one JSON body. The SDK bounds events only, and reads a JSON body completely before parsing it.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_METHOD_KEEPING_REDIRECTS = (httpx2.codes.TEMPORARY_REDIRECT, httpx2.codes.PERMANENT_REDIRECT)


@dataclass(slots=True)
class TransportFailure:
    """Failure below the MCP protocol during one request to a server. `refused` is set together with `status`."""

    status: int | None = None
    error: Exception | None = None
    refused: asyncio.Event = field(default_factory=asyncio.Event)


transport_failure: ContextVar[TransportFailure | None] = ContextVar("mcp_heard", default=None)


def http_client(server: RemoteServer, egress: Egress, *, read_seconds: float) -> httpx2.AsyncClient:
    """Return a client that sends the server's credentials. The SDK follows redirects within the origin itself."""
    return httpx2.AsyncClient(
        transport=_RecordingTransport(egress.transport()),
        # No compression: the size limit applies to the bytes received.
        headers={"user-agent": "responses-platform", **server.headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(10.0, read=read_seconds),
        trust_env=False,
        follow_redirects=False,
    )


class _RecordingTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        failure_below = transport_failure.get() or TransportFailure()
        try:
            response = await self._inner.handle_async_request(request)
        except (ApiError, httpx2.HTTPError) as error:
            failure_below.error = error
            raise
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            failure_below.status = response.status_code
            failure_below.refused.set()
        if response.has_redirect_location and not _is_followed(request, response):
            await response.aclose()
            failure_below.status = response.status_code
            # The SDK would repeat the target in its error. The target may be internal, and its URL may carry secrets.
            raise httpx2.RemoteProtocolError("The server redirects to another URL.", request=request)
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = (_Events if is_stream else _Document)(response.stream, request)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_followed(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Return whether the SDK follows this redirect, which must keep the method and stay on the origin."""
    if request.method != "GET" and response.status_code not in _METHOD_KEEPING_REDIRECTS:
        return False
    try:
        target = request.url.join(response.headers["location"])
    except httpx2.InvalidURL:
        return False
    return target.origin == request.url.origin and target.userinfo in {b"", request.url.userinfo}


class _Messages(httpx2.AsyncByteStream):
    """Response body with messages that strict parsers read. It fails as soon as a message exceeds the size limit.

    The SDK drops a message that it cannot parse, such as one with half of a surrogate pair, and keeps waiting for it.
    """

    def __init__(self, body: httpx2.AsyncByteStream, request: httpx2.Request) -> None:
        self._body = body
        self._request = request

    @override
    async def aclose(self) -> None:
        await self._body.aclose()

    def _check(self, size: int) -> None:
        if size > MAX_MESSAGE_BYTES:
            raise httpx2.ReadError("The response is too large.", request=self._request)


class _Document(_Messages):
    """A single message."""

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        pieces, size = list[bytes](), 0
        async for piece in self._body:
            size += len(piece)
            self._check(size)
            pieces.append(piece)
        yield _repaired(b"".join(pieces))


class _Events(_Messages):
    """Server-sent events, each with a message in one line."""

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        rest = b""
        async for piece in self._body:
            *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else (rest + piece,)
            self._check(len(rest))
            if lines:
                yield b"".join(_repaired_line(line) + b"\n" for line in lines)
        if rest:
            yield _repaired_line(rest)


def _repaired_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    return name + colon + b" " + _repaired(value.strip()) if name == b"data" and value else line


def _repaired(message: bytes) -> bytes:
    """Return a message as JSON that strict parsers read; unchanged if they do, or if it is no JSON."""
    try:
        from_json(message)
    except ValueError:
        with suppress(ValueError):
            return orjson.dumps(lenient_json.loads(message))
    return message
