"""Upstreams that speak chat completions: a turn is one streamed request, its chunks converted into events."""

from collections.abc import AsyncGenerator
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.validation import without_nul
from responses.engine.converter import ChatConverter, Chunk
from responses.engine.events import Event
from responses.engine.turns import FunctionTool, Sampling, TurnRequest, TurnResult
from responses.providers.chat_messages import messages
from responses.providers.clients import UpstreamFailed, failure_of_status, post, read_bytes
from tenants.directory import Upstream

DONE = b"[DONE]"


class ChatModel:
    """The engine's `Model` port over an upstream of chat completions."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def open(self, request: TurnRequest) -> "ChatTurn":
        """Begin a turn; nothing is sent before its events are asked for."""
        return ChatTurn(self._upstream, request)


class ChatTurn:
    """One upstream call."""

    def __init__(self, upstream: Upstream, request: TurnRequest) -> None:
        self._upstream = upstream
        self._request = request
        sampling = request.sampling
        self._converter = ChatConverter(
            first_output_index=request.first_output_index,
            logprobs=sampling.logprobs,
            top_logprobs=sampling.top_logprobs,
        )
        self._upstream_request_id: str | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and convert what comes back, read by read."""
        lines = EventLines()
        try:
            async with post(self._upstream, "/chat/completions", request_body(self._request)) as response:
                self._upstream_request_id = response.headers.get("x-request-id")
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    yield self._whole(await response.aread())
                else:
                    async for piece in read_bytes(response):
                        yield self._converter.feed(lines.feed(piece))
                        if lines.failure is not None:
                            self._converter.fail(lines.failure)
                        if lines.done or lines.failure is not None:
                            break
        except UpstreamFailed as failed:
            self._converter.fail(failed.failure)
        yield self._converter.end(done=lines.done)

    def result(self) -> TurnResult:
        """What the turn brought."""
        return self._converter.result(upstream_request_id=self._upstream_request_id)

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close what is open."""
        events = self._converter.interrupt()
        return events, self._converter.result(interrupted=True, upstream_request_id=self._upstream_request_id)

    def _whole(self, body: bytes) -> list[Event]:
        """An upstream that does not stream: its message is one big delta."""
        completion = _decode(body)
        choices = completion.get("choices") or []
        if not choices:
            message = "The model's server sent an answer without choices."
            raise UpstreamFailed(Failure(code="server_error", message=message))
        choice = choices[0]
        reason = choice.get("finish_reason") or "stop"
        chunk = {**completion, "choices": [{**choice, "delta": choice.get("message"), "finish_reason": reason}]}
        return self._converter.feed([chunk])


class EventLines:
    """Cuts server-sent events out of pieces of bytes and decodes their data; `done` after `[DONE]`.

    A line that is no chunk ends it: `failure` says why, and what came before it still counts.

    Chat completions put one JSON document on one `data:` line, so lines are all there is to look at: comments, other
    fields and blank lines are passed over, both kinds of line ends are taken.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        self.failure: Failure | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """The chunks that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        chunks: list[Chunk] = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == DONE:
                self.done = True
                break
            try:
                chunks.append(_decode(data))
            except UpstreamFailed as failed:
                self.failure = failed.failure
                break
        return chunks


def _decode(data: bytes) -> dict[str, Any]:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as broken:
        message = "The model's server sent something that is not JSON."
        raise UpstreamFailed(Failure(code="server_error", message=message)) from broken
    if not isinstance(chunk, dict):
        message = "The model's server sent something that is not a JSON object."
        raise UpstreamFailed(Failure(code="server_error", message=message))
    if error := chunk.get("error"):
        status = error.get("code") if isinstance(error, dict) else None
        raise UpstreamFailed(failure_of_status(status if isinstance(status, int) else 500, error))
    return without_nul(chunk) if b"\\u0000" in data else chunk


def request_body(request: TurnRequest) -> dict[str, Any]:
    """The body of the upstream call. What the client did not send is not sent."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages(request.instructions, request.items),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.sampling.tools:
        body |= _tools(request.sampling)
    return body | _parameters(request.sampling)


def _tools(sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {"tools": [_tool(tool) for tool in sampling.tools]}
    choice = sampling.tool_choice
    if isinstance(choice, FunctionTool):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        body["tool_choice"] = choice
    if sampling.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = sampling.parallel_tool_calls
    return body


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _parameters(sampling: Sampling) -> dict[str, Any]:
    named = {
        "max_completion_tokens": sampling.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": sampling.logprobs or None,
        "top_logprobs": (sampling.top_logprobs or 0) if sampling.logprobs else None,
        "reasoning_effort": sampling.reasoning_effort,
        "verbosity": sampling.verbosity,
        "response_format": sampling.response_format,
        "service_tier": sampling.service_tier,
        "safety_identifier": sampling.safety_identifier,
        "prompt_cache_key": sampling.prompt_cache_key,
        "user": sampling.user,
    }
    return {name: value for name, value in named.items() if value is not None}
