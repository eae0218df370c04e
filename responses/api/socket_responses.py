"""Responses over a WebSocket connection: each request creates a response, whose events are sent as JSON.

The events are the same as in HTTP streams, but without the prefixes `event:` and `data:`. Errors are sent as events.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from django.conf import settings

from core.admission import open_requests
from core.admission.overload import admission
from core.errors import (
    ApiError,
    Overloaded,
    ServerError,
    ShuttingDown,
    shutting_down,
)
from core.http import response_headers
from core.http.asgi import REFUSE, Scope, header
from core.http.rendering import as_api_error, note_refusal
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut
from core.origin import origin, use_own_caller
from limits.throttle import add_headers
from responses.api.requests import info_of, warning_headers
from responses.api.socket_repetitions import pop_key, recorded_error, recording_of
from responses.api.socket_streams import QueuedRequest, SocketStream, SocketStreams, parse_message
from responses.lifecycle import create
from responses.lifecycle.create import StartedRun
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.runs.identity import RequestInfo
from tenants.authentication import authenticate
from tenants.models import Scope as KeyScope
from tenants.principal import Principal

_CREATED = b"event: response.created\n"
_ERROR = b"event: error\n"
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

    def __init__(self, send: Callable[..., Awaitable[None]], scope: Scope) -> None:
        self._send = send
        self._refuse: Callable[[int], None] | None = scope.get(REFUSE)

    async def send(self, data: bytes) -> None:
        """Send the JSON of an event."""
        # uvicorn raises if the client has disconnected. A disconnect message ends the consumer as well, so this is
        # ignored.
        with suppress(OSError):
            await self._send(text_data=data.decode())

    async def send_error(self, error: Exception, stream_id: str | None = None) -> None:
        """Send an error as an event."""
        api_error = as_api_error(error)
        note_refusal(api_error)
        detail: dict[str, Any] = dict(api_error.detail())
        if headers := {**response_headers.added(), **api_error.headers}:
            detail["headers"] = headers
        place = {} if stream_id is None else {"stream_id": stream_id}
        await self.send(orjson.dumps({"type": "error", "status": api_error.status, **place, "error": detail}))

    async def refuse(self, error: Exception, stream_id: str | None = None) -> None:
        """Send the error of a request that has not started a run, and list the request as refused."""
        api_error = as_api_error(error)
        await self.send_error(api_error, stream_id)
        self.note_refused(api_error.status)

    def note_refused(self, status: int) -> None:
        """List the request as refused with a status."""
        if self._refuse is not None:
            self._refuse(status)


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
        """Execute one request with a caller of its own for logs and lists, because others run at the same time."""
        connection = origin().caller
        with use_own_caller(self._scope["request_id"], team_id=connection.team_id, key_id=connection.key_id):
            await self._execute(stream, request)
            own = origin().caller
        # The line of the connection in the access log has the latest error.
        if own.code:
            connection.code, connection.message = own.code, own.message

    async def _execute(self, stream: SocketStream, request: QueuedRequest) -> None:
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
                if (key := pop_key(request.values)) is not None:
                    await self._serve_once(stream, request, principal, key)
                    return
                started = await self._start(stream, request, principal, info_of(self._scope))
                await self._send_events(stream, started.run.frames(self._disconnect), started)
        except ConnectionCut:
            await self._send_failure(_shutting_down_while_running(stream.running), stream)
        except Exception as error:
            # Same as OpenAI: a failed request removes the previous response that it names from memory. The client has
            # to send the whole context with its next request.
            stream.forget(previous)
            await add_headers(principal)
            await self._send_failure(error, stream)
        finally:
            stream.running = None
            if started is not None:
                started.run.detach()

    async def _send_failure(self, error: Exception, stream: SocketStream) -> None:
        """Send the error of a request, which is refused unless its run has started."""
        send = self._sender.refuse if stream.running is None else self._sender.send_error
        await send(error, stream.stream_id)

    async def _start(
        self, stream: SocketStream, request: QueuedRequest, principal: Principal, info: RequestInfo
    ) -> StartedRun:
        """Start the run of a request."""
        body = await off_loop(partial(parse_message, request.values))
        new = NewRequest(
            principal=principal,
            body=body,
            mode=Mode.STREAM,
            info=info,
            previous=self.streams.recall(body.previous_response_id),
            on_socket=True,
        )
        started = await create.start_response(new)
        # The run no longer needs the parameters.
        request.release()
        stream.running = started.run.identity.response_id
        return started

    async def _serve_once(self, stream: SocketStream, request: QueuedRequest, principal: Principal, key: str) -> None:
        """Serve a request with an idempotency key: execute it, or send the events of its first execution."""
        own: list[StartedRun] = []

        async def start(info: RequestInfo) -> StartedRun:
            own.append(await self._start(stream, request, principal, info))
            return own[0]

        recording = await recording_of(self._scope, principal, request.values, key, start)
        if recording.status != HTTPStatus.OK:
            await self._sender.send(await recorded_error(recording, stream.stream_id))
            self._sender.note_refused(recording.status or ServerError.status)
            return
        await self._send_events(stream, recording.body(), own[0] if own else None)

    async def _send_events(
        self, stream: SocketStream, frames: AsyncIterator[bytes], started: StartedRun | None
    ) -> None:
        """Send the events of a run, ending with a terminal event or an error.

        `started` is None for the events of a run that an earlier request with the same idempotency key has started.
        """
        has_ended = False
        warnings = {} if started is None else warning_headers(started.run.warnings)
        async for data in frames:
            for event in _events(data):
                if event.startswith(_TERMINAL):
                    has_ended = True
                    # Done before the terminal event is sent, because the client may continue the response as soon as it
                    # has received the event, even on another stream.
                    await self._note_end(stream, started)
                has_ended = has_ended or event.startswith(_ERROR)
                fields: dict[str, Any] = {} if stream.stream_id is None else {"stream_id": stream.stream_id}
                # A connection has no headers for each response, so its first event carries them.
                headers = {**response_headers.added(), **warnings}
                if headers and event.startswith(_CREATED):
                    fields["headers"] = headers
                await self._sender.send(_json(event, fields))
        if not has_ended:
            # A run that was cancelled, or lost to another process, has no terminal event. An HTTP stream just ends.
            await self._sender.send_error(await self._note_end(stream, started), stream.stream_id)

    async def _note_end(self, stream: SocketStream, started: StartedRun | None) -> ApiError:
        """Update the memory of the stream after a run. Return the error to send if the run has no terminal event."""
        if started is None:
            return ServerError()
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
