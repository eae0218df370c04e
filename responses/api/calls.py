"""Endpoints that run models, as plain ASGI apps: their JSON answers and their streams of server-sent events.

An app does for its endpoint what `tenants.views.ApiView` does for the others, from the same declaration: it
authenticates, checks the scope, parses the body, calls the handler and words errors.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson
from django.http import QueryDict
from typing_extensions import override

from core.admission.overload import admission
from core.errors import ApiError
from core.http.asgi import ABORT, Receive, Send, header, headers_of, send_error
from core.http.asgi import Scope as AsgiScope
from core.http.endpoints import Endpoint
from core.http.rendering import JSON, as_api_error
from core.ids import new_id
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut, draining
from core.telemetry import metrics
from responses import chat
from responses.api.requests import Replay, info_of, warning_headers
from responses.chat.requests import ChatRequest
from responses.engine.events.types import ErrorEvent, frame
from responses.lifecycle import create
from responses.models import Mode
from responses.runs import follow
from responses.runs.reservations import CallReservation
from responses.runs.runner import LiveRun
from responses.schema import CreateResponse
from tenants.authentication import authenticate
from tenants.limits import Demand
from tenants.limits.throttle import add_headers
from tenants.models import Scope
from tenants.principal import Principal
from tenants.views import DirectRequest

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # nginx would otherwise collect events before it passes them on.
    (b"x-accel-buffering", b"no"),
]

_PIECE_BYTES = 256 * 1024
_OPEN = metrics.OPEN_STREAMS.labels("sse")


class EventStream:
    """Server-sent events in answer to one request. `disconnect` closes the connection of a client that does not read.

    Errors before the first byte become ordinary HTTP errors.
    """

    def __init__(self, scope: AsgiScope, disconnect: Callable[[], None]) -> None:
        self.scope = scope
        self.disconnect = disconnect
        self.headers: dict[str, str] = {}
        self.reservation: CallReservation | None = None

    async def open(self, principal: Principal, **arguments: Any) -> AsyncIterator[bytes]:
        """Start the work and return an iterator over the bytes of whole events; errors become HTTP errors.

        `arguments` are those of the endpoint's handler.
        """
        raise NotImplementedError

    async def reserve(self, principal: Principal) -> None:
        """Count a stream that only reads a run as an open one until it is closed. Raises `RateLimited`."""
        draining.note_reader()
        self.reservation = CallReservation(principal, reservation_id=new_id("call"))
        await self.reservation.take(Demand(requests=0, stream=True, endpoint="responses"))
        await add_headers(principal)

    def disconnected(self) -> None:
        """Handle a disconnect of the client; the task that reads the iterator has been cancelled.

        A followed run does not depend on its client. Cancelling the task closes the connection of a completion.
        """

    def close(self) -> None:
        """Release what the stream has reserved; the client may have disconnected before its first event."""
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None

    def error_frame(self, error: ApiError) -> bytes:
        """Return the event for an error after the first byte."""
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error.detail()})


class EndpointApp:
    """ASGI app of an endpoint with an `event_stream`, for requests whose body `ApiShell` has read.

    Serves JSON as well if the endpoint has a body, whose `stream` decides.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # The body, which is in the scope already. The next message can only be a disconnect.
        await receive()
        endpoint, stream, principal = self._endpoint, None, None
        client = _Client(receive)
        try:
            try:
                authorization = header(scope, b"authorization")
                principal = await authenticate(authorization)
                principal.require(Scope(endpoint.scope))
                await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
                arguments: dict[str, Any] = endpoint.read_ids(scope["path"])
                # No variable keeps the query, and the body is freed now: a run may take minutes.
                arguments |= await off_loop(
                    partial(endpoint.arguments, QueryDict(scope["query_string"]), scope["body"])
                )
                scope["body"] = b""
                if "body" not in arguments or arguments["body"].stream:
                    stream = endpoint.event_stream(scope, client.disconnect)
                    frames = await stream.open(principal, **arguments)
                else:
                    answer = await endpoint.handler(None, DirectRequest(principal, scope), **arguments)
                # As is the parsed body.
                arguments.clear()
            except Exception as error:
                client.release()
                await add_headers(principal)
                await send_error(as_api_error(error), send)
                return
            if stream is None:
                client.release()
                await _send_json(answer, send)
            else:
                await _send_events(stream, frames, client, send)
        except asyncio.CancelledError:
            if stream is not None:
                stream.disconnected()
            if not client.is_gone:
                raise
            # Without it, the connection of a client that does not read would stay open until it has read the rest.
            scope[ABORT]()
        finally:
            client.release()
            if stream is not None:
                stream.close()


