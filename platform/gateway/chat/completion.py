"""Execution of `POST /v1/chat/completions`: forwarding to an upstream, the usage record, and storage.

With `store` the completion is committed together with its usage record, before the client receives the end. The usage
is always requested from the upstream. Only clients that requested the usage get the chunk that contains only the usage,
because other clients expect `choices[0]` in every chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from engine.converter.chat import Chunk
from engine.events.types import DONE_FRAME
from gateway.chat import capabilities
from gateway.chat.answer_check import AnswerCheck
from gateway.chat.chunks import ChunkWriter, CompletionAccumulator, as_chunk, with_valid_usage
from gateway.chat.completion_call import CompletionCall
from gateway.chat.images import with_loaded_images
from gateway.chat.requests import ChatRequest
from providers.clients import UpstreamFailed, for_client, read_bytes
from providers.event_stream import EventStreamDecoder, is_streamed, read_document, unnamed_event
from providers.http_client import Answer
from responses.moderation.guardrail import reject_if_guarded
from responses.requests.targets import with_room
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import RoutedCall
from tenants import directory
from tenants.models import Scope
from tenants.principal import Principal

_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """Return the upstream's completion; raises `ApiError`."""
    call = await _route(principal, body, request)
    await call.reserve()
    await call.open()
    while True:
        try:
            async with call.post(stream=False) as response:
                completion = with_valid_usage(await read_document(response))
        except UpstreamFailed as failed:
            if call.fails_over(failed.failure):
                continue
            await call.end(outcome="failed")
            raise failed.failure.as_api_error() from failed
        except asyncio.CancelledError:
            await call.end(outcome="interrupted")
            raise
        call.observe_whole(completion)
        check = call.check()
        completion = check.read_whole(completion)
        if (failure := check.end(done=False)) is None:
            break
        if not call.fails_over(failure):
            await call.end(outcome="failed")
            raise for_client(call.route, failure).as_api_error()
    (completion,) = call.named([completion])
    row = call.row_for(completion)
    await call.end(outcome="stop", row=row)
    return completion if row is None else {**row.values["body"], "metadata": row.values["metadata"]}


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """Return the events of a completion once the upstream has begun to respond; earlier errors raise `ApiError`."""
    call = await _route(principal, body, request)
    await call.reserve()
    await call.open()
    # Opened here and not in the generator: errors before the first byte must become HTTP errors.
    stack = AsyncExitStack()
    while True:
        try:
            response = await stack.enter_async_context(call.post(**_STREAMED))
        except UpstreamFailed as failed:
            if call.fails_over(failed.failure):
                continue
            await call.end(outcome="failed")
            raise failed.failure.as_api_error() from failed
        except asyncio.CancelledError:
            await call.end(outcome="interrupted")
            raise
        return _events(call, body, response, stack)


async def _events(
    call: CompletionCall, body: ChatRequest, response: Answer | None, stack: AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    has_output = False
    async with stack:
        try:
            while True:
                writer = ChunkWriter(own_id=call.own_id, wants_usage=body.wants_usage, obfuscates=body.obfuscates)
                accumulator = None if call.own_id is None else CompletionAccumulator()
                try:
                    if response is None:
                        response = await stack.enter_async_context(call.post(**_STREAMED))
                    async for read in _chunks(response, call.check()):
                        chunks = call.named(read)
                        for chunk in chunks:
                            call.observe(chunk)
                            if accumulator is not None:
                                accumulator.add(chunk)
                        if data := b"".join(writer.write(chunk) for chunk in chunks):
                            has_output = True
                            yield data
                    break
                except UpstreamFailed as failed:
                    if has_output or not call.fails_over(failed.failure):
                        raise
                    await stack.aclose()
                    response = None
            await call.end(outcome="stop", row=None if accumulator is None else call.row_for(accumulator.completion()))
            yield writer.end() + DONE_FRAME
        except UpstreamFailed as failed:
            await call.end(outcome="failed")
            yield unnamed_event({"error": for_client(call.route, failed.failure).as_api_error().detail()})
        finally:
            # Reached without an earlier `end` if the client disconnects. The upstream bills the tokens that it has
            # generated.
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


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> CompletionCall:
    principal.require(Scope.CHAT_WRITE)
    # Guardrails check responses only. A team whose guardrail blocks content must not get around it here.
    await reject_if_guarded(principal)
    route = await directory.aroute(principal, body.body.model)
    if route.others:
        route = directory.with_affinity(route, key=body.body.prompt_cache_key or "")
        route = with_room(capabilities.supporting(body, route), body.estimate_tokens())
    capabilities.check(body, route)
    can = route.capabilities
    if any(target.capabilities.inline_images for target in route.others):
        # Every target accepts images as data URLs.
        can = replace(can, inline_images=True)
    sent = await with_loaded_images(body, team_id=principal.team_id, can=can)
    routed = RoutedCall(
        principal=principal,
        route=route,
        endpoint="chat.completions",
        request_id=request.request_id,
        end_user=body.body.safety_identifier or body.body.user or "",
        batch=request.batch,
        targets=route.targets if route.others else (),
        estimate_input=body.estimate_tokens,
    )
    return CompletionCall(routed, body, sent)
