"""Server-sent events: Channels consumers that stream runs and chat completions, and notice disconnects."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from django.http import QueryDict
from typing_extensions import override

from kernel import asgi
from kernel.asgi import Message, Receive, Send, header, send_error
from kernel.endpoints import Endpoint
from kernel.errors import ApiError, UnsupportedParameter
from kernel.http import as_api_error
from responses import chat
from responses.api.requests import Replay, info_of, warning_headers
from responses.chat.requests import ChatRequest
from responses.lifecycle import create
from responses.models import Mode
from responses.runs import follow
from responses.runs.runner import LiveRun
from responses.schema import CreateResponse
from tenants.authentication import authenticate
from tenants.models import Scope
from tenants.principal import Principal

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # nginx would otherwise collect events before it passes them on.
    (b"x-accel-buffering", b"no"),
]


class EventStream(AsyncHttpConsumer):
    """Consumer that responds with server-sent events.

    The stream is sent by its own task while the consumer keeps receiving messages: `AsyncHttpConsumer.handle` would not
    notice a disconnect before it returns. Errors before the first byte become ordinary HTTP errors.
    """

    def __init__(self, *, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self.headers: dict[str, str] = {}
        self._stream: asyncio.Task[None] | None = None

    async def open(self, principal: Principal, **arguments: Any) -> AsyncIterator[bytes]:
        """Start the work and return an iterator over the bytes of whole events; errors become HTTP errors.

        `arguments` are those of the endpoint's handler.
        """
        raise NotImplementedError

    def disconnected(self) -> None:
        """Handle a disconnect of the client; the task that reads the iterator has been cancelled.

        A followed run does not depend on its client. Cancelling the task closes the connection of a completion.
        """

    def error_frame(self, error: ApiError) -> bytes:
        """Return the event for an error after the first byte."""
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error.detail()})

    async def __call__(self, scope: asgi.Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        await super().__call__(scope, self._next_message, send)

    async def dispatch(self, message: Message) -> None:
        # Channels checks for stale database connections in a thread for each message. These consumers use none.
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def http_request(self, _: Message) -> None:
        """Start the stream; `ApiShell` has already read the whole body."""
        self._stream = asyncio.create_task(self._send_stream())

    async def http_disconnect(self, _: Message) -> None:
        """Stop the stream of a client that disconnected before the end."""
        if self._stream is not None:
            self._stream.cancel()
        self.disconnected()
        raise StopConsumer

    async def stream_finished(self, _: Message) -> None:
        """End the consumer after a complete stream."""
        raise StopConsumer

    async def _next_message(self) -> Message:
        """Return the server's next message, or `stream.finished` when the stream has ended."""
        if self._stream is None:
            return await self._receive()
        message = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({message, self._stream}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "stream.finished"}
        finally:
            message.cancel()

    async def _send_stream(self) -> None:
        try:
            principal = await authenticate(header(self.scope, b"authorization"))
            principal.require(Scope(self._endpoint.scope))
            ids = self._endpoint.read_ids(self.scope["path"])
            arguments = self._endpoint.arguments(QueryDict(self.scope["query_string"]), self.scope["body"])
            frames = await self.open(principal, **ids, **arguments)
        except Exception as error:
            await send_error(as_api_error(error), self.send)
            return
        headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in self.headers.items())]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for data in frames:
                await self.send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            # The status has been sent, so the error can only be an event, after which the stream is closed.
            data = self.error_frame(as_api_error(error))
            await self.send({"type": "http.response.body", "body": data, "more_body": True})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class ResponseStream(EventStream):
    """`POST /v1/responses` with `stream:true`."""

    _run: LiveRun | None = None

    @override
    async def open(self, principal: Principal, body: CreateResponse) -> AsyncIterator[bytes]:  # type: ignore[override]
        request = info_of(self.scope)
        if body.background:
            # A worker executes it; this process streams the event log that the worker writes.
            queued = await create.queue_response(principal=principal, body=body, request=request, mode=Mode.STREAM)
            self.headers |= warning_headers(queued.warnings)
            return await follow.follow(principal=principal, response_id=queued.body["id"], after=-1, obfuscation=True)
        self._run = await create.create_response(principal=principal, body=body, request=request, mode=Mode.STREAM)
        self.headers |= warning_headers(self._run.warnings)
        return self._run.frames()

    @override
    def disconnected(self) -> None:
        if self._run is not None:
            self._run.detach()


class ResponseReplay(EventStream):
    """`GET /v1/responses/{id}?stream=true`: the events after `starting_after`, then live events until the end."""

    @override
    async def open(  # type: ignore[override]
        self, principal: Principal, response_id: str, include: frozenset[str], replay: Replay
    ) -> AsyncIterator[bytes]:
        # The event log contains what was sent to the first client; nothing can be included afterwards.
        if include:
            name = "include" if b"include=" in self.scope["query_string"] else "include[]"
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)
        return await follow.follow(
            principal=principal,
            response_id=response_id,
            after=replay.after,
            obfuscation=replay.obfuscation,
        )


class ChatStream(EventStream):
    """`POST /v1/chat/completions` with `stream:true`."""

    @override
    async def open(self, principal: Principal, body: ChatRequest) -> AsyncIterator[bytes]:  # type: ignore[override]
        return await chat.stream(principal=principal, body=body, request=info_of(self.scope))
