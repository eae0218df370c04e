"""`POST /v1/chat/completions`: routed to the same upstreams, passed through as it comes, and written to the ledger.

Nothing is stored but the ledger row. The platform always asks the upstream for usage; the usage-only chunk is passed on
only to clients that asked for it, since others index `choices[0]` of every chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import orjson

from kernel.errors import BadRequest, InvalidType, InvalidValue, MissingParameter, ModelNotFound, UnsupportedValue
from kernel.ids import new_id
from kernel.validation import kind_of
from responses.engine.converter import Chunk, read_usage
from responses.engine.events import DONE_FRAME
from responses.engine.turns import Usage
from responses.ledger import RequestInfo, RoutedCall
from responses.providers.chat_completions import EventLines, decode
from responses.providers.clients import UpstreamFailed, post, read_bytes
from tenants import directory
from tenants.models import Scope
from tenants.principal import Principal

Value = TypeVar("Value")
_MAX_MODEL = 200
_ROLES = ("developer", "system", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked body, and whether the client wants the usage chunk."""

    values: dict[str, Any]
    wants_usage: bool


def parse_chat(values: dict[str, Any]) -> ChatRequest:
    """Check what routing and storage depend on; the rest is between the client and its model."""
    model = _required(values, "model", str, "a string")
    if len(model) > _MAX_MODEL:
        raise ModelNotFound(model[:_MAX_MODEL])
    _check_messages(_required(values, "messages", list, "an array"))
    if values.get("store"):
        raise UnsupportedValue("Stored chat completions are not supported by this server.", param="store")
    stream = _optional(values, "stream", bool, "a boolean")
    options = _optional(values, "stream_options", dict, "an object")
    if options is not None and not stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise InvalidValue(message, param="stream_options")
    return ChatRequest(values=values, wants_usage=bool(options and options.get("include_usage")))


def _required(values: dict[str, Any], name: str, kind: type[Value], expected: str) -> Value:
    if name not in values:
        raise MissingParameter(name)
    return _of(kind, values[name], name, expected)


def _optional(values: dict[str, Any], name: str, kind: type[Value], expected: str) -> Value | None:
    value = values.get(name)
    return None if value is None else _of(kind, value, name, expected)


def _of(kind: type[Value], value: object, name: str, expected: str) -> Value:
    if not isinstance(value, kind):
        raise InvalidType(name, expected=expected, got=kind_of(value))
    return value


def _check_messages(messages: list[Any]) -> None:
    if not messages:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        raise BadRequest(message, param="messages", code="empty_array")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidType(f"messages[{index}]", expected="an object", got=kind_of(message))
        role = message.get("role")
        if role not in _ROLES:
            raise InvalidValue.outside(role, _ROLES, param=f"messages[{index}].role")


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """The upstream's completion."""
    call = await _route(principal, body, request)
    values = {**body.values, "model": call.route.upstream_model, "stream": False}
    values.pop("stream_options", None)
    try:
        async with post(call.route.upstream, "/chat/completions", values) as response:
            completion = await _whole(response)
    except UpstreamFailed as failed:
        await call.write(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await asyncio.shield(call.write(outcome="interrupted"))
        raise
    call.seen(completion)
    await call.write(outcome="stop")
    return completion


async def stream(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> AsyncIterator[bytes]:
    """The upstream's events, once it has begun to answer; its errors before that are raised."""
    call = await _route(principal, body, request)
    options = {**(body.values.get("stream_options") or {}), "include_usage": True}
    values = {**body.values, "model": call.route.upstream_model, "stream": True, "stream_options": options}
    stack = AsyncExitStack()
    try:
        response = await stack.enter_async_context(post(call.route.upstream, "/chat/completions", values))
    except UpstreamFailed as failed:
        await call.write(outcome="failed")
        raise failed.failure.as_api_error() from failed
    except asyncio.CancelledError:
        await asyncio.shield(call.write(outcome="interrupted"))
        raise
    return _relay(call, response, stack, wants_usage=body.wants_usage)


async def _relay(
    call: "_Call", response: httpx2.Response, stack: AsyncExitStack, *, wants_usage: bool
) -> AsyncGenerator[bytes, None]:
    outcome = "interrupted"
    try:
        async for chunks in _chunks(response):
            for chunk in chunks:
                call.seen(chunk)
            passed = [chunk for chunk in chunks if wants_usage or chunk.get("choices") or not chunk.get("usage")]
            if passed:
                yield b"".join(_event(chunk) for chunk in passed)
        yield DONE_FRAME
        outcome = "stop"
    except UpstreamFailed as failed:
        outcome = "failed"
        yield _event({"error": failed.failure.as_api_error().detail()})
    finally:
        await asyncio.shield(call.write(outcome=outcome))
        await stack.aclose()


async def _chunks(response: httpx2.Response) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of each read; a completion from an upstream that does not stream is one big chunk."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        yield [_as_chunk(await _whole(response))]
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


def _as_chunk(completion: Chunk) -> Chunk:
    choices = [
        {"index": choice.get("index", 0), "delta": choice.get("message"), "finish_reason": choice.get("finish_reason")}
        for choice in completion.get("choices") or []
    ]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _event(body: Chunk) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


class _Call:
    """One upstream call of a chat completion, for the ledger."""

    def __init__(self, routed: RoutedCall) -> None:
        self.route = routed.route
        self._routed = routed
        self._chunks = 0
        self._usage: Usage | None = None
        self._id = new_id("chatcmpl")

    def seen(self, answer: Chunk) -> None:
        """Read usage and id off a completion or a chunk."""
        self._chunks += 1
        self._id = str(answer.get("id") or self._id)
        if isinstance(usage := answer.get("usage"), dict):
            self._usage = read_usage(usage)

    async def write(self, *, outcome: str) -> None:
        """One row. Without the upstream's word a streamed chunk counts as a token."""
        usage = self._usage or Usage(output_tokens=self._chunks, estimated=True)
        await self._routed.write(object_id=self._id, outcome=outcome, usage=usage)


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> _Call:
    principal.require(Scope.CHAT_WRITE)
    route = await directory.aroute(principal, body.values["model"])
    return _Call(
        RoutedCall(principal=principal, route=route, endpoint="chat.completions", request_id=request.request_id)
    )
