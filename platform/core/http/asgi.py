"""ASGI layer of the API: request ids, standard headers, error envelopes, and a fast Django handler.

Django's own handler starts a thread for each request (0.5 ms). The API does not need it: asynchronous views run on the
event loop, synchronous ones in the threads that keep database connections.
"""

# Otherwise each request evaluates the annotations of its closures, which an open stream keeps.
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from io import SEEK_END, BytesIO
from tempfile import TemporaryFile
from typing import IO, Any

from asgiref.sync import iscoroutinefunction
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.http.response import HttpResponse, HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import Resolver404, resolve, set_script_prefix
from typing_extensions import override

from core.db import wait_limit
from core.db.db_threads import in_view_thread
from core.errors import ApiError, InvalidValue, NotFound, shutting_down
from core.http import response_headers
from core.http.endpoints import endpoint_in
from core.http.rendering import as_api_error, error_response
from core.ids import new_id
from core.json.large_work import HUGE_BYTES, in_thread, join_pieces, note_document, note_size
from core.load.draining import ConnectionCut, draining
from core.origin import origin, origin_of, use_origin
from core.telemetry import metrics, tracing
from core.telemetry.logs import Access, RefusedAccess

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ABORT = "abort"
"""Key of the scope with a function of the server that closes the connection without sending the rest."""
WATCH = "watch"
"""Key of the scope with a function of some servers that takes a callback for the disconnect of the client, or None."""
REFUSE = "refuse"
"""Key of a WebSocket's scope with a function that takes the status of a request on the connection that was refused."""
_MAX_CLIENT_REQUEST_ID = 512
# A longer body without a Content-Length is kept on disk until it is complete.
_MAX_UNANNOUNCED_BYTES = 1024 * 1024
# Time for the server to notice that its connection was closed.
_CLOSE_SECONDS = 1.0
SERVICE_RESTART = 1012
"""Code of a WebSocket that is closed because its server shuts down: clients may reconnect at once."""
_TRACE_HEADERS = ("traceparent", "tracestate")
# A constant that OpenAI sends with every response.
_VERSION = (b"openai-version", b"2020-10-01")
_CLOSE = (b"connection", b"close")
_ERRORS = 400  # HTTP statuses from here on
# Of shorter secrets, the hint would show too much.
_SHORTEST_KEY = 24


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


