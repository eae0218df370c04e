"""The API's ASGI shell: request ids and standard headers on every answer, bodies within their limit, errors in their
envelope; and a lean Django handler.

Django's own handler makes a thread per request before any work (0.5 ms). The API needs none of it: asynchronous views
run on the loop, synchronous ones in the threads that keep database connections.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from io import SEEK_END, BytesIO
from tempfile import TemporaryFile
from typing import IO, Any

from asgiref.sync import iscoroutinefunction
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve, set_script_prefix
from typing_extensions import override

from kernel.db_threads import in_db_thread
from kernel.errors import ApiError, BadRequest, MethodNotAllowed, RequestTooLarge
from kernel.http import as_api_error, error_response, unknown_url
from kernel.ids import new_id
from kernel.origin import Origin, coming_from, sender

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LARGE_BYTES = 1024 * 1024
_MAX_CLIENT_REQUEST_ID = 512
_VERSION = (b"openai-version", b"2020-10-01")


class ClientGone(Exception):
    """The client went away before its request was complete."""


def header(scope: Scope, name: bytes) -> str:
    """A request header, or the empty string."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


def identified(app: App, *, trusted_proxies: int = 0) -> App:
    """Gives every request an id, `scope["request_id"]`, which every answer carries as `x-request-id`.

    Where the request comes from is known below, too (`kernel.origin`).
    """

    async def with_id(scope: Scope, receive: Receive, send: Send) -> None:
        scope["request_id"] = request_id = new_id("req")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        with coming_from(_sender(scope, trusted_proxies)):
            await app(scope, receive, send_with_id)

    return with_id


def _sender(scope: Scope, trusted_proxies: int) -> Origin:
    peer = scope.get("client")
    return sender(
        peer=peer[0] if peer else "",
        forwarded_for=header(scope, b"x-forwarded-for"),
        agent=header(scope, b"user-agent"),
        request_id=scope["request_id"],
        trusted_proxies=trusted_proxies,
    )


class ApiShell:
    """Wraps everything under /v1: `scope["body"]` within its limit, and the headers of OpenAI's API.

    Who sends a large one is asked for a key first (`admit` raises), so that strangers cannot fill memory and disk.
    Requests of which `is_upload` is true have a limit of their own, an empty body, and what came as `scope["upload"]`,
    a file on disk that is open at its beginning.
    """

    def __init__(
        self,
        app: App,
        *,
        max_body_bytes: int,
        max_upload_bytes: int,
        is_upload: Callable[[Scope], bool],
        admit: Callable[[Scope], Awaitable[object]],
    ) -> None:
        self._app = app
        self._admit = admit
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._is_upload = is_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                spent = str(round((time.perf_counter() - began) * 1000)).encode()
                headers = [*message.get("headers", ()), _VERSION, (b"openai-processing-ms", spent)]
                message = {**message, "headers": headers}
            await send(message)

        try:
            _check_client_request_id(scope)
            _check_query(scope)
            if _is_large(scope):
                await self._admit(scope)
            if self._is_upload(scope):
                await self._serve_upload(scope, receive, send_with_headers)
                return
            scope["body"] = b"".join([piece async for piece in _pieces(scope, receive, self._max_body_bytes)])
        except ClientGone:
            return
        except ApiError as error:
            await send_error(error, send_with_headers)
            return
        await self._app(scope, _replay(scope["body"], receive), send_with_headers)

    async def _serve_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A server that has put the body on disk by itself says so.
        with scope.get("spooled") or TemporaryFile() as upload:
            await self._spool(upload, scope, receive)
            scope["body"], scope["upload"] = b"", upload
            await self._app(scope, _replay(b"", receive), send)

    async def _spool(self, upload: IO[bytes], scope: Scope, receive: Receive) -> None:
        async for piece in _pieces(scope, receive, self._max_upload_bytes):
            if piece:
                await asyncio.to_thread(upload.write, piece)
        if upload.seek(0, SEEK_END) > self._max_upload_bytes:
            raise _too_large(self._max_upload_bytes)
        upload.seek(0)


def _is_large(scope: Scope) -> bool:
    """Whether the body is announced as large, or comes without an announcement."""
    announced = header(scope, b"content-length")
    return int(announced) > _LARGE_BYTES if announced.isdigit() else bool(header(scope, b"transfer-encoding"))


async def _pieces(scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytes]:
    """The body as it comes, as long as it keeps to its limit."""
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise _too_large(most)
        yield piece
        if not message.get("more_body", False):
            return


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body of the request is too large: the limit is {limit // 1024 // 1024} MiB.")


def _check_client_request_id(scope: Scope) -> None:
    given = header(scope, b"x-client-request-id")
    if len(given) > _MAX_CLIENT_REQUEST_ID or not given.isascii():
        message = f"Invalid 'X-Client-Request-Id': expected at most {_MAX_CLIENT_REQUEST_ID} ASCII characters."
        raise BadRequest(message, param="X-Client-Request-Id", code="invalid_value")


def _check_query(scope: Scope) -> None:
    """PostgreSQL refuses NUL in whatever is looked up, and no id, name or value has one."""
    if b"%00" in scope["query_string"]:
        raise BadRequest("Invalid query: it contains a NUL character.", code="invalid_value")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, and then what the server says."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def send_error(error: ApiError, send: Send) -> None:
    """An error as a complete answer."""
    response = error_response(error)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.items()]
    headers.append((b"content-length", str(len(response.content)).encode()))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})


class ApiHandler(ASGIHandler):
    """Runs the API's views without middleware and without a thread per request."""

    @override
    def load_middleware(self, is_async: bool = False) -> None:
        """The API has none."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the shell has read the body
        set_script_prefix(scope.get("root_path", "") or "/")
        work = asyncio.ensure_future(self._answer(scope))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()  # the view hears of the client's leaving as a cancellation
            await asyncio.wait({work})
        finally:
            gone.cancel()
        if not work.cancelled():
            await self.send_response(work.result(), send)

    async def _answer(self, scope: Scope) -> HttpResponseBase:
        request = ASGIRequest(scope, BytesIO())
        request._body = scope["body"]  # noqa: SLF001 - what `HttpRequest.body` returns once it was read
        try:
            match = resolve(request.path_info)
        except Resolver404:
            return unknown_url(request)
        request.resolver_match = match
        try:
            response: HttpResponseBase = _rendered(await call_view(match.func, request, *match.args, **match.kwargs))
        except Exception as error:
            return error_response(as_api_error(error))
        return response


async def call_view(view: Callable[..., Any], request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
    """Run a view where it belongs: on the loop, or in a thread with a database connection."""
    if iscoroutinefunction(view):
        response = await view(request, *args, **kwargs)
    else:
        response = await in_db_thread(lambda: _rendered(view(request, *args, **kwargs)))
    if not isinstance(response, HttpResponseBase):
        msg = f"a view answered {type(response).__name__}"
        raise TypeError(msg)
    return response


def by_method(**views: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, HttpResponseBase]]:
    """One URL, a view per method, synchronous and asynchronous ones side by side."""
    allowed = ", ".join(sorted(name.upper() for name in views))

    async def dispatch(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        view = views.get((request.method or "").lower())
        if view is None:
            message = f"Not allowed to {request.method} on {request.path}. Allowed: {allowed}."
            return error_response(MethodNotAllowed(message, headers={"Allow": allowed}))
        return await call_view(view, request, *args, **kwargs)

    return dispatch


def _rendered(response: Any) -> Any:
    render = getattr(response, "render", None)
    return render() if callable(render) else response
