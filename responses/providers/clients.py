"""The openai SDK as client of any upstream: one pooled client per upstream and event loop, raw bytes out.

The SDK gives configuration, authentication and its errors. Its typed stream costs ten times the raw bytes, so requests
go through `client.post` with bytes in, and the undecoded response out. That form leans on a header which is the SDK's
own business (`X-Stainless-Raw-Response`); only this module knows, and a contract test holds it. Its retries are off:
they would ask a silent upstream three times and sleep for as long as a full one says.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import httpx2
import openai
import orjson
from django.conf import settings
from openai import AsyncAPIResponse, AsyncOpenAI, DefaultAioHttpClient
from openai._types import RequestOptions

from kernel.errors import Failure
from tenants.directory import UpstreamEndpoint

# Before the first byte only; a connection that breaks later has said something already.
_RETRY_PAUSES = (0.3, 1.0)
_MAX_CONNECTIONS = 2000
# OpenAI's, vLLM's, llama.cpp's and others' words for an input that does not fit.
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum context|prompt is too long|input is too long|too many tokens",
    re.IGNORECASE,
)
_Clients = dict[tuple[str, str, str], AsyncOpenAI]
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A body with files: the fields, and each file as its field, name, content and media type."""

    fields: dict[str, str]
    files: Sequence[tuple[str, tuple[str, bytes, str]]]


class UpstreamFailed(Exception):
    """The upstream answered with an error, not at all, or with something that is no answer."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


def client_for(upstream: UpstreamEndpoint) -> AsyncOpenAI:
    """The client of an upstream in this loop; a changed address or key gets a new one."""
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    key = (upstream.id, upstream.base_url, upstream.api_key)
    if key not in clients:
        clients[key] = _new_client(upstream)
    return clients[key]


async def close_clients() -> None:
    """Close the clients of this loop; for an orderly shutdown."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def _new_client(upstream: UpstreamEndpoint) -> AsyncOpenAI:
    idle, connect = settings.UPSTREAM_IDLE_TIMEOUT, settings.UPSTREAM_CONNECT_TIMEOUT
    timeout = httpx2.Timeout(idle, connect=connect, pool=connect)
    return AsyncOpenAI(
        base_url=upstream.base_url,
        # The SDK insists on some key; servers that need none ignore it.
        api_key=upstream.api_key or "none",
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAioHttpClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS),
        ),
    )


@asynccontextmanager
async def post(upstream: UpstreamEndpoint, path: str, body: dict[str, Any] | Form) -> AsyncIterator[httpx2.Response]:
    """Send a request; the answer has status 200 and an unread body. Raises `UpstreamFailed`.

    Leaving the block closes the connection if the body was not read to its end.
    """
    client = client_for(upstream)
    content = body if isinstance(body, Form) else orjson.dumps(body)
    for pause in (*_RETRY_PAUSES, None):
        try:
            raw = await _send(client, path, content)
            break
        except openai.APIError as error:
            if pause is None or not _may_pass(error):
                raise UpstreamFailed(to_failure(error)) from error
        await asyncio.sleep(pause)
    response = raw.http_response
    try:
        yield response
    finally:
        await response.aclose()


async def _send(client: AsyncOpenAI, path: str, content: bytes | Form) -> "AsyncAPIResponse[object]":
    options: RequestOptions = {
        "headers": {
            "X-Stainless-Raw-Response": "stream",
            "Content-Type": "multipart/form-data" if isinstance(content, Form) else "application/json",
        },
    }
    if isinstance(content, Form):
        sent = client.post(path, body=content.fields, files=content.files, cast_to=object, options=options)
    else:
        sent = client.post(path, content=content, cast_to=object, options=options)
    return cast("AsyncAPIResponse[object]", await sent)


def _may_pass(error: openai.APIError) -> bool:
    """Whether another try may do better. Silence is not tried again, it has taken its time; and a full upstream is the
    client's to wait for, which need not hold a connection open meanwhile."""
    if isinstance(error, openai.APIStatusError):
        told = error.response.headers.get("x-should-retry")
        return told != "false" and (error.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR or told == "true")
    return _is_unreachable(error)


def _is_unreachable(error: openai.APIError) -> bool:
    """The aiohttp transport calls every failure to connect a timeout, a refused connection and an unknown host too."""
    connecting = isinstance(error.__cause__, httpx2.ConnectTimeout)
    return isinstance(error, openai.APIConnectionError) and (
        connecting or not isinstance(error, openai.APITimeoutError)
    )


async def read_bytes(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body in pieces as they come; a broken or silent connection raises `UpstreamFailed`."""
    try:
        async for piece in response.aiter_bytes():
            yield piece
    except httpx2.TimeoutException as error:
        message = "The model's server fell silent in the middle of its answer."
        raise UpstreamFailed(Failure(code="server_error", message=message)) from error
    except httpx2.HTTPError as error:
        message = "The connection to the model's server broke in the middle of its answer."
        raise UpstreamFailed(Failure(code="server_error", message=message)) from error


def to_failure(error: openai.APIError) -> Failure:
    """What a caller is told of an upstream's error: never its address, its key, or more of its words than is needed."""
    if isinstance(error, openai.APITimeoutError) and not _is_unreachable(error):
        return Failure(code="server_error", message="The model's server did not answer in time.", status=503)
    if not isinstance(error, openai.APIStatusError):
        return Failure(code="server_error", message="The model's server could not be reached.", status=503)
    return failure_of_status(error.status_code, error.body, retry_after=error.response.headers.get("retry-after"))


def failure_of_status(status: int, body: object, *, retry_after: str | None = None) -> Failure:
    """The failure for an upstream's HTTP error."""
    message = _message_in(body)
    if status == httpx2.codes.TOO_MANY_REQUESTS:
        headers = {"retry-after": retry_after} if retry_after else {}
        text = "The model's server is receiving too many requests. Please retry."
        return Failure(code="rate_limit_exceeded", message=text, status=429, headers=headers)
    if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
        return Failure(code="server_error", message="The model's server refused this platform's credentials.")
    if status == httpx2.codes.NOT_FOUND:
        text = "The requested model does not exist."
        return Failure(code="model_not_found", message=text, param="model", status=400)
    if _is_too_long(status, body, message):
        text = f"The input is too long for the model: {message}" if message else "The input is too long for the model."
        return Failure(code="context_length_exceeded", message=text, param="input", status=400)
    if httpx2.codes.is_client_error(status):
        text = f"The model's server rejected the request: {message}" if message else "The request was rejected."
        return Failure(code="invalid_prompt", message=text, status=400)
    if status == httpx2.codes.SERVICE_UNAVAILABLE:
        return Failure(code="server_is_overloaded", message="The model's server is overloaded.", status=503)
    return Failure(code="server_error", message=f"The model's server failed (HTTP {status}).", status=500)


def _is_too_long(status: int, body: object, message: str) -> bool:
    """Whether a server could not read so much: it has a code for it, or one of the usual sentences."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(inner, dict) and "context_length_exceeded" in [inner.get("code"), inner.get("type")]:
        return True
    return bool(httpx2.codes.is_client_error(status) and _TOO_LONG.search(message))


def _message_in(body: object) -> str:
    """The upstream's own sentence, shortened; the SDK has already unwrapped `error`."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return str(message or "")[:500]
    return ""