def header(scope: Scope, name: bytes) -> str:
    """Return a request header, or an empty string."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


def headers_joined(scope: Scope, name: bytes) -> str:
    """Return all values of a request header that may occur several times, in one line."""
    return ", ".join(bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name)


def _unknown_route(_: Scope) -> str:
    return metrics.OTHER


def with_request_id(
    app: App,
    *,
    route_of: Callable[[Scope], str] = _unknown_route,
    trusted_proxies: int = 0,
    on_refused: Callable[[RefusedAccess], None] | None = None,
) -> App:
    """Wrap an app so that every request has an id: `scope["request_id"]`, sent as the header `x-request-id`.

    Also sets the request's origin (`core.origin`), writes its line of the access log, counts it, and ends it properly
    if the process shuts down meanwhile. `route_of` returns the template of a request's path; there are only a few.
    `on_refused` is called for each request to the API that was answered with an error, also over an open WebSocket.
    """

    async def with_id(scope: Scope, receive: Receive, send: Send) -> None:
        scope["request_id"] = request_id = new_id("req")

        peer = scope.get("client")
        sender = origin_of(
            peer=peer[0] if peer else "",
            # Some proxies append a line of their own instead of extending the client's, which must not come first.
            forwarded_for=headers_joined(scope, b"x-forwarded-for"),
            agent=header(scope, b"user-agent"),
            request_id=request_id,
            trusted_proxies=trusted_proxies,
        )
        access = Access(scope.get("method", "WEBSOCKET"), scope["path"], request_id, sender.caller)
        x_request_id = (b"x-request-id", request_id.encode())

        limit = wait_limit.start()

        async def send_with_id(message: Message) -> None:
            if limit is not None:
                limit.renew()
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), x_request_id]}
                if draining.is_announced:
                    # The client's next request must not come over this connection.
                    message["headers"].append(_CLOSE)
            await send(message)
            access.sent(message)

        async def receive_with_limit() -> Message:
            message = await receive()
            # A message of a WebSocket is a request of its own.
            if limit is not None and message["type"] == "websocket.receive":
                limit.renew()
            return message

        refuse = partial(_refuse, on_refused, access, scope, route_of)
        if scope["type"] == "websocket":
            scope[REFUSE] = refuse
        draining.began()
        with use_origin(sender):
            try:
                if tracing.is_enabled() and scope["path"].startswith("/v1/"):
                    carrier = {name: header(scope, name.encode()) for name in _TRACE_HEADERS}
                    route = route_of(scope)
                    with tracing.request(
                        method=access.method, route=route, carrier=carrier, status=lambda: access.status
                    ):
                        await app(scope, receive_with_limit, send_with_id)
                else:
                    await app(scope, receive_with_limit, send_with_id)
            except ConnectionCut:
                await _end_cut(scope, receive, send_with_id, access)
            except asyncio.CancelledError:
                if not draining.has_cut():
                    raise
                await _end_cut(scope, receive, send_with_id, access)
            finally:
                if limit is not None:
                    limit.has_ended = True
                draining.ended()
                access.write()
                refuse(access.status or 0)
                metrics.count_request(
                    route=route_of(scope),
                    method=access.method,
                    status=access.status,
                    seconds=time.perf_counter() - access.started,
                    is_complete=access.is_complete,
                )

    return with_id


def _refuse(
    on_refused: Callable[[RefusedAccess], None] | None,
    access: Access,
    scope: Scope,
    route_of: Callable[[Scope], str],
    status: int,
) -> None:
    if on_refused is not None and status >= _ERRORS and scope["path"].startswith("/v1/"):
        on_refused(_refused(access, scope, status, route=route_of(scope)))


def _refused(access: Access, scope: Scope, status: int, *, route: str) -> RefusedAccess:
    # A request over a WebSocket has a caller of its own.
    caller = origin().caller
    secret = header(scope, b"authorization").rpartition(" ")[2] or header(scope, b"x-api-key")
    is_shown = not caller.key_id and len(secret) >= _SHORTEST_KEY
    return RefusedAccess(
        method=access.method,
        path=access.path,
        route=route,
        request_id=access.request_id,
        status=status,
        code=caller.code,
        message=caller.message,
        model=caller.model,
        team_id=caller.team_id,
        key_id=caller.key_id,
        key_hint=f"{secret[:6]}…{secret[-4:]}" if is_shown else "",
    )


async def _end_cut(scope: Scope, receive: Receive, send: Send, access: Access) -> None:
    """End a request that this process no longer serves."""
    if scope["type"] == "websocket":
        with suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": SERVICE_RESTART, "reason": shutting_down().message})
    elif not access.status:
        await send_error(shutting_down(), send)
    elif not access.is_complete:
        await _abort(scope, _disconnect(receive))


async def _abort(scope: Scope, disconnected: Awaitable[object]) -> None:
    """Close the connection before the end of the answer, so that no client takes it for a complete one."""
    scope[ABORT]()
    # An application that returns earlier is reported as an error.
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await disconnected


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def adding_headers(send: Send, headers: Callable[[], list[tuple[bytes, bytes]]]) -> Send:
    """Return a `send` that adds headers to the start of a response. Headers that the response already has are kept."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [*message.get("headers", ())]
            names = {name for name, _ in own}
            message = {**message, "headers": [*own, *(pair for pair in headers() if pair[0] not in names)]}
        await send(message)

    return send_with_headers


