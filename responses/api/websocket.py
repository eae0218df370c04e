"""WebSocket mode: `GET /v1/responses` with an upgrade. One connection can create many responses and gets their events.

Every text frame is one JSON object. A connection ends after an hour, as in OpenAI's API. Until then, the server sends
pings, so that idle connections stay open.

Under uvicorn a refused upgrade gets the same status and error envelope as an HTTP request. Daphne cannot send a body:
it closes the connection before accepting it, which clients see as an empty 403.
"""

import asyncio
from functools import partial
from itertools import count
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from core.admission import open_requests
from core.errors import (
    ApiError,
    ConnectionExpired,
    InvalidType,
    InvalidValue,
    MissingParameter,
    NotFound,
    SteeringNotSupported,
    UnknownParameter,
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
from core.json.large_work import note_document, off_loop, weight
from core.load.draining import draining
from core.telemetry import metrics
from limits.throttle import add_headers
from responses.api.socket_responses import SocketResponses, SocketSender, authenticate_socket
from responses.api.socket_streams import QueuedRequest, pop_stream_id
from responses.runs.reservations import OPEN_STREAM, CallReservation
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
_OPEN = metrics.OPEN_STREAMS.labels("websocket")
_open: "set[ResponseSocket]" = set()


class ResponseSocket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """Consumer of one connection; shares no state with other connections."""

    def __init__(self, *, lifetime_seconds: float = _LIFETIME_SECONDS) -> None:
        super().__init__()
        self._lifetime_seconds = lifetime_seconds
        self._expiry: asyncio.Task[None] | None = None
        self._reservation: CallReservation | None = None
        self._expired = False
        self._steers = count()
        self._connection: asyncio.Task[None] | None = None
        self._is_stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # However the connection ends, its runs are detached, as if the client of an HTTP stream had disconnected.
        self._connection = asyncio.current_task()
        self._sender = SocketSender(self.send, scope)
        self._streams = SocketResponses(scope, self._sender, self._disconnect).streams
        _OPEN.inc()
        _open.add(self)
        try:
            with open_requests.OpenRequest(header(scope, b"authorization")):
                await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_stalled:
                raise
            # uvicorn provides no function to abort a connection, but closes it when the app has ended.
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
            principal = await authenticate_socket(self.scope)
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
        """Handle a client event. Errors are sent as events, and the connection stays open."""
        if self._expired:
            return
        try:
            # Popping the text frees its memory: the server may keep the message until it receives the next one.
            await self._handle(message.pop("text", None), message.pop(RESERVATION, None))
        except Exception as error:
            await self._sender.refuse(error)

    def _disconnect(self) -> None:
        """End the connection of a client that does not read."""
        if self._connection is not None:
            self._is_stalled = True
            self._connection.cancel()

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def _reserve(self, principal: Principal) -> None:
        """Count the connection as one open stream until it ends. Its responses are not counted as streams."""
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
        await self._sender.send_error(ConnectionExpired())
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
        note_document(raw)
        event = await off_loop(partial(parse_json, raw))
        match event.pop("type", None):
            case "response.create":
                stream_id = pop_stream_id(event)
                try:
                    request = QueuedRequest(values=event, size=len(raw), weight=weight(), reservation=reservation)
                    self._streams.enqueue(stream_id, request, self.scope[SENDER])
                except ApiError as error:
                    await self._sender.refuse(error, stream_id)
            case "response.processed":
                # Codex sends this event when it has handled a response. The event has no effect here.
                pass
            case "response.steer":
                await self._sender.send(orjson.dumps(self._refused_steer(event)))
            case None:
                raise MissingParameter("type")
            case other:
                raise InvalidValue.unsupported(other, _EVENTS, param="type")

    def _refused_steer(self, event: dict[str, Any]) -> dict[str, Any]:
        # Active runs accept no further input here. The event returns the input, so that the client can send it again as
        # a new request.
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


async def shut_down() -> None:
    """Close each connection of this process when its responses have ended."""
    await asyncio.gather(*(socket.shut_down() for socket in _open), return_exceptions=True)


def _check_request(scope: Scope) -> None:
    if draining.refuses:
        raise shutting_down()
    if not ENDPOINT.matches("WEBSOCKET", scope["path"]):
        raise NotFound(f"Invalid URL (GET {scope['path']})")
    check_client_request_id(scope)
