"""Responses over a WebSocket connection: each request creates a response, whose events are sent as JSON.

The events are the same as in HTTP streams, but without the prefixes `event:` and `data:`. Errors are sent as events.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from django.conf import settings

from core.admission import open_requests
from core.admission.overload import admission
from core.errors import ApiError, Overloaded, ServerError, ShuttingDown, UnsupportedParameter, shutting_down
from core.http import response_headers
from core.http.asgi import Scope, header
from core.http.rendering import as_api_error
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut
from core.telemetry import metrics
from limits.throttle import add_headers
from responses.api.requests import info_of, warning_headers
from responses.api.socket_streams import QueuedRequest, SocketStream, SocketStreams
from responses.lifecycle import create
from responses.lifecycle.create import StartedRun
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.schema import CreateResponse, parse_create
from tenants.authentication import authenticate
from tenants.models import Scope as KeyScope
from tenants.principal import Principal

_CREATED = b"event: response.created\n"
_TERMINAL = tuple(b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed"))


async def authenticate_socket(scope: Scope) -> Principal:
    """Return the principal of a connection. Raises an API error if its key may not create responses.

    Called again for every response, because keys can be revoked while a connection is open.
    """
    principal = await authenticate(header(scope, b"authorization"))
    principal.require(KeyScope.RESPONSES_WRITE)
    return principal


class SocketSender:
    """Sends server events over a connection."""

    def __init__(self, send: Callable[..., Awaitable[None]]) -> None:
        self._send = send

    async def send(self, data: bytes) -> None:
        """Send the JSON of an event."""
        # uvicorn raises if the client has disconnected. A disconnect message ends the consumer as well, so this is
        # ignored.
        with suppress(OSError):
            await self._send(text_data=data.decode())

    async def send_error(self, error: Exception, stream_id: str | None = None) -> None:
        """Send an error as an event."""
        api_error = as_api_error(error)
        metrics.count_rejection(api_error.code, api_error.status)
        detail: dict[str, Any] = dict(api_error.detail())
        if headers := {**response_headers.added(), **api_error.headers}:
            detail["headers"] = headers
        place = {} if stream_id is None else {"stream_id": stream_id}
        await self.send(orjson.dumps({"type": "error", "status": api_error.status, **place, "error": detail}))


class SocketResponses:
    """Executes the requests of a connection. `streams` determines their order.

    `disconnect` closes the connection of a client that does not read.
    """

    def __init__(self, scope: Scope, sender: SocketSender, disconnect: Callable[[], None]) -> None:
        self._scope = scope
        self._sender = sender
        self._disconnect = disconnect
        self.streams = SocketStreams(self._serve, max_waiting_bytes=settings.MAX_BODY_BYTES)

    async def _serve(self, stream: SocketStream, request: QueuedRequest) -> None:
        """Execute one request; its errors are sent as events."""
        previous = request.values.get("previous_response_id")
        started: StartedRun | None = None
        principal: Principal | None = None
        # Each request of a connection has its own response headers, which are sent in its events.
        response_headers.collect()
        try:
            authorization = header(self._scope, b"authorization")
            open_requests.check(authorization)
            admission.check(admission.team_of(authorization))
            with open_requests.OpenRequest(authorization), admission.waiting():
                principal = await authenticate_socket(self._scope)
                await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
                body = await off_loop(partial(_parse_message, request.values))
                new = NewRequest(
                    principal=principal,
                    body=body,
                    mode=Mode.STREAM,
                    info=info_of(self._scope),
                    previous=self.streams.recall(body.previous_response_id),
                    on_socket=True,
                )
                started = await create.start_response(new)
                # The run no longer needs the parameters.
                request.release()
                stream.running = started.run.identity.response_id
                await self._send_events(stream, started)
        except ConnectionCut:
            await self._sender.send_error(_shutting_down_while_running(stream.running), stream.stream_id)
        except Exception as error:
            # Same as OpenAI: a failed request removes the previous response that it names from memory. The client has
            # to send the whole context with its next request.
            stream.forget(previous)
            await add_headers(principal)
            await self._sender.send_error(error, stream.stream_id)
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
                    # Done before the terminal event is sent, because the client may continue the response as soon as it
                    # has received the event, even on another stream.
                    await self._note_end(stream, started)
                fields: dict[str, Any] = {} if stream.stream_id is None else {"stream_id": stream.stream_id}
                # A connection has no headers for each response, so its first event carries them.
                headers = {**response_headers.added(), **warning_headers(started.run.warnings)}
                if headers and event.startswith(_CREATED):
                    fields["headers"] = headers
                await self._sender.send(_json(event, fields))
        if not has_ended:
            # A run that was cancelled, or lost to another process, has no terminal event. An HTTP stream just ends.
            await self._sender.send_error(await self._note_end(stream, started), stream.stream_id)

    async def _note_end(self, stream: SocketStream, started: StartedRun) -> ApiError:
        """Update the memory of the stream after a run. Return the error to send if the run has no terminal event."""
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


def _shutting_down_while_running(response_id: str | None) -> Overloaded:
    """Return the error of a response that another process continues."""
    return ShuttingDown(
        f"The server is shutting down, and another one continues the response. Read on with GET /v1/responses/"
        f"{response_id}?stream=true&starting_after=N.",
        headers=dict(shutting_down().headers),
    )


def _parse_message(values: dict[str, Any]) -> CreateResponse:
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