def with_api_headers(app: App) -> App:
    """Wrap an app so that its responses have the headers that OpenAI sends with every response.

    They also get the headers that the code for the request adds with `core.http.response_headers`.
    """

    # Not a coroutine, which would live as long as the stream.
    def with_headers(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        added = response_headers.collect()
        return app(scope, receive, adding_headers(send, partial(_openai_headers, time.perf_counter(), added)))

    return with_headers


def _openai_headers(started: float, added: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    elapsed_ms = str(round((time.perf_counter() - started) * 1000)).encode()
    further = [(name.encode(), value.encode()) for name, value in added.items()]
    return [_VERSION, (b"openai-processing-ms", elapsed_ms), *further]


class ApiShell:
    """Wrapper of the apps under /v1 that reads the body, whose size is already limited, into `scope["body"]`.

    For an endpoint whose bodies are spooled, `scope["body"]` is empty, and `scope["upload"]` is a file on disk, open at
    its beginning.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_client_request_id(scope)
            # PostgreSQL raises an error for NUL in a query's parameters. No id, name or value of the API contains NUL.
            if b"%00" in scope["query_string"]:
                raise InvalidValue("Invalid query: it contains a NUL character.")
            endpoint = endpoint_in(scope)
            if endpoint is not None and endpoint.spooled:
                await self._serve_upload(scope, receive, send)
                return
            scope["body"] = await _read_body(scope, receive)
        except ClientDisconnected:
            return
        except (ApiError, OSError) as error:
            await send_error(as_api_error(error), send)
            return
        await self._app(scope, _replay(scope["body"], receive), send)

    async def _serve_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            upload = await _spooled(_body_chunks(receive))
        except OSError as error:
            await send_error(as_api_error(error), send)
            return
        with upload:
            scope["body"], scope["upload"] = b"", upload
            await self._app(scope, _replay(b"", receive), send)


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body. Raises `ClientDisconnected`, and `OSError` if the disk is full."""
    is_announced = bool(header(scope, b"content-length"))
    pieces, chunks, size = _body_chunks(receive), list[bytes](), 0
    async for chunk in pieces:
        chunks.append(chunk)
        size += len(chunk)
        if size > _MAX_UNANNOUNCED_BYTES and not is_announced:
            # A body may be refused as too large only when 64 MiB have arrived. Many such bodies would fill the memory.
            with await _spooled(pieces, first=b"".join(chunks)) as spooled:
                chunks.clear()
                note_size(spooled.seek(0, SEEK_END))
                spooled.seek(0)
                return await asyncio.to_thread(spooled.read)
    body = b"".join(chunks) if size < HUGE_BYTES else await in_thread(partial(join_pieces, chunks, size=size))
    note_document(body)
    return body


async def _spooled(pieces: AsyncIterator[bytes], *, first: bytes = b"") -> IO[bytes]:
    """Write the body to a temporary file and return the file at its beginning. Raises `OSError` if the disk is full."""
    upload = TemporaryFile()  # noqa: SIM115 - closed by the caller
    try:
        await asyncio.to_thread(upload.write, first)
        async for chunk in pieces:
            await asyncio.to_thread(upload.write, chunk)
        upload.seek(0)
    except BaseException:
        # Closing tries once more to write the buffered bytes.
        with suppress(OSError):
            upload.close()
        raise
    return upload


async def _body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raises `ClientDisconnected`."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return


def check_client_request_id(scope: Scope) -> None:
    """Raise `BadRequest` for a header `X-Client-Request-Id` that is too long or not ASCII."""
    given = header(scope, b"x-client-request-id")
    if len(given) > _MAX_CLIENT_REQUEST_ID or not given.isascii():
        raise InvalidValue(
            f"Invalid 'X-Client-Request-Id': expected at most {_MAX_CLIENT_REQUEST_ID} ASCII characters.",
            param="X-Client-Request-Id",
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body that has been read, then the server's messages."""
    first: bytes | None = body
    # Freed with the first message: the request may take minutes.
    del body

    # A stream waits for a disconnect as long as it lives, so only the server's coroutine waits: each additional
    # coroutine above it would take 0.25 KB.
    def replay() -> Awaitable[Message]:
        return receive() if first is None else replay_first()

    async def replay_first() -> Message:
        nonlocal first
        read, first = first or b"", None
        return {"type": "http.request", "body": read, "more_body": False}

    return replay


async def send_error(error: ApiError, send: Send) -> None:
    """Send an error as a complete response."""
    await send_response(error_response(error), send)


async def send_response(response: HttpResponseBase, send: Send) -> None:
    """Send a Django response that is not a stream."""
    body = bytes(getattr(response, "content", b""))
    response.headers["Content-Length"] = str(len(body))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers_of(response)})
    await send({"type": "http.response.body", "body": body})


def headers_of(response: HttpResponseBase) -> list[tuple[bytes, bytes]]:
    """Return the headers of a Django response in the format of ASGI."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in response.items()]


class ApiHandler(ASGIHandler):
    """Django handler that runs the API's views without middleware and without a thread for each request.

    `unknown` returns the error for a method and a path that no view has.
    """

    def __init__(self, *, unknown: Callable[[str, str], NotFound]) -> None:
        super().__init__()
        self._unknown = unknown

    @override
    def load_middleware(self, is_async: bool = False) -> None:
        return  # Sessions, CSRF protection and the like are for pages; API requests authenticate with keys.

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Skip the replayed body, which `ApiShell` has put into the scope. The next message can only be a disconnect.
        await receive()
        set_script_prefix(scope.get("root_path", "") or "/")
        view = asyncio.ensure_future(self._respond(scope))
        disconnected = asyncio.ensure_future(receive())
        try:
            # The client may disconnect: the view, or the iterator of its stream, is cancelled and can stop the work
            # that it has started.
            if not await _ended_before(view, disconnected):
                return
            response = view.result()
            if isinstance(response, HttpResponse):
                response.headers["Content-Length"] = str(len(response.content))
                await self.send_response(response, send)
                return
            sending = asyncio.ensure_future(self.send_response(response, send))
            if await _ended_before(sending, disconnected):
                try:
                    sending.result()
                except ApiError:
                    # The status has been sent. An error that has a message for clients is known, so it is not logged.
                    await _abort(scope, disconnected)
        finally:
            disconnected.cancel()

    async def _respond(self, scope: Scope) -> HttpResponseBase:
        request = ASGIRequest(scope, BytesIO())
        request._body = scope["body"]  # noqa: SLF001 - `HttpRequest.body` returns it without reading the stream
        try:
            match = resolve(request.path_info)
        except Resolver404:
            return error_response(self._unknown(str(request.method), request.path))
        request.resolver_match = match
        view = partial(match.func, request, *match.args, **match.kwargs)
        try:
            # DRF's responses are rendered late: by Django's handler, which this one replaces.
            if iscoroutinefunction(match.func):
                return _rendered(await view())
            return await in_view_thread(lambda: _rendered(view()), authorization=header(scope, b"authorization"))
        except Exception as error:
            return error_response(as_api_error(error))


async def _ended_before(work: asyncio.Future[Any], disconnected: asyncio.Future[Message]) -> bool:
    """Wait for `work` and return whether it ended; cancel it if the client disconnects or the request is cancelled."""
    try:
        await asyncio.wait({work, disconnected}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait({work})
        raise
    if not work.done():
        work.cancel()
    await asyncio.wait({work})
    return not work.cancelled()


def _rendered(response: Any) -> HttpResponseBase:
    if not isinstance(response, SimpleTemplateResponse):
        return response  # type: ignore[no-any-return]
    response.render()
    # DRF's view, request and response refer to each other and to themselves. Garbage collections are rare, so that
    # thousands would wait for one; without these references, they are freed at once.
    context: dict[str, Any] = getattr(response, "renderer_context", {})
    if context:
        context["request"].parser_context.clear()
        vars(context["view"]).clear()
        context.clear()
    return response
