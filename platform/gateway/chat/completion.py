"""Execution of `POST /v1/chat/completions`: forwarding to an upstream, the usage record, and storage.

With `store` the completion is committed together with its usage record, before the client receives the end. The usage
is always requested from the upstream. The chunk that contains only the usage is sent to clients that requested it, as
others expect `choices[0]` in every chunk.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

import limits
from core.ids import new_id
from engine.compaction.token_estimate import tokens
from engine.converter.base import later_usage, nested_usage
from engine.converter.chat import Chunk
from engine.events.types import DONE_FRAME
from engine.turn import Usage
from gateway.chat import capabilities, stored
from gateway.chat.answer_check import AnswerCheck
from gateway.chat.chunks import ChunkWriter, CompletionAccumulator, as_chunk, with_valid_usage
from gateway.chat.images import with_loaded_images
from gateway.chat.requests import ChatRequest
from limits import LEAST_OUTPUT, end_user_of
from limits.throttle import is_limited
from providers.clients import UpstreamFailed, for_client, read_bytes
from providers.dialects import dialect_of
from providers.event_stream import EventStreamDecoder, is_streamed, read_document, unnamed_event
from providers.http_client import Answer
from providers.upstream_errors import failure_from_error
from responses.moderation.guardrail import reject_if_guarded
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from responses.runs.rows import Row
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants import directory
from tenants.models import Scope
from tenants.principal import Principal


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """Return the upstream's completion; raises `ApiError`."""
    call = await _route(principal, body, request)
    values = {**capabilities.upstream_values(call.sent, call.route), "stream": False} | await call.reserve()
    await call.open()
    try:
        async with call.post(values) as response:
            completion = with_valid_usage(await read_document(response))
    except UpstreamFailed as failed:
        await call.end(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await call.end(outcome="interrupted")
        raise
    call.observe_whole(completion)
    check = call.check()
    completion = check.read_whole(completion)
    if (failure := check.end(done=False)) is not None:
        await call.end(outcome="failed")
        raise for_client(call.route, failure).as_api_error()
    row = call.row_for(completion)
    await call.end(outcome="stop", row=row)
    return completion if row is None else {**row.values["body"], "metadata": row.values["metadata"]}


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """Return the events of a completion once the upstream has begun to respond; earlier errors raise `ApiError`."""
    call = await _route(principal, body, request)
    values = {
        **capabilities.upstream_values(call.sent, call.route),
        "stream": True,
        "stream_options": {"include_usage": True},
    } | await call.reserve()
    await call.open()
    # Opened here and not in the generator: errors before the first byte must become HTTP errors.
    stack = AsyncExitStack()
    try:
        response = await stack.enter_async_context(call.post(values))
    except UpstreamFailed as failed:
        await call.end(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await call.end(outcome="interrupted")
        raise
    return _events(call, body, response, stack)


async def _events(
    call: "_ChatCall", body: ChatRequest, response: Answer, stack: AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(own_id=call.own_id, wants_usage=body.wants_usage, obfuscates=body.obfuscates)
    accumulator = None if call.own_id is None else CompletionAccumulator()
    async with stack:
        try:
            async for chunks in _chunks(response, call.check()):
                for chunk in chunks:
                    call.observe(chunk)
                    if accumulator is not None:
                        accumulator.add(chunk)
                if data := b"".join(writer.write(chunk) for chunk in chunks):
                    yield data
            await call.end(outcome="stop", row=None if accumulator is None else call.row_for(accumulator.completion()))
            yield writer.end() + DONE_FRAME
        except UpstreamFailed as failed:
            await call.end(outcome="failed")
            yield unnamed_event({"error": for_client(call.route, failed.failure).as_api_error().detail()})
        finally:
            # Reached without an earlier `end` when the client disconnects. The upstream bills what it has generated.
            await call.end(outcome="interrupted")


async def _chunks(response: Answer, check: AnswerCheck) -> AsyncGenerator[list[Chunk], None]:
    """Yield the chunks of each read from the network; raises `UpstreamFailed`."""
    # Some servers ignore `stream` and send a complete completion, which is treated as a single chunk.
    if not is_streamed(response):
        completion = check.read_whole(await read_document(response))
        if (failure := check.end(done=False)) is not None:
            raise UpstreamFailed(failure)
        yield [as_chunk(completion)]
        return
    lines = EventStreamDecoder()
    async for piece in read_bytes(response):
        yield check.read_all(lines.feed(piece))
        if lines.done or lines.failure is not None or check.is_over:
            break
    else:
        yield check.read_all(lines.end())
    yield check.read_rest()
    if (failure := lines.failure or check.end(done=lines.done)) is not None:
        raise UpstreamFailed(failure)


class _ChatCall:
    """Upstream call of a chat completion: collects its usage and writes its rows.

    `own_id` is the id of a stored completion, None for others. `sent` is the request with its images as data URLs.
    """

    def __init__(self, routed: RoutedCall, request: ChatRequest, sent: ChatRequest) -> None:
        self.sent = sent
        self.route = routed.route
        # Stored completions get an id from us, as the ids of different upstreams may collide.
        self.own_id = stored.completion_id() if request.body.store else None
        self._routed = routed
        self._request = request
        self._chunks = 0
        self._usage: Usage | None = None
        self._tier = ""
        self._id = new_id("chatcmpl")
        self._limit = request.body.max_completion_tokens or request.body.max_tokens
        self._ended: asyncio.Future[None] | None = None

    def post(self, values: dict[str, Any]) -> AbstractAsyncContextManager[Answer]:
        """Send the request to the upstream."""
        return self._routed.post("/chat/completions", values)

    async def reserve(self) -> dict[str, Any]:
        """Reserve the limits of the call. Return the parameter with the maximum of output, empty without one."""
        body, principal = self._request.body, self._routed.principal
        if not is_limited(principal):
            return {}
        end_user, choices = end_user_of(self._routed.end_user), body.n or 1
        given = body.max_completion_tokens or body.max_tokens
        for subject in await limits.applying(principal, end_user):
            given = min(given or sys.maxsize, subject.values.get("max_output_tokens", sys.maxsize))
        stated = None if given in {None, sys.maxsize} else given
        allowed = await self._routed.reserve(
            partial(cost_bounds.of_body, self._request.values, self.route.capabilities),
            ExpectedTokens(
                input=self._request.estimate_tokens(),
                max_output=None if stated is None else stated * choices,
                least_output=LEAST_OUTPUT * choices,
            ),
            service_tier=body.service_tier,
            is_stream=bool(body.stream),
        )
        if stated is None and allowed is not None:
            stated = max(1, allowed // choices)
        self._limit = stated or self._limit
        return {} if stated is None else {dialect_of(self.route).limit: stated}

    async def open(self) -> None:
        """Store the data for recording the call if this process dies. Nothing may be sent before."""
        await self._routed.open(self.own_id or self._id)

    def observe(self, data: Chunk) -> None:
        """Read usage and id from a completion or a chunk."""
        self._chunks += 1
        self._id = str(data.get("id") or self._id)
        if isinstance(tier := data.get("service_tier"), str):
            self._tier = tier[:40]
        self._usage = later_usage(self._usage, data.get("usage") or nested_usage(data))

    def observe_whole(self, completion: Chunk) -> None:
        """Read the same from a completion that was not streamed."""
        self.observe(completion)
        choices = completion.get("choices")
        messages = [choice.get("message") for choice in choices or () if isinstance(choice, dict)]
        if self._usage is None or not self._usage.output_tokens:
            self._chunks = tokens(*(orjson.dumps(message).decode() for message in messages))

    def check(self) -> AnswerCheck:
        """Return the check of the answer."""
        several = (self._request.body.n or 1) > 1
        return AnswerCheck(several=several, to_failure=failure_from_error, limit=self._limit)

    def row_for(self, completion: Chunk) -> Row | None:
        """Return the row of the completion; None if it is not to be stored."""
        if self.own_id is None:
            return None
        return stored.build_row(self._request, self._routed, completion_id=self.own_id, completion=completion)

    async def end(self, *, outcome: str, row: Row | None = None) -> None:
        """Commit the usage record and `row`; only the first call has an effect."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._write(outcome, row))
        # Shielded: a client that disconnects at this moment must not prevent the commit.
        await asyncio.shield(self._ended)

    async def _write(self, outcome: str, row: Row | None) -> None:
        # If the upstream has reported no usage, each streamed chunk counts as one output token.
        usage = self._usage or self._routed.unreported(output_tokens=self._chunks)
        if not (usage.input_tokens and usage.output_tokens) and self._routed.may_be_charged:
            estimate = self._routed.unreported(output_tokens=self._chunks)
            usage = replace(
                usage,
                input_tokens=usage.input_tokens or estimate.input_tokens,
                output_tokens=usage.output_tokens or estimate.output_tokens,
                estimated=True,
            )
        usage, rows = replace(usage, service_tier=self._tier), () if row is None else (row,)
        await self._routed.write(object_id=self.own_id or self._id, outcome=outcome, usage=usage, rows=rows)


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> _ChatCall:
    principal.require(Scope.CHAT_WRITE)
    # Guardrails check responses only. A team whose guardrail blocks content must not get around it here.
    await reject_if_guarded(principal)
    route = await directory.aroute(principal, body.body.model)
    capabilities.check(body, route)
    sent = await with_loaded_images(body, team_id=principal.team_id, can=route.capabilities)
    routed = RoutedCall(
        principal=principal,
        route=route,
        endpoint="chat.completions",
        request_id=request.request_id,
        end_user=body.body.safety_identifier or body.body.user or "",
        batch=request.batch,
        estimate_input=body.estimate_tokens,
    )
    return _ChatCall(routed, body, sent)
