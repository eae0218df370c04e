"""WebSocket mode: `GET /v1/responses` with an upgrade; many responses on one connection, with the events of a stream.

Every text frame is one JSON object. A connection ends after an hour, as OpenAI's does. Until then the server sends
pings, and idle connections stay open.

Under uvicorn a refused upgrade gets the same status and error envelope as an HTTP request. Daphne cannot send a body:
it closes the connection before accepting it, which clients see as an empty 403.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from core.admission import open_requests
from core.admission.overload import admission
from core.errors import (
    ApiError,
    ConnectionExpired,
    InvalidType,
    InvalidValue,
    MissingParameter,
    NotFound,
    Overloaded,
    ServerError,
    ShuttingDown,
    SteeringNotSupported,
    UnknownParameter,
    UnsupportedParameter,
    shutting_down,
)
from core.http import response_headers
from core.http.asgi import (
    ABORT,
    SERVICE_RESTART,
    Message,
    Receive,
    Scope,
    Send,
    check_client_request_id,
    header,
    send_error,
)
from core.http.endpoints import Endpoint
from core.http.rendering import as_api_error
from core.http.socket_messages import RESERVATION, SENDER, Reservation
from core.http.validation import json_type, parse_json
from core.ids import new_id
from core.json.large_work import note_size, off_loop
from core.load.draining import ConnectionCut, draining
from core.telemetry import metrics
from limits.throttle import add_headers
from responses.api.requests import info_of, warning_headers
from responses.api.socket_streams import QueuedRequest, SocketStream, SocketStreams, pop_stream_id
from responses.lifecycle import create
from responses.lifecycle.create import StartedRun
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.runs.reservations import OPEN_STREAM, CallReservation
from responses.schema import CreateResponse, parse_create
from tenants.authentication import authenticate
from tenants.models import Scope as KeyScope
from tenants.principal import Principal

ENDPOINT = Endpoint(
    KeyScope.RESPONSES_WRITE,
    "Create responses over a WebSocket",
    query=None,
    method="WEBSOCKET",
    path="responses",
    returns="text/event-stream",
    note="`response.create` events as in OpenAI's WebSocket mode, for an hour",
)
_LIFETIME_SECONDS = 60 * 60.0
_CLOSED_NORMALLY = 1000
# Close codes from 4000 are for applications; a refused connection gets 4000 plus the HTTP status.
_REFUSED = 4000
_EVENTS = ("response.create", "response.steer")
_CREATED = b"event: response.created\n"
_OPEN = metrics.OPEN_STREAMS.labels("websocket")
_open: "set[ResponseSocket]" = set()
_TERMINAL = tuple(b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed"))


class ResponseSocket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """Consumer of one connection; shares no state with other connections."""

    def __init__(self, *, lifetime_seconds: float = _LIFETIME_SECONDS) -> None:
        super().__init__()
        self._streams = SocketStreams(self._serve, max_waiting_bytes=settings.MAX_BODY_BYTES)
        self._lifetime_seconds = lifetime_seconds
        self._expiry: asyncio.Task[None] | None = None
        self._reservation: CallReservation | None = None
        self._expired = False
        self._steers = count()
        self._connection: asyncio.Task[None] | None = None
        self._is_stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # However the connection ends, its runs are detached like those of an HTTP stream whose client has disconnected.
        self._connection = asyncio.current_task()
        _OPEN.inc()
        _open.add(self)
        try:
            with open_requests.open_request(header(scope, b"authorization")):
                await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_stalled:
                raise
            # Under uvicorn there is no abort function: it closes the connection when the app has ended.
            if abort := scope.get(ABORT):
                abort()
        finally:
            _OPEN.dec()
            _open.discard(self)
            if self._expiry is not None:
                self._expiry.cancel()
            if self._reservation is not None:
                self._reservation.release()
            await self._streams.close()

    async def dispatch(self, message: Message) -> None:
        # Channels checks for stale database connections in a thread for each message. These consumers use none.
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def websocket_disconnect(self, _: Message) -> None:
        # Overridden for the same reason: Channels would close database connections in a thread.
        raise StopConsumer

    async def connect(self) -> None:
        """Accept clients whose key may create responses."""
        response_headers.collect()
        principal: Principal | None = None
        try:
            _check_request(self.scope)
            open_requests.check(header(self.scope, b"authorization"), counted=1)
            principal = await self._authenticate()
            self.scope[SENDER] = principal.team_id
            if principal.is_limited:
                await self._reserve(principal)
        except Exception as error:
            await add_headers(principal)
            await self._deny(as_api_error(error))
            return
        # Daphne ignores these headers.
        added = {"x-request-id": self.scope["request_id"], **response_headers.added()}
        await self.accept(headers=[(name.encode(), value.encode()) for name, value in added.items()])
        self._expiry = asyncio.create_task(self._expire())

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """Handle a client event; its errors are sent as events, and the connection stays open."""
        if self._expired:
            return
        try:
            # Popped, because the server may keep the message until the next one.
            await self._handle(message.pop("text", None), message.pop(RESERVATION, None))
        except Exception as error:
            await self._send_error(error)

    def _disconnect(self) -> None:
        """End the connection of a client that does not read."""
        if self._connection is not None:
            self._is_stalled = True
            self._connection.cancel()

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def _authenticate(self) -> Principal:
        # Repeated for every response: keys can be revoked while a connection is open.
        principal = await authenticate(header(self.scope, b"authorization"))
        principal.require(KeyScope(ENDPOINT.scope))
        return principal

    async def _reserve(self, principal: Principal) -> None:
        """Count the connection as an open stream, until it ends. Its responses do not count as further streams."""
        reservation = CallReservation(principal, reservation_id=new_id("call"))
        await reservation.reserve(OPEN_STREAM)
        self._reservation = reservation
        await add_headers(principal)

    async def _deny(self, error: ApiError) -> None:
        if "websocket.http.response" not in (self.scope.get("extensions") or {}):
            await self.close(code=_REFUSED + error.status)
            return

        async def send_denial(message: Message) -> None:
            await self.base_send({**message, "type": f"websocket.{message['type']}"})

        error.headers |= {**response_headers.added(), "x-request-id": self.scope["request_id"]}
        await send_error(error, send_denial)

    async def _expire(self) -> None:
        await asyncio.sleep(self._lifetime_seconds)
        self._expired = True
        await self._streams.close()
        await self._send_error(ConnectionExpired())
        await self.close(code=_CLOSED_NORMALLY)

    async def shut_down(self) -> None:
        """Start no more responses, and close the connection when the active ones have ended."""
        self._streams.stop()
        await self._streams.finished()
        await self.close(code=SERVICE_RESTART, reason=shutting_down().message)

    # -- client events -------------------------------------------------------------------------------------------------

    async def _handle(self, text_data: str | None, reservation: Reservation | None) -> None:
        if text_data is None:
            raise InvalidType(None, expected="a text frame with a JSON object", got="a binary frame")
        raw = text_data.encode()
        note_size(len(raw))
        event = await off_loop(partial(parse_json, raw))
        match event.pop("type", None):
            case "response.create":
                stream_id = pop_stream_id(event)
                try:
                    request = QueuedRequest(values=event, size=len(raw), reservation=reservation)
                    self._streams.enqueue(stream_id, request, self.scope[SENDER])
                except ApiError as error:
                    await self._send_error(error, stream_id)
            case "response.processed":
                # Codex reports that it has handled a response. Nothing here depends on it.
                pass
            case "response.steer":
                await self._send(orjson.dumps(self._refused_steer(event)))
            case None:
                raise MissingParameter("type")
            case other:
                raise InvalidValue.unsupported(other, _EVENTS, param="type")

    def _refused_steer(self, event: dict[str, Any]) -> dict[str, Any]:
        # Active runs cannot be steered here. The event returns the input, so the client can send it as a new request.
        fields = (("previous_response_id", str, "a string"), ("input", str | list, "one of a string or an array"))
        for name in event.keys() - {field[0] for field in fields}:
            raise UnknownParameter(name)
        for name, kind, expected in fields:
            if name not in event:
                raise MissingParameter(name)
            if not isinstance(event[name], kind):
                raise InvalidType(name, expected=expected, got=json_type(event[name]))
        target, error = event["previous_response_id"], SteeringNotSupported()
        stream_id = self._streams.stream_of(target)
        return {
            "type": "response.steer.failed",
            "sequence_number": next(self._steers),
            **({"stream_id": stream_id} if stream_id else {}),
            "error": {"type": error.type, "code": error.code, "message": error.message},
            "steer": {"previous_response_id": target, "input": event["input"]},
        }

    # -- responses -----------------------------------------------------------------------------------------------------

    async def _serve(self, stream: SocketStream, request: QueuedRequest) -> None:
        """Execute one request; its errors are sent as events."""
        previous = request.values.get("previous_response_id")
        started: StartedRun | None = None
        principal: Principal | None = None
        # Each request of a connection has headers of its own, which its events carry.
        response_headers.collect()
        try:
            authorization = header(self.scope, b"authorization")
            open_requests.check(authorization)
            admission.check(admission.team_of(authorization))
            with open_requests.open_request(authorization), admission.waiting():
                principal = await self._authenticate()
                await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
                body = await off_loop(partial(parse_message, request.values))
                new = NewRequest(
                    principal=principal,
                    body=body,
                    mode=Mode.STREAM,
                    info=info_of(self.scope),
                    previous=self._streams.recall(body.previous_response_id),
                    on_socket=True,
                )
                started = await create.start_response(new)
                # The run no longer needs the parameters.
                request.release()
                stream.running = started.run.identity.response_id
                await self._send_events(stream, started)
        except ConnectionCut:
            await self._send_error(shutting_down_while_running(stream.running), stream.stream_id)
        except Exception as error:
            # As at OpenAI, a failed request evicts the previous response that it names: the client has to send the
            # whole context with its next request.
            stream.forget(previous)
            await add_headers(principal)
            await self._send_error(error, stream.stream_id)
        finally:
            stream.running = None
            if started is not None:
                started.run.detach()

    async def _send_events(self, stream: SocketStream, started: StartedRun) -> None:
        """Send the events of a run, ending with a terminal event or an error."""
        has_ended = False
        async for data in started.run.frames(self._disconnect):
            for event in _events(data):
                if event.startswith(_TERMINAL):
                    has_ended = True
                    # Before the terminal event is sent: once a client has received it, it may continue the response
                    # immediately, also on another stream.
                    await self._note_end(stream, started)
                fields: dict[str, Any] = {} if stream.stream_id is None else {"stream_id": stream.stream_id}
                # A connection has no headers for each response, so its first event carries them.
                headers = {**response_headers.added(), **warning_headers(started.run.warnings)}
                if headers and event.startswith(_CREATED):
                    fields["headers"] = headers
                await self._send(_json(event, fields))
        if not has_ended:
            # A run that was cancelled, or lost to another process, has no terminal event. HTTP streams just end then.
            await self._send_error(await self._note_end(stream, started), stream.stream_id)

    async def _note_end(self, stream: SocketStream, started: StartedRun) -> ApiError:
        """Update the stream's memory after a run; return the error to send if the run has no terminal event."""
        end = await started.run.finished()
        match end.ending.status:
            case "completed" | "incomplete":
                stream.memory = started.as_unstored()
            case "cancelled":
                pass
            case _:
                stream.forget(end.response["previous_response_id"])
        failure = end.ending.failure
        if failure is not None:
            return failure.as_api_error()
        return ServerError("The response was cancelled.")

    # -- server events -------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        # uvicorn raises if the client has disconnected. A disconnect message ends the consumer as well, so this is
        # ignored.
        with suppress(OSError):
            await self.send(text_data=data.decode())

    async def _send_error(self, error: Exception, stream_id: str | None = None) -> None:
        api_error = as_api_error(error)
        metrics.count_rejection(api_error.code, api_error.status)
        detail: dict[str, Any] = dict(api_error.detail())
        if headers := {**response_headers.added(), **api_error.headers}:
            detail["headers"] = headers
        place = {} if stream_id is None else {"stream_id": stream_id}
        await self._send(orjson.dumps({"type": "error", "status": api_error.status, **place, "error": detail}))


