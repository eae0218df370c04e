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

from core.errors import Failure, UpstreamError
from engine.continuation import Diverged
from engine.events.types import DONE_FRAME
from gateway.chat import answers, capabilities
from gateway.chat.chunks import ChunkWriter, CompletionAccumulator
from gateway.chat.completion_call import CompletionCall
from gateway.chat.continued_chunks import SentChunks
from gateway.chat.images import with_loaded_images
from gateway.chat.requests import ChatRequest
from providers.clients import UpstreamFailed, for_client
from providers.event_stream import unnamed_event
from providers.http_client import Answer
from responses.moderation.guardrail import reject_if_guarded
from responses.requests.targets import with_room
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import RoutedCall
from tenants import directory
from tenants.models import Scope
from tenants.principal import Principal


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """Return the upstream's completion; raises `ApiError`."""
    call = await _route(principal, body, request)
    await call.reserve()
    await call.open()
    while True:
        try:
            # Streamed while another target is left, so that a server that does not begin to answer is noticed. Audio is
            # streamed in other formats only.
            await call.targets.choose()
            is_streamed = call.targets.has_others and body.body.audio is None
            completion = await (answers.from_stream(call) if is_streamed else answers.from_document(call))
        except UpstreamFailed as failed:
            if await call.fails_over(failed):
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


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """Return the events of a completion once the upstream has begun to respond; earlier errors raise `ApiError`."""
    call = await _route(principal, body, request)
    await call.reserve()
    await call.open()
    # Opened here and not in the generator: errors before the first byte must become HTTP errors.
    stack = AsyncExitStack()
    while True:
        try:
            await call.targets.choose()
            response = await answers.opened(call, stack)
        except UpstreamFailed as failed:
            if await call.fails_over(failed):
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
    cut: UpstreamFailed | None = None
    async with stack:
        try:
            while True:
                writer = ChunkWriter(own_id=call.own_id, wants_usage=body.wants_usage, obfuscates=body.obfuscates)
                if sent.is_empty:
                    accumulator = None if call.own_id is None else CompletionAccumulator()
                continuation = call.targets.continuation(sent)
                try:
                    if response is None:
                        response = await answers.opened(call, stack)
                    async for read in answers.observed(call, response):
                        chunks = read if continuation is None else continuation.read(read)
                        for chunk in chunks:
                            if call.targets.queue is not None:
                                sent.follow(chunk)
                            if accumulator is not None:
                                accumulator.add(chunk)
                        if data := b"".join(writer.write(chunk) for chunk in chunks):
                            yield data
                    break
                except UpstreamFailed as failed:
                    cut = failed
                    if not await call.fails_over(cut, sent_text=sent.text, can_continue=sent.can_continue):
                        raise
                except Diverged as error:
                    # The client gets the error of the answer that was cut, as it did not ask for another text.
                    cut = cut or UpstreamFailed(Failure.of(UpstreamError()))
                    if not await call.fails_over(cut, sent_text=sent.text, is_answered=True):
                        raise cut from error
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


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> CompletionCall:
    principal.require(Scope.CHAT_WRITE)
    # Guardrails check responses only. A team whose guardrail blocks content must not get around it here.
    await reject_if_guarded(principal)
    tier, metadata = body.body.service_tier, body.body.metadata
    route = await directory.aroute(
        principal, body.body.model, is_flex=request.batch, service_tier=tier, metadata=metadata
    )
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
