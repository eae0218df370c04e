"""Test of the targets of a route with real requests, before it is stored. Nothing is stored.

The checks of all targets run concurrently, each with a time limit. A failed check has the text of the server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from conversations.items.messages import InputMessage
from core.clock import now
from engine.turn import FunctionTool, Sampling, TurnRequest
from providers import chat_completions, responses_api
from providers.clients import PostOptions, UpstreamFailed, post, read_piece
from providers.event_stream import Chunk, EventStreamDecoder, check_chunk, check_event, is_streamed, read_document
from providers.http_client import Answer
from routing import price_catalog
from routing.upstream_check import error_words, list_models
from tenants.directory import Route, UpstreamEndpoint

CHECK_SECONDS = 20
"""Maximum duration of a check."""
MAX_TOKENS = 256
"""Maximum number of output tokens of a call: models that reason need some before they call a tool."""

_TOOL = FunctionTool(
    name="add_numbers",
    description="Add two numbers.",
    parameters={
        "type": "object",
        "properties": {"first": {"type": "number"}, "second": {"type": "number"}},
        "required": ["first", "second"],
    },
)
_TOOL_PROMPT = "Use the tool add_numbers to add 2 and 3."
_TEXT_PROMPT = "Say hello in one word."


class Result(StrEnum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of a target. `took_ms` is None for a check without a request."""

    name: str
    result: Result
    text: str = ""
    took_ms: int | None = None


async def check_targets(targets: Sequence[Route], *, seconds: float = CHECK_SECONDS) -> list[list[Check]]:
    """Return the checks of each target: connection, model, price, tools and streaming.

    A check without an answer within these seconds fails.
    """
    return list(await asyncio.gather(*(_check_target(target, seconds) for target in targets)))


async def _check_target(target: Route, seconds: float) -> list[Check]:
    if target.upstream_model == "*":
        connection, *_ = await _check_list(target, seconds)
        text = "Enter a model at the upstream to test it: this target serves any name."
        return [connection, Check(name="Model", result=Result.SKIPPED, text=text)]
    listed, tools, streaming = await asyncio.gather(
        _check_list(target, seconds),
        _measured("Tools", target, _call_tool, seconds=seconds),
        _measured("Streaming", target, _stream, seconds=seconds),
    )
    return [*listed, _check_price(target), tools, streaming]


async def _check_list(target: Route, seconds: float) -> list[Check]:
    """Return whether the server answers, and whether it lists the model."""
    models: Sequence[str] = ()

    async def read(target: Route) -> str:
        nonlocal models
        models = [entry["id"] for entry in await list_models(target.upstream)]
        return f"{len(models):,} model{'s' if len(models) != 1 else ''} listed"

    connection = await _measured("Connection", target, read, seconds=seconds)
    if connection.result is Result.FAILED:
        return [connection, Check(name="Model listed", result=Result.SKIPPED, text="The server has listed no models.")]
    if target.upstream_model in models:
        return [connection, Check(name="Model listed", result=Result.PASSED)]
    return [
        connection,
        Check(
            name="Model listed", result=Result.FAILED, text=f"{target.upstream_model} is not among the listed models."
        ),
    ]


def _check_price(target: Route) -> Check:
    if target.prices:
        return Check(name="Price", result=Result.PASSED, text="stored")
    if price_catalog.find(target.upstream.base_url, target.upstream_model, at=now()):
        return Check(name="Price", result=Result.PASSED, text="published")
    text = "No price is known: the cost of its requests is not recorded, and hard budgets cannot reserve it."
    return Check(name="Price", result=Result.FAILED, text=text)


