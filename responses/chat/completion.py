"""`POST /v1/chat/completions`: routed to the same upstreams, passed on as it comes, and written to the ledger.

With `store` the completion is committed together with its ledger row, before its client is told that it is over. The
platform always asks the upstream for usage; the usage-only chunk is passed on only to clients that asked for it, since
others index `choices[0]` of every chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2

from kernel.ids import new_id
from responses.chat import capabilities, stored
from responses.chat.accumulator import Folded
from responses.chat.chunks import ChunkWriter, as_chunk, frame
from responses.chat.requests import ChatRequest
from responses.engine.chat.converter import Chunk, read_usage
from responses.engine.events.types import DONE_FRAME
from responses.engine.turn import Usage
from responses.models import ChatCompletion
from responses.moderation.guardrails import reject_if_guarded
from responses.providers.chat_completions import EventLines, decode
from responses.providers.clients import UpstreamFailed, post, read_bytes
from responses.runs.ledger import RequestInfo, RoutedCall
from tenants import directory
from tenants.models import Scope
from tenants.principal import Principal


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """The upstream's completion."""
    call = await _route(principal, body, request)
    values = {**capabilities.upstream_values(body, call.route), "stream": False}
    try:
        async with post(call.route.upstream, "/chat/completions", values) as response:
            completion = await _whole(response)
    except UpstreamFailed as failed:
        await call.end(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await call.end(outcome="interrupted")
        raise
    call.seen(completion)
    kept = call.kept(completion)
    await call.end(outcome="stop", kept=kept)
    return completion if kept is None else stored.public_body(kept)


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """The upstream's events, once it has begun to answer; its errors before that are raised."""
    call = await _route(principal, body, request)
    values = {
        **capabilities.upstream_values(body, call.route),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stack = AsyncExitStack()
    try:
        response = await stack.enter_async_context(post(call.route.upstream, "/chat/completions", values))
    except UpstreamFailed as failed:
        await call.end(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await call.end(outcome="interrupted")
        raise
    return _relay(call, body, response, stack)


async def _relay(
    call: "_Call", body: ChatRequest, response: httpx2.Response, stack: AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(own_id=call.own_id, wants_usage=body.wants_usage, obfuscates=body.obfuscates)
    folded = None if call.own_id is None else Folded()
    async with stack:
        try:
            async for chunks in _chunks(response):
                for chunk in chunks:
                    call.seen(chunk)
                    if folded is not None:
                        folded.add(chunk)
                if passed := b"".join(writer.write(chunk) for chunk in chunks):
                    yield passed
            await call.end(outcome="stop", kept=None if folded is None else call.kept(folded.completion()))
            yield writer.end() + DONE_FRAME
        except UpstreamFailed as failed:
            await call.end(outcome="failed")
            yield frame({"error": failed.failure.as_api_error().detail()})
        finally:
            await call.end(outcome="interrupted")


async def _chunks(response: httpx2.Response) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of each read; a completion from an upstream that does not stream is one big chunk."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        yield [as_chunk(await _whole(response))]
        return
    lines = EventLines()
    async for piece in read_bytes(response):
        yield lines.feed(piece)
        if lines.done or lines.failure is not None:
            break
    else:
        yield lines.end()
    if lines.failure is not None:
        raise UpstreamFailed(lines.failure)


async def _whole(response: httpx2.Response) -> Chunk:
    return decode(b"".join([piece async for piece in read_bytes(response)]))


class _Call:
    """One upstream call of a chat completion, for the ledger and for what is stored.

    `own_id` is the id of a completion that is stored: those of upstreams are not unique.
    """

    def __init__(self, routed: RoutedCall, asked: ChatRequest) -> None:
        self.route = routed.route
        self.own_id = stored.completion_id() if asked.body.store else None
        self._routed = routed
        self._asked = asked
        self._chunks = 0
        self._usage: Usage | None = None
        self._id = new_id("chatcmpl")
        self._ended: asyncio.Future[None] | None = None

    def seen(self, answer: Chunk) -> None:
        """Read usage and id off a completion or a chunk."""
        self._chunks += 1
        self._id = str(answer.get("id") or self._id)
        if isinstance(usage := answer.get("usage"), dict):
            self._usage = read_usage(usage)

    def kept(self, completion: Chunk) -> ChatCompletion | None:
        """The row of the completion, where it is to be stored."""
        if self.own_id is None:
            return None
        return stored.row(self._asked, self._routed, completion_id=self.own_id, completion=completion)

    async def end(self, *, outcome: str, kept: ChatCompletion | None = None) -> None:
        """Commit what is left of the call. Only its first end counts, and it is committed even if the client leaves."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._write(outcome, kept))
        await asyncio.shield(self._ended)

    async def _write(self, outcome: str, kept: ChatCompletion | None) -> None:
        """One ledger row. Without the upstream's word a streamed chunk counts as a token."""
        usage = self._usage or Usage(output_tokens=self._chunks, estimated=True)
        beside = () if kept is None else (kept,)
        await self._routed.write(object_id=self.own_id or self._id, outcome=outcome, usage=usage, rows=beside)


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> _Call:
    principal.require(Scope.CHAT_WRITE)
    await reject_if_guarded(principal)
    route = await directory.aroute(principal, body.body.model)
    capabilities.check(body, route)
    routed = RoutedCall(principal=principal, route=route, endpoint="chat.completions", request_id=request.request_id)
    return _Call(routed, body)
