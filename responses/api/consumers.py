"""The streams: Channels consumers that send what a run (or a chat completion) yields, and notice who goes away."""

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
from responses.api.requests import RETRIEVAL, flag, info, refuse_unsupported, sequence_number
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
    (b"x-accel-buffering", b"no"),
]


class EventStream(AsyncHttpConsumer):
    """Answers a request with server-sent events.

    `AsyncHttpConsumer.handle` would not hear of a disconnect before it returned, so the stream is a task of its own and
    the consumer goes on dispatching. Errors before the first byte are ordinary HTTP errors.
    """

    # No channel of the layer: these consumers are only ever spoken to by the server.
    channel_layer_alias = "none"

    def __init__(self) -> None:
        super().__init__()
        self._stream: asyncio.Task[None] | None = None

    async def open(self) -> AsyncIterator[bytes]:
        """Begin the work; what is returned yields the bytes of whole events. Errors raised here become HTTP errors."""
        raise NotImplementedError

    def gone(self) -> None:
        """The client has left."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        await super().__call__(scope, self._next_message, send)

    async def dispatch(self, message: Message) -> None:
        """Channels would look for stale database connections in a thread at each message; these use none."""
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def http_request(self, _: Message) -> None:
        """The shell has read the whole body: start the stream and go on listening."""
        self._stream = asyncio.create_task(self._send_stream())

    async def http_disconnect(self, _: Message) -> None:
        """The client has left before the end."""
        if self._stream is not None:
            self._stream.cancel()
        self.gone()
        raise StopConsumer

    async def stream_finished(self, _: Message) -> None:
        """Everything was sent."""
        raise StopConsumer

    async def _next_message(self) -> Message:
        """What the server says next, or the end of the stream, whichever comes first."""
        if self._stream is None:
            return await self._receive()
        heard = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({heard, self._stream}, return_when=asyncio.FIRST_COMPLETED)
            return heard.result() if heard.done() else {"type": "stream.finished"}
        finally:
            heard.cancel()

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
            # The status is out: an event is all that can still be said, and the client must not wait for more.
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
        asked: dict[str, Any] = {"principal": principal, "body": body, "request": info(self.scope)}
        if body.background:
            queued = await create.queue_response(**asked, mode=Mode.STREAM)
            return await follow.follow(principal=principal, response_id=queued["id"], after=-1, obfuscation=True)
        self._run = await create.create_response(**asked, mode=Mode.STREAM)
        return self._run.frames()

    @override
    def gone(self) -> None:
        if self._run is not None:
            self._run.detach()


class ResponseReplay(EventStream):
    """`GET /v1/responses/{id}?stream=true`: the events after `starting_after`, and then live to the end."""

    @override
    async def open(self) -> AsyncIterator[bytes]:
        principal = await authenticate(header(self.scope, b"authorization"))
        principal.require(KeyScope.RESPONSES_READ)
        query = QueryDict(self.scope["query_string"])
        reject_unknown(query, page=False, filters=RETRIEVAL)
        # The log holds what was sent; nothing can be added to it.
        refuse_unsupported(query, "include", "include[]")
        return await follow.follow(
            principal=principal,
            response_id=self.scope["path"].rsplit("/", 1)[1],
            after=sequence_number(query),
            obfuscation=flag(query, "include_obfuscation", default=True),
        )

    @override
    def gone(self) -> None:
        """Followers come and go; the run does not mind."""


class ChatStream(EventStream):
    """`POST /v1/chat/completions` with `stream:true`."""

    @override
    async def open(self) -> AsyncIterator[bytes]:
        principal = await authenticate(header(self.scope, b"authorization"))
        body = chat.parse_chat(parse_json(self.scope["body"]))
        return await chat.stream(principal=principal, body=body, request=info(self.scope))

    @override
    def gone(self) -> None:
        """Cancelling the task that reads the upstream has closed its connection already."""