async def _measured(name: str, target: Route, check: Callable[[Route], Awaitable[str]], *, seconds: float) -> Check:
    """Run a check that returns a text and raises `_Missing` or `UpstreamFailed`."""
    began, result = time.monotonic(), Result.FAILED
    try:
        async with asyncio.timeout(seconds):
            text = await check(target)
        result = Result.PASSED
    except TimeoutError:
        text = f"No answer within {seconds:g} s."
    except _Missing as missing:
        text = str(missing)
    except UpstreamFailed as failed:
        text = reported_text(failed, target.upstream)
    return Check(name=name, result=result, text=text, took_ms=round((time.monotonic() - began) * 1000))


class _Missing(Exception):
    """The server has answered, but not in the way that was asked for."""


def reported_text(failed: UpstreamFailed, upstream: UpstreamEndpoint) -> str:
    """Return the status and the text of a server's error without the platform's credentials, for operators.

    Unlike the message for clients, it is not replaced for errors that concern the platform, such as a rejected key.
    """
    status, words = error_words(upstream, failed)
    if status is None:
        return failed.failure.message
    is_page = words.lower().startswith(("<!doctype", "<html"))
    return f"HTTP {status}: {words}" if words and not is_page else f"HTTP {status}"


async def _call_tool(target: Route) -> str:
    choice = _TOOL if target.capabilities.forced_tool_choice else None
    sampling = Sampling(tools=(_TOOL,), tool_choice=choice, max_output_tokens=MAX_TOKENS)
    request = _request(target, _TOOL_PROMPT, sampling, streamed=target.capabilities.always_stream)
    async with _post(target, request) as answer:
        async for chunk in _chunks(target, answer):
            if _calls_tool(chunk):
                return ""
    raise _Missing("The model has answered without calling the tool.")


async def _stream(target: Route) -> str:
    request = _request(target, _TEXT_PROMPT, Sampling(max_output_tokens=MAX_TOKENS), streamed=True)
    began, first, count = time.monotonic(), 0.0, 0
    async with _post(target, request) as answer:
        if not is_streamed(answer):
            raise _Missing("The server has answered with one document instead of a stream.")
        async for _ in _chunks(target, answer):
            first = first or time.monotonic()
            count += 1
    if not count:
        raise _Missing("The stream has ended without an event.")
    return f"{count} event{'s' if count != 1 else ''}, the first after {round((first - began) * 1000)} ms"


def _request(target: Route, prompt: str, sampling: Sampling, *, streamed: bool) -> TurnRequest:
    message = InputMessage.model_validate({"type": "message", "role": "user", "content": prompt})
    return TurnRequest(
        model=target.upstream_model,
        instructions=None,
        items=[message],
        sampling=sampling,
        first_output_index=0,
        streamed=streamed,
    )


def _post(target: Route, request: TurnRequest) -> Any:
    is_responses = target.upstream.speaks_responses
    path, adapter = ("/responses", responses_api) if is_responses else ("/chat/completions", chat_completions)
    # Not repeated, as the operator sees what the server has answered.
    options = PostOptions(patience=0, may_repeat=False)
    return post(target, path, adapter.request_body(target, request, {}), attempts=[], options=options)


async def _chunks(target: Route, answer: Answer) -> AsyncIterator[Chunk]:
    """Yield the events of a stream, or the only document."""
    check = check_event if target.upstream.speaks_responses else check_chunk
    if not is_streamed(answer):
        yield await read_document(answer, check=check)
        return
    lines = EventStreamDecoder(check=check)
    while piece := await read_piece(answer):
        for chunk in lines.feed(piece):
            yield chunk
        if lines.done or lines.failure is not None:
            break
    else:
        for chunk in lines.end():
            yield chunk
    if lines.failure is not None:
        raise UpstreamFailed(lines.failure)


def _calls_tool(chunk: Chunk) -> bool:
    """Return whether a completion, a chunk, a response or an event of a response has a call of the tool."""
    for choice in chunk.get("choices") or ():
        message = choice.get("message") or choice.get("delta") or {}
        if message.get("tool_calls"):
            return True
    items = [*(chunk.get("output") or ()), chunk.get("item") or {}]
    return any(item.get("type") == "function_call" for item in items)
