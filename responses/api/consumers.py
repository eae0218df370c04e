"""Server-sent events: Channels consumers that stream runs and chat completions, and notice disconnects."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from django.http import QueryDict
from typing_extensions import override

from kernel.asgi import Message, Receive, Scope, Send, header, send_error
from kernel.http import as_api_error
from kernel.query import reject_unknown
from kernel.validation import parse_json
from responses import chat
from responses.api.requests import RETRIEVAL, flag, info_of, reject_unsupported, sequence_number
from responses.lifecycle import create
from responses.models import Mode
from responses.runs import follow
from responses.runs.runner import LiveRun
from responses.schema import parse_create
from tenants.authentication import authenticate
from tenants.models import Scope as KeyScope

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

    # No channel layer: these consumers only receive messages from their own connection.
    channel_layer_alias = "none"

    def __init__(self) -> None:
        super().__init__()
        self._stream: asyncio.Task[None] | None = None

    async def open(self) -> AsyncIterator[bytes]:
        """Start the work and return an iterator over the bytes of whole events; errors become HTTP errors."""
        raise NotImplementedError

    def disconnected(self) -> None:
        """Handle a disconnect of the client; the task that reads the iterator has been cancelled."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            frames = await self.open()
        except Exception as error:
            await send_error(as_api_error(error), self.send)
            return
        await self.send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        try:
            async for data in frames:
                await self.send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            # The status has been sent, so the error can only be an event, after which the stream is closed.
            detail = {"type": "error", "error": as_api_error(error).detail()}
            data = b"event: error\ndata: %b\n\n" % orjson.dumps(detail)
            await self.send({"type": "http.response.body", "body": data, "more_body": True})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class ResponseStream(EventStream):
    """`POST /v1/responses` with `stream:true`."""

    def __init__(self) -> None:
        super().__init__()
        self._run: LiveRun | None = None

    @override
    async def open(self) -> AsyncIterator[bytes]:
        principal = await authenticate(header(self.scope, b"authorization"))
        body = parse_create(parse_json(self.scope["body"]))
        arguments: dict[str, Any] = {"principal": principal, "body": body, "request": info_of(self.scope)}
        if body.background:
            # A worker executes it; this process streams the event log that the worker writes.
            queued = await create.queue_response(**arguments, mode=Mode.STREAM)
            return await follow.follow(principal=principal, response_id=queued["id"], after=-1, obfuscation=True)
        self._run = await create.create_response(**arguments, mode=Mode.STREAM)
        return self._run.frames()

    @override
    def disconnected(self) -> None:
        if self._run is not None:
            self._run.detach()


class ResponseReplay(EventStream):
    """`GET /v1/responses/{id}?stream=true`: the events after `starting_after`, then live events until the end."""

    @override
    async def open(self) -> AsyncIterator[bytes]:
        principal = await authenticate(header(self.scope, b"authorization"))
        principal.require(KeyScope.RESPONSES_READ)
        query = QueryDict(self.scope["query_string"])
        reject_unknown(query, page=False, filters=RETRIEVAL)
        # The event log contains what was sent to the first client; nothing can be included afterwards.
        reject_unsupported(query, "include", "include[]")
        return await follow.follow(
            principal=principal,
            response_id=self.scope["path"].rsplit("/", 1)[1],
            after=sequence_number(query),
            obfuscation=flag(query, "include_obfuscation", default=True),
        )

    @override
    def disconnected(self) -> None:
        """Do nothing: a run does not depend on clients that follow it."""


class ChatStream(EventStream):
    """`POST /v1/chat/completions` with `stream:true`."""

    @override
    async def open(self) -> AsyncIterator[bytes]:
        principal = await authenticate(header(self.scope, b"authorization"))
        body = chat.parse_chat(parse_json(self.scope["body"]))
        return await chat.stream(principal=principal, body=body, request=info_of(self.scope))

    @override
    def disconnected(self) -> None:
        """Do nothing: cancelling the stream's task has already closed the connection to the upstream."""
