"""`POST /v1/chat/completions`: routed to the same upstreams, passed through as it comes, and written to the ledger.

Nothing is stored but the ledger row. The platform always asks the upstream for usage; the usage-only chunk is passed on
only to clients that asked for it, since others index `choices[0]` of every chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
import orjson

from kernel.clock import now
from kernel.errors import BadRequest, Failure, InvalidType, MissingParameter, ModelNotFound, UnsupportedValue
from kernel.ids import new_id
from responses.engine.converter import read_usage
from responses.engine.turns import Usage
from responses.providers.clients import UpstreamFailed, post, read_bytes
from responses.services import RequestInfo
from responses.store import Change, writer
from tenants import directory
from tenants.directory import Route
from tenants.models import Scope, UsageRecord
from tenants.principal import Principal

_MAX_MODEL = 200
_ROLES = ("developer", "system", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked body, and whether the client wants the usage chunk."""

    values: dict[str, Any]
    wants_usage: bool


def parse_chat(values: dict[str, Any]) -> ChatRequest:
    """Check what routing and storage depend on; the rest is between the client and its model."""
    model, messages = values.get("model"), values.get("messages")
    if model is None:
        raise MissingParameter("model")
    if not isinstance(model, str):
        raise InvalidType("model", expected="a string", got="another type")
    if len(model) > _MAX_MODEL:
        raise ModelNotFound(model[:_MAX_MODEL])
    if messages is None:
        raise MissingParameter("messages")
    if not isinstance(messages, list):
        raise InvalidType("messages", expected="an array", got="another type")
    _check_messages(messages)
    if values.get("store"):
        raise UnsupportedValue("Stored chat completions are not supported by this server.", param="store")
    if not isinstance(values.get("stream"), bool | None):
        raise InvalidType("stream", expected="a boolean", got="another type")
    options = values.get("stream_options") or {}
    if not isinstance(options, dict):
        raise InvalidType("stream_options", expected="an object", got="another type")
    return ChatRequest(values=values, wants_usage=bool(options.get("include_usage")))


def _check_messages(messages: list[Any]) -> None:
    if not messages:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        raise BadRequest(message, param="messages", code="empty_array")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidType(f"messages[{index}]", expected="an object", got="another type")
        if message.get("role") not in _ROLES:
            given = message.get("role")
            names = ", ".join(f"'{role}'" for role in _ROLES)
            text = f"Invalid value: '{given}'. Supported values are: {names}."
            raise BadRequest(text, param=f"messages[{index}].role", code="invalid_value")


async def complete(*, principal: Principal, body: ChatRequest, request: RequestInfo) -> dict[str, Any]:
    """The upstream's completion."""
    call = await _route(principal, body, request)
    values = {**body.values, "model": call.route.upstream_model, "stream": False}
    values.pop("stream_options", None)
    try:
        async with post(call.route.upstream, "/chat/completions", values) as response:
            completion = _completion(await response.aread())
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
    return _relay(call, response, stack, wants_usage=body.wants_usage)


async def _relay(
    call: "_Call", response: httpx2.Response, stack: AsyncExitStack, *, wants_usage: bool
) -> AsyncGenerator[bytes, None]:
    lines = _ChatLines(call, wants_usage=wants_usage)
    outcome = "interrupted"
    try:
        async for piece in read_bytes(response):
            if data := lines.feed(piece):
                yield data
        outcome = "stop"
    except UpstreamFailed as failed:
        outcome = "failed"
        yield b"data: %b\n\n" % orjson.dumps({"error": failed.failure.as_api_error().detail()})
    finally:
        await asyncio.shield(call.write(outcome=outcome))
        await stack.aclose()


class _ChatLines:
    """Passes whole lines on, and reads the usage off those that carry it."""

    def __init__(self, call: "_Call", *, wants_usage: bool) -> None:
        self._call = call
        self._wants_usage = wants_usage
        self._rest = b""
        self._skip_blank = False

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on."""
        whole, found, self._rest = (self._rest + piece).rpartition(b"\n\n")
        if not found:
            return b""
        whole += found
        self._call.chunks += whole.count(b"data:")
        if b'"usage"' not in whole:
            return whole
        return b"".join(frame + b"\n\n" for frame in whole.split(b"\n\n") if frame and self._passes(frame))

    def _passes(self, frame: bytes) -> bool:
        _, found, data = frame.partition(b"data:")
        if not found or b'"usage"' not in data:
            return True
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return True
        self._call.seen(chunk)
        return self._wants_usage or bool(chunk.get("choices")) or not chunk.get("usage")


def _completion(data: bytes) -> dict[str, Any]:
    try:
        completion = orjson.loads(data)
    except orjson.JSONDecodeError:
        completion = None
    if not isinstance(completion, dict):
        message = "The model's server sent something that is not a JSON object."
        raise UpstreamFailed(Failure(code="server_error", message=message))
    return completion


class _Call:
    """One upstream call of a chat completion, for the ledger."""

    def __init__(self, principal: Principal, route: Route, model: str, request: RequestInfo) -> None:
        self.route = route
        self.chunks = 0
        self._principal = principal
        self._model = model
        self._request = request
        self._began: datetime = now()
        self._usage: Usage | None = None
        self._id = new_id("chatcmpl")

    def seen(self, answer: dict[str, Any]) -> None:
        """Read usage and id off a completion or a chunk."""
        self._id = str(answer.get("id") or self._id)[:64]
        if usage := answer.get("usage"):
            self._usage = read_usage(usage)

    async def write(self, *, outcome: str) -> None:
        """One row, whatever became of the call. Without the upstream's word a streamed chunk counts as a token."""
        usage = self._usage or Usage(output_tokens=self.chunks, estimated=True)
        ended = now()
        record = UsageRecord(
            team_id=self._principal.team_id,
            api_key_id=self._principal.key_id,
            occurred_at=ended,
            endpoint="chat.completions",
            object_id=self._id,
            model=self._model,
            upstream_id=self.route.upstream.id,
            upstream_model=self.route.upstream_model,
            outcome=outcome,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            estimated=usage.estimated,
            duration_ms=round((ended - self._began).total_seconds() * 1000),
            request_id=self._request.request_id,
        )
        await writer.submit(Change(team_id=self._principal.team_id, insert=[record]))


async def _route(principal: Principal, body: ChatRequest, request: RequestInfo) -> _Call:
    principal.require(Scope.CHAT_WRITE)
    model = body.values["model"]
    route = await directory.aroute(principal, model)
    return _Call(principal, route, model, request)