async def shut_down() -> None:
    """Close the connections of this process, each when its responses have ended."""
    await asyncio.gather(*(socket.shut_down() for socket in _open), return_exceptions=True)


def shutting_down_while_running(response_id: str | None) -> Overloaded:
    """Return the error of a response that another process continues."""
    return ShuttingDown(
        f"The server is shutting down, and another one continues the response. Read on with GET /v1/responses/"
        f"{response_id}?stream=true&starting_after=N.",
        headers=dict(shutting_down().headers),
    )


def parse_message(values: dict[str, Any]) -> CreateResponse:
    """Validate the parameters of a `response.create` event."""
    # `stream: true` is redundant but allowed, as OpenAI's agents SDK sends it with each request.
    if values.get("background") is not None:
        raise UnsupportedParameter("The parameter 'background' is not supported over WebSocket.", param="background")
    if values.get("stream", True) is not True and values["stream"] is not None:
        raise UnsupportedParameter(
            "The parameter 'stream' is not supported over WebSocket: every response is streamed.", param="stream"
        )
    return parse_create({**values, "stream": True})


def _events(data: bytes) -> Iterator[bytes]:
    """Split the bytes of a stream into events, without comments and `[DONE]`, which exist in HTTP streams only."""
    for event in data.split(b"\n\n"):
        if event.startswith(b"event: "):
            yield event


def _json(event: bytes, fields: dict[str, Any]) -> bytes:
    """Return the JSON of a server-sent event with additional fields."""
    # The fields are inserted into the bytes: parsing each delta and writing it again would cost much more.
    _, _, data = event.partition(b"\ndata: ")
    return data if not fields else b"%b,%b" % (data[:-1], orjson.dumps(fields)[1:])


def _check_request(scope: Scope) -> None:
    if draining.refuses:
        raise shutting_down()
    if not ENDPOINT.matches("WEBSOCKET", scope["path"]):
        raise NotFound(f"Invalid URL (GET {scope['path']})")
    check_client_request_id(scope)
