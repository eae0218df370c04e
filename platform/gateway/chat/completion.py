"""Execution of `POST /v1/chat/completions`: forwarding to an upstream, the usage record, and storage.

With `store` the completion is committed together with its usage record, before the client receives the end. The usage
is always requested from the upstream. Only clients that requested the usage get the chunk that contains only the usage,
because other clients expect `choices[0]` in every chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import replace
from typing import Any

from core.errors import Failure, UpstreamError
from engine.continuation import Diverged
from engine.converter.chat import Chunk
from engine.events.types import DONE_FRAME
from gateway.chat import capabilities
from gateway.chat.answer_check import AnswerCheck
from gateway.chat.chunks import ChunkWriter, CompletionAccumulator, as_chunk, with_valid_usage
from gateway.chat.completion_call import CompletionCall
from gateway.chat.continued_chunks import SentChunks
from gateway.chat.images import with_loaded_images
from gateway.chat.requests import ChatRequest
from providers.clients import UpstreamFailed, for_client, read_bytes
from providers.event_stream import EventStreamDecoder, is_streamed, read_document, unnamed_event
from providers.http_client import Answer
from providers.time_limits import first_token_limit, limited
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
            # Streamed while another target is left, so that a server that does not begin to answer is noticed. Audio is
            # streamed in other formats only.
            whole = _from_stream(call) if call.has_others and body.body.audio is None else _from_document(call)
            completion = await whole
        except UpstreamFailed as failed:
            if call.fails_over(failed.failure):
                continue
            await call.end(outcome="failed")
            raise for_client(call.route, failed.failure).as_api_error() from failed
        except asyncio.CancelledError:
            await call.end(outcome="interrupted")
            raise
        break
    (completion,) = call.named([completion])
    row = call.row_for(completion)
    await call.end(outcome="stop", row=row)
    return completion if row is None else {**row.values["body"], "metadata": row.values["metadata"]}


async def _from_document(call: CompletionCall) -> Chunk:
    """Return a completion that the upstream sends as a whole; raises `UpstreamFailed`."""
    async with call.post(stream=False) as response:
        completion = with_valid_usage(await read_document(response))
    call.observe_whole(completion)
    check = call.check()
    completion = check.read_whole(completion)
    if (failure := check.end(done=False)) is not None:
        raise UpstreamFailed(failure)
    return completion


async def _from_stream(call: CompletionCall) -> Chunk:
    """Return a completion that the upstream streams; raises `UpstreamFailed`."""
    accumulator = CompletionAccumulator()
    async with AsyncExitStack() as stack:
        async for chunks in _observed(call, await _opened(call, stack)):
            for chunk in chunks:
                accumulator.add(chunk)
    return with_valid_usage(accumulator.completion())


async def _opened(call: CompletionCall, stack: AsyncExitStack) -> Answer:
    """Return the streamed answer of the present target once it has begun; raises `UpstreamFailed`."""
    async with first_token_limit(call.attempts) if call.has_others else nullcontext():
        return await stack.enter_async_context(call.post(**_STREAMED))


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """Return the events of a completion once the upstream has begun to respond; earlier errors raise `ApiError`."""
    call = await _route(principal, body, request)
    await call.reserve()
    await call.open()
    # Opened here and not in the generator: errors before the first byte must become HTTP errors.
    stack = AsyncExitStack()
    while True:
        try:
            response = await _opened(call, stack)
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
    sent, accumulator = SentChunks(several=(body.body.n or 1) > 1), None
    # Of the first answer that was cut. Another answer that is no continuation does not explain it.
    failure = Failure.of(UpstreamError())
    async with stack:
        try:
            while True:
                writer = ChunkWriter(own_id=call.own_id, wants_usage=body.wants_usage, obfuscates=body.obfuscates)
                if sent.is_empty:
                    accumulator = None if call.own_id is None else CompletionAccumulator()
                continuation = call.continuation(sent)
                try:
                    if response is None:
                        response = await _opened(call, stack)
                    async for read in _observed(call, response):
                        chunks = read if continuation is None else continuation.read(read)
                        for chunk in chunks:
                            if call.has_others:
                                sent.follow(chunk)
                            if accumulator is not None:
                                accumulator.add(chunk)
                        if data := b"".join(writer.write(chunk) for chunk in chunks):
                            yield data
                    break
                except (UpstreamFailed, Diverged) as error:
                    if isinstance(error, UpstreamFailed):
                        failure = error.failure
                    if not (sent.can_continue and call.fails_over(failure)):
                        raise UpstreamFailed(failure) from error
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


async def _observed(call: CompletionCall, response: Answer) -> AsyncGenerator[list[Chunk], None]:
    """Yield the chunks of an answer with the public name of the model, and read their usage."""
    reads = _chunks(response, call.check())
    async with aclosing(limited(reads, call.attempts) if call.has_others else reads) as reads:
        async for read in reads:
            chunks = call.named(read)
            for chunk in chunks:
                call.observe(chunk)
            yield chunks


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
