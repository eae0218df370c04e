"""WebSocket mode: `GET /v1/responses` with an upgrade. One connection, many responses, the same events as the stream.

Every text frame is one JSON object. A connection lasts an hour at most; the servers ping it meanwhile, and an idle one
stays open. Source: section 1.1.2 of the API surface specification.

Where the server can answer an upgrade with a body (uvicorn), a refused one gets the status and the envelope that HTTP
would get; elsewhere (daphne) the connection is closed before it is accepted, which clients see as an empty 403.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from kernel.asgi import Message, Receive, Scope, Send, header, send_error
from kernel.errors import (
    ApiError,
    BadRequest,
    InvalidType,
    InvalidValue,
    MissingParameter,
    NotFound,
    Overloaded,
    UnknownParameter,
    UnsupportedParameter,
)
from kernel.http import as_api_error
from kernel.validation import json_type, parse_json
from responses.api.requests import info
from responses.api.socket_streams import Asked, Lane, Lanes, take_stream_id
from responses.lifecycle import create
from responses.lifecycle.create import StartedRun
from responses.models import Mode
from responses.schema import CreateResponse, parse_create
from tenants.authentication import authenticate
from tenants.models import Scope as KeyScope
from tenants.principal import Principal

_PATH = "/v1/responses"
_LAST_SECONDS = 60 * 60.0
_MAX_CLIENT_REQUEST_ID = 512
_CLOSED_NORMALLY = 1000
# A private range: refusals say 4000 plus the status that HTTP would have.
_REFUSED = 4000
_EVENTS = ("response.create", "response.steer")
_TERMINAL = tuple(b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed"))


class ConnectionExpired(BadRequest):
    """This connection has reached its limit of 60 minutes. Open a new one to go on."""

    default_code = "websocket_connection_limit_reached"


class ResponseSocket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One connection: its lanes, and nothing that another connection could see."""

    # No channel of the layer: these consumers are only ever spoken to by the server.
    channel_layer_alias = "none"

    def __init__(self, *, last_seconds: float = _LAST_SECONDS) -> None:
        super().__init__()
        self._lanes = Lanes(self._serve, most_waiting_bytes=settings.MAX_BODY_BYTES)
        self._last_seconds = last_seconds
        self._expiry: asyncio.Task[None] | None = None
        self._expired = False
        self._steers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """However the connection ends, its runs are left as those of a stream whose client has gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            await self._lanes.close()

    async def dispatch(self, message: Message) -> None:
        """Channels would look for stale database connections in a thread at each message; these use none."""
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def websocket_disconnect(self, _: Message) -> None:
        """The client has left; there, too, Channels would wait for a thread."""
        raise StopConsumer

    async def connect(self) -> None:
        """Let in whoever may write responses."""
        try:
            _check_request(self.scope)
            await self._authenticate()
        except Exception as error:
            await self._deny(as_api_error(error))
            return
        # Daphne leaves the header out.
        await self.accept(headers=[(b"x-request-id", self.scope["request_id"].encode())])
        self._expiry = asyncio.create_task(self._expire())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """A client event. What is wrong with it is told, and the connection goes on."""
        if self._expired:
            return
        try:
            raw = _text(text_data)
            await self._take(parse_json(raw), len(raw))
        except Exception as error:
            await self._tell_error(error)

    # -- the door ------------------------------------------------------------------------------------------------------

    async def _authenticate(self) -> Principal:
        """Asked again for every response: a connection outlives keys."""
        principal = await authenticate(header(self.scope, b"authorization"))
        principal.require(KeyScope.RESPONSES_WRITE)
        return principal

    async def _deny(self, error: ApiError) -> None:
        if "websocket.http.response" not in (self.scope.get("extensions") or {}):
            await self.close(code=_REFUSED + error.status)
            return
        error.headers["x-request-id"] = self.scope["request_id"]
        await send_error(error, self._send_denial)

    async def _send_denial(self, message: Message) -> None:
        await self.base_send({**message, "type": f"websocket.{message['type']}"})

    async def _expire(self) -> None:
        await asyncio.sleep(self._last_seconds)
        self._expired = True
        await self._lanes.close()
        await self._tell_error(ConnectionExpired())
        await self.close(code=_CLOSED_NORMALLY)

    # -- client events -------------------------------------------------------------------------------------------------

    async def _take(self, event: dict[str, Any], size: int) -> None:
        match event.pop("type", None):
            case "response.create":
                await self._ask(event, size)
            case "response.steer":
                await self._tell(orjson.dumps(self._refused_steer(event)))
            case None:
                raise MissingParameter("type")
            case other:
                raise InvalidValue.unsupported(other, _EVENTS, param="type")

    async def _ask(self, values: dict[str, Any], size: int) -> None:
        stream_id = take_stream_id(values)
        try:
            self._lanes.ask(stream_id, Asked(values=values, size=size))
        except ApiError as error:
            await self._tell_error(error, stream_id)

    def _refused_steer(self, event: dict[str, Any]) -> dict[str, Any]:
        """Runs of this server cannot be steered; the client gets its input back, to send it as a new request."""
        _check_steer(event)
        target = event["previous_response_id"]
        stream_id = self._lanes.stream_of(target)
        return {
            "type": "response.steer.failed",
            "sequence_number": next(self._steers),
            **({"stream_id": stream_id} if stream_id else {}),
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "This server does not support steering. Send the input with a new 'response.create'.",
            },
            "steer": {"previous_response_id": target, "input": event["input"]},
        }

    # -- responses -----------------------------------------------------------------------------------------------------

    async def _serve(self, lane: Lane, values: dict[str, Any]) -> None:
        """Play one response. A request that fails, before or after it became one, costs the lane the parent that it
        named: the client has to send it whole."""
        started: StartedRun | None = None
        try:
            started = await self._start(values)
            lane.running = started.run.identity.response_id
            await self._play(lane, started)
        except Exception as error:
            lane.forget(values.get("previous_response_id"))
            await self._tell_error(error, lane.stream_id)
        finally:
            lane.running = None
            if started is not None:
                started.run.detach()

    async def _start(self, values: dict[str, Any]) -> StartedRun:
        principal = await self._authenticate()
        body = parse_message(values)
        return await create.start_response(
            principal=principal,
            body=body,
            mode=Mode.STREAM,
            request=info(self.scope),
            previous=self._lanes.recall(body.previous_response_id),
        )

    async def _play(self, lane: Lane, started: StartedRun) -> None:
        """Send the events of a run. A run that was cancelled, or lost to another process, has no last event: since the
        connection does not end with it, the client is told in an error."""
        has_ended = False
        async for data in started.run.frames():
            for event in _events(data):
                if event.startswith(_TERMINAL):
                    has_ended = True
                    await self._settle(lane, started)
                await self._tell(_json(event, lane.stream_id))
        if not has_ended:
            await self._tell_error(await self._settle(lane, started), lane.stream_id)

    async def _settle(self, lane: Lane, started: StartedRun) -> ApiError:
        """Bring the lane's memory up to date, before the last event: whoever has read that may go on at once, on
        another lane, too. What is returned says why the run has ended, if no event does."""
        end = await started.run.finished()
        match end.ending.status:
            case "completed" | "incomplete":
                lane.memory = started.as_unstored()
            case "cancelled":
                # Its client is here, so it is this process that ends: what waits must not begin any more.
                self._lanes.stop()
            case _:
                lane.forget(end.response["previous_response_id"])
        failure = end.ending.failure
        return failure.as_api_error() if failure else Overloaded("The response was cancelled: the server is stopping.")

    # -- server events -------------------------------------------------------------------------------------------------

    async def _tell(self, data: bytes) -> None:
        # uvicorn raises when the client has gone; that the connection is over comes as an event of its own.
        with suppress(OSError):
            await self.send(text_data=data.decode())

    async def _tell_error(self, error: Exception, stream_id: str | None = None) -> None:
        await self._tell(orjson.dumps(_error_event(as_api_error(error), stream_id)))


def parse_message(values: dict[str, Any]) -> CreateResponse:
    """The body of a `response.create`.

    `stream: true` says what happens anyway, and clients send it (OpenAI's agents SDK does, with each request).
    """
    if values.get("background") is not None:
        raise UnsupportedParameter("The parameter 'background' is not supported over WebSocket.", param="background")
    if values.get("stream", True) is not True and values["stream"] is not None:
        message = "The parameter 'stream' is not supported over WebSocket: every response is streamed."
        raise UnsupportedParameter(message, param="stream")
    return parse_create({**values, "stream": True})


def _events(data: bytes) -> Iterator[bytes]:
    """The events in the bytes of a stream; comments and `[DONE]` are for server-sent events only."""
    for event in data.split(b"\n\n"):
        if event.startswith(b"event: "):
            yield event


def _json(event: bytes, stream_id: str | None) -> bytes:
    """The JSON of a server-sent event, with the name of its lane."""
    _, _, data = event.partition(b"\ndata: ")
    # A valid name needs no escaping.
    return data if stream_id is None else b'%b,"stream_id":"%b"}' % (data[:-1], stream_id.encode())


def _error_event(error: ApiError, stream_id: str | None) -> dict[str, Any]:
    detail: dict[str, Any] = dict(error.detail())
    if error.headers:
        detail["headers"] = error.headers
    lane = {} if stream_id is None else {"stream_id": stream_id}
    return {"type": "error", "status": error.status, **lane, "error": detail}


def _check_request(scope: Scope) -> None:
    if scope["path"] != _PATH:
        raise NotFound(f"Invalid URL (GET {scope['path']})")
    given = header(scope, b"x-client-request-id")
    if len(given) > _MAX_CLIENT_REQUEST_ID or not given.isascii():
        message = f"Invalid 'X-Client-Request-Id': expected at most {_MAX_CLIENT_REQUEST_ID} ASCII characters."
        raise BadRequest(message, param="X-Client-Request-Id", code="invalid_value")


def _text(text_data: str | None) -> bytes:
    if text_data is None:
        raise BadRequest("Expected a text frame with a JSON object, but got a binary frame.", code="invalid_type")
    return text_data.encode()


def _check_steer(event: dict[str, Any]) -> None:
    fields = (("previous_response_id", str, "a string"), ("input", str | list, "one of a string or an array"))
    for name in event.keys() - {field[0] for field in fields}:
        raise UnknownParameter(name)
    for name, kind, expected in fields:
        if name not in event:
            raise MissingParameter(name)
        if not isinstance(event[name], kind):
            raise InvalidType(name, expected=expected, got=json_type(event[name]))
