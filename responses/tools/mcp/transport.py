"""The HTTP client of an MCP session: goes through `kernel.egress`, bounds messages and records transport failures.

The SDK reports every HTTP error of a server with the same message. `TransportFailure` records the status code for the
request in progress. A context variable is enough for that, since the SDK sends a request in the context of the task
that makes it.
"""

from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass

import httpx2
from typing_extensions import override

from kernel.egress import Egress
from kernel.errors import ApiError
from responses.tools.mcp.servers import RemoteServer

# Of one event or one JSON body; the SDK bounds events only, and decodes what it has got as a whole.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class TransportFailure:
    """What went wrong below the protocol while one thing was asked of a server."""

    status: int | None = None
    error: Exception | None = None


transport_failure: ContextVar[TransportFailure | None] = ContextVar("mcp_heard", default=None)


def http_client(server: RemoteServer, egress: Egress, *, read_seconds: float) -> httpx2.AsyncClient:
    """A client that carries the server's credentials. The SDK follows redirects within the origin."""
    return httpx2.AsyncClient(
        transport=_Noting(egress.transport()),
        headers={"user-agent": "responses-platform", **server.headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(10.0, read=read_seconds),
        trust_env=False,
        follow_redirects=False,
    )


class _Noting(httpx2.AsyncBaseTransport):
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
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if not is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, request)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body that breaks off where it becomes too large."""

    def __init__(self, body: httpx2.AsyncByteStream, request: httpx2.Request) -> None:
        self._body = body
        self._request = request

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for piece in self._body:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                message = "The answer is too large."
                raise httpx2.ReadError(message, request=self._request)
            yield piece

    @override
    async def aclose(self) -> None:
        await self._body.aclose()