class _Client:
    """The client of a request. When it disconnects, the task that serves it is cancelled."""

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = asyncio.create_task(self._wait_until_gone(receive))

    async def _wait_until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    def disconnect(self) -> None:
        """Stop serving the client."""
        if self._task is not None:
            self.is_gone = True
            self._task.cancel()

    def release(self) -> None:
        """Serve the rest whatever happens to the client: servers report the end of a response as a disconnect."""
        self._task = None
        if self._watch is not None:
            self._watch.cancel()
            # A cancelled task keeps its exception, whose traceback refers to this object. As a cycle, the 54 objects of
            # a request waited for garbage collections, which took 7 % of the CPU of JSON requests.
            self._watch = None


async def _send_json(answer: Any, send: Send) -> None:
    body = await off_loop(partial(orjson.dumps, answer.data))
    # Django's default type of contents is HTML.
    headers = [(name, value) for name, value in headers_of(answer) if name != b"content-type"]
    headers += [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_events(stream: EventStream, frames: AsyncIterator[bytes], client: _Client, send: Send) -> None:
    headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in stream.headers.items())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    admission.started()
    _OPEN.inc()
    try:
        async for data in frames:
            # In pieces: a server copies what its socket does not take at once.
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data if len(data) <= _PIECE_BYTES else data[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionCut:
        raise
    except Exception as error:
        # The status has been sent, so the error can only be an event, after which the stream is closed.
        data = stream.error_frame(as_api_error(error))
        await send({"type": "http.response.body", "body": data, "more_body": True})
    finally:
        _OPEN.dec()
    client.release()
    # Before the client receives the end, so that its next request finds the place free.
    stream.close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class ResponseStream(EventStream):
    """`POST /v1/responses` with `stream:true`."""

    _run: LiveRun | None = None

    @override
    async def open(self, principal: Principal, body: CreateResponse) -> AsyncIterator[bytes]:  # type: ignore[override]
        request = info_of(self.scope)
        if body.background:
            # A worker executes it; this process streams the event log that the worker writes.
            await self.reserve(principal)
            queued = await create.queue_response(principal=principal, body=body, request=request, mode=Mode.STREAM)
            self.headers |= warning_headers(queued.warnings)
            return follow.follow_new(principal=principal, response_id=queued.body["id"], opening=queued.opening)
        self._run = await create.create_response(principal=principal, body=body, request=request, mode=Mode.STREAM)
        self.headers |= warning_headers(self._run.warnings)
        await self._run.opened()
        return self._run.frames(self.disconnect)

    @override
    def disconnected(self) -> None:
        if self._run is not None:
            self._run.detach()

    @override
    def error_frame(self, error: ApiError) -> bytes:
        if self._run is None:
            return super().error_frame(error)
        # Numbered like every other event, although it is not in the log.
        return frame(ErrorEvent(error={**error.detail()}), self._run.next_sequence)


class ResponseReplay(EventStream):
    """`GET /v1/responses/{id}?stream=true`: the events after `starting_after`, then live events until the end."""

    @override
    async def open(  # type: ignore[override]
        self, principal: Principal, response_id: str, include: frozenset[str], replay: Replay
    ) -> AsyncIterator[bytes]:
        await self.reserve(principal)
        return await follow.follow(
            principal=principal,
            response_id=response_id,
            after=replay.after,
            obfuscation=replay.obfuscation,
            include=include,
        )


class ChatStream(EventStream):
    """`POST /v1/chat/completions` with `stream:true`."""

    @override
    async def open(self, principal: Principal, body: ChatRequest) -> AsyncIterator[bytes]:  # type: ignore[override]
        return await chat.stream(principal=principal, body=body, request=info_of(self.scope))
