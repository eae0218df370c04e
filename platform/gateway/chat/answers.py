"""Reading of the upstream's answer to a chat completion."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, nullcontext
from typing import Any

from engine.converter.chat import Chunk
from gateway.chat.answer_check import AnswerCheck
from gateway.chat.chunks import CompletionAccumulator, as_chunk, with_valid_usage
from gateway.chat.completion_call import CompletionCall
from providers.clients import UpstreamFailed, count_invalid_event, read_bytes
from providers.event_stream import NO_JSON, EventStreamDecoder, is_streamed, read_document, usage_only
from providers.http_client import Answer
from providers.targets.time_limits import first_token_limit, limited
from tenants.directory import Route

_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def from_document(call: CompletionCall) -> Chunk:
    """Return a completion that the upstream sends as a whole; raises `UpstreamFailed`."""
    async with call.post(stream=False) as response:
        completion = with_valid_usage(await read_document(response))
    call.observe_whole(completion)
    check = call.check()
    completion = check.read_whole(completion)
    if (failure := check.end(done=False)) is not None:
        raise UpstreamFailed(failure)
    return completion


async def from_stream(call: CompletionCall) -> Chunk:
    """Return a completion that the upstream streams; raises `UpstreamFailed`."""
    accumulator = CompletionAccumulator()
    async with AsyncExitStack() as stack:
        async for chunks in observed(call, await opened(call, stack)):
            for chunk in chunks:
                accumulator.add(chunk)
    return with_valid_usage(accumulator.completion())


async def opened(call: CompletionCall, stack: AsyncExitStack) -> Answer:
    """Return the streamed answer of the present target once it has begun; raises `UpstreamFailed`."""
    async with first_token_limit(call.targets.attempts) if call.targets.has_others else nullcontext():
        return await stack.enter_async_context(call.post(**_STREAMED))


async def observed(call: CompletionCall, response: Answer) -> AsyncGenerator[list[Chunk], None]:
    """Yield the chunks of an answer with the public name of the model, and read their usage."""
    reads = _chunks(response, call.check(), route=call.route)
    async with aclosing(limited(reads, call.targets.attempts) if call.targets.has_others else reads) as reads:
        async for read in reads:
            chunks = call.named(read)
            for chunk in chunks:
                call.observe(chunk)
            yield chunks


async def _chunks(response: Answer, check: AnswerCheck, *, route: Route) -> AsyncGenerator[list[Chunk], None]:
    """Yield the chunks of each read from the network; raises `UpstreamFailed`."""
    # Some servers ignore `stream` and send a complete completion, which is treated as a single chunk.
    if not is_streamed(response):
        completion = check.read_whole(await read_document(response))
        if (failure := check.end(done=False)) is not None:
            raise UpstreamFailed(failure)
        yield [as_chunk(completion)]
        return
    lines = EventStreamDecoder(skips_invalid=True)
    try:
        async for piece in read_bytes(response):
            yield check.read_all(lines.feed(piece))
            if lines.done or lines.failure is not None or check.is_over:
                break
        else:
            yield check.read_all(lines.end())
    except UpstreamFailed:
        # A connection that breaks after the finish reason has lost at most the usage.
        if not check.is_finished:
            raise
    failure = lines.failure
    if lines.held is not None:
        count_invalid_event(route)
        if check.is_completed_by(lines.held):
            yield check.read_all(lines.held)
        else:
            yield usage_only(lines.held)
            failure = failure or NO_JSON
    yield check.read_rest()
    if (failure := failure or check.end(done=lines.done)) is not None:
        raise UpstreamFailed(failure)
