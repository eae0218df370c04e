"""Execution of message requests. Each request becomes a response that is not stored and runs like other responses."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from core.errors import BadRequest, InvalidEncryptedContent, ServerError
from core.json.large_work import off_loop
from gateway.anthropic.blocks import InputWriter
from gateway.anthropic.message import MessageOptions, MessageStream, whole
from gateway.anthropic.schema import CountTokens, CreateMessage
from gateway.anthropic.tools import reasoning, tool_parameters
from responses.lifecycle import create
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.passthrough import input_tokens
from responses.runs.identity import RequestInfo
from responses.runs.runner import LiveRun
from responses.schema import CreateResponse, parse_create
from tenants import directory
from tenants.directory import Route
from tenants.principal import Principal

ENDPOINT = "messages"
# Clients of this API read them as signatures of thinking, and as results of web searches.
_INCLUDE = ["reasoning.encrypted_content", "web_search_call.results"]
_MIN_TOKENS = 16
# Longer ids may be rejected by upstreams.
_MAX_USER = 64
# The names of our parameters in Anthropic's API.
_PARAMETERS = (
    ("text.format.schema", "output_config.format.schema"),
    ("text.format", "output_config.format"),
    ("reasoning.effort", "output_config.effort"),
    ("max_output_tokens", "max_tokens"),
    ("max_tool_calls", "tools"),
    ("instructions", "system"),
    ("user", "metadata.user_id"),
    ("stop", "stop_sequences"),
)
_ORPHANED_RESULT = re.compile(r"No tool call found for .* with call_id (.*)\.")
_UNANSWERED_CALL = re.compile(r"No tool output found for .* (\S+)\.")
_FIELDS = ((".parameters", ".input_schema"), (".filters.", "."))


async def create_message(
    *, principal: Principal, body: CreateMessage, request: RequestInfo
) -> tuple[dict[str, Any], LiveRun]:
    """Return a message, and the run that has generated it; raises `ApiError`."""
    async with _translated(body, await directory.aroute(principal, body.model)) as values:
        info = replace(request, endpoint=ENDPOINT)
        run = await create.create_response(NewRequest(principal=principal, body=values, info=info, mode=Mode.JSON))
    try:
        end = await run.finished()
    except asyncio.CancelledError:
        # The client has disconnected, and no other client can read the message.
        run.detach()
        raise
    if end.ending.status == "failed":
        raise end.ending.failure.as_api_error() if end.ending.failure else ServerError()
    if end.ending.status == "cancelled":
        raise ServerError("The message was cancelled.")
    return whole(end, _options(body)), run


async def stream_message(*, principal: Principal, body: CreateMessage, request: RequestInfo) -> LiveRun:
    """Start to generate a message; raises `ApiError`."""
    async with _translated(body, await directory.aroute(principal, body.model)) as values:
        new = NewRequest(
            principal=principal,
            body=values,
            info=replace(request, endpoint=ENDPOINT),
            mode=Mode.STREAM,
            stream_format=MessageStream(_options(body)),
        )
        return await create.create_response(new)


async def count_tokens(*, principal: Principal, body: CountTokens) -> int:
    """Return the number of input tokens of a message, counted by the upstream or estimated; raises `ApiError`."""
    async with _translated(body, await directory.aroute(principal, body.model)) as values:
        return await input_tokens.count_input_tokens(principal=principal, body=values)


def _options(body: CreateMessage) -> MessageOptions:
    return MessageOptions(
        shows_thinking=body.shows_thinking,
        omits_thinking=body.omits_thinking,
        diagnoses=body.diagnostics is not None,
    )


@asynccontextmanager
async def _translated(body: CountTokens, route: Route) -> AsyncIterator[CreateResponse]:
    """Provide the body of the equivalent response. Errors in the block are changed to name the message's parameters."""
    writer = InputWriter()
    try:
        await off_loop(partial(writer.write, body.messages))
        yield await off_loop(partial(_response_body, body, writer.items, route))
    except BadRequest as error:
        writer.locate(error)
        error.message = _in_blocks(error)
        for name, alias in _PARAMETERS:
            if error.param == name:
                error.message, error.param = error.message.replace(f"'{name}'", f"'{alias}'"), alias
        for name, alias in _FIELDS:
            if error.param is not None and error.param.startswith("tools[") and name in error.param:
                error.message, error.param = error.message.replace(name, alias), error.param.replace(name, alias)
        raise


def _in_blocks(error: BadRequest) -> str:
    """Return the message of an error about items, reworded in Anthropic's terms for content blocks."""
    if found := _ORPHANED_RESULT.fullmatch(error.message):
        return (
            f"unexpected `tool_use_id` found in `tool_result` blocks: {found[1]}. Each `tool_result` block must have a "
            "corresponding `tool_use` block in an earlier message."
        )
    if found := _UNANSWERED_CALL.fullmatch(error.message):
        return (
            f"`tool_use` ids were found without `tool_result` blocks: {found[1]}. Each `tool_use` block must have a "
            "corresponding `tool_result` block in the next message."
        )
    if isinstance(error, InvalidEncryptedContent):
        return "Invalid `signature` in `thinking` block."
    if error.message.startswith('One of "input" or '):
        return "at least one message is required that has content."
    return error.message


def _response_body(body: CountTokens, items: list[dict[str, Any]], route: Route) -> CreateResponse:
    values: dict[str, Any] = {
        "model": body.model,
        "input": items,
        # Clients send the whole conversation each time, and no endpoint could return a stored message.
        "store": False,
        "include": _INCLUDE,
        **tool_parameters(body),
    }
    if system := _system(body):
        values["instructions"] = system
    if wanted := reasoning(body, route):
        values["reasoning"] = wanted
    if body.output_config is not None and (wanted_format := body.output_config.format) is not None:
        schema = wanted_format.json_schema
        values["text"] = {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True}}
    if not isinstance(body, CreateMessage):
        return parse_create(values)
    values["stream"] = body.stream
    sampling = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "stop": body.stop_sequences}
    values |= {name: value for name, value in sampling.items() if value is not None}
    if body.service_tier == "standard_only":
        values["service_tier"] = "default"
    if body.metadata is not None and (user := body.metadata.user_id):
        values["user"] = user if len(user) <= _MAX_USER else sha256(user.encode()).hexdigest()
    if body.max_tokens == 0:
        values["generate"] = False
    else:
        values["max_output_tokens"] = max(_MIN_TOKENS, body.max_tokens)
    parsed = parse_create(values)
    # OpenAI's minimum is 16; Anthropic's is 1, which clients use to check their key.
    return parsed.model_copy(update={"max_output_tokens": body.max_tokens or None})


def _system(body: CountTokens) -> str:
    if body.system is None or isinstance(body.system, str):
        return body.system or ""
    return "\n\n".join(block.text for block in body.system)
