"""Adapter for chat-completions upstreams: a turn is one streamed request whose chunks become events."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.storable_json import is_too_deep, without_nul
from responses.engine.attachments import AttachmentMap
from responses.engine.converter.chat import ChatConverter, Chunk
from responses.engine.events.types import Event
from responses.engine.turn import Sampling, TurnRequest, TurnResult
from responses.providers.chat_extras import CallExtras
from responses.providers.chat_messages import messages
from responses.providers.chat_parts import PartWriter
from responses.providers.chat_reasoning import ReasoningWriter
from responses.providers.chat_tools import tool_parameters
from responses.providers.clients import UpstreamFailed, failure_from_status, post, read_bytes
from tenants.capabilities import Capabilities
from tenants.directory import Route

DONE = b"[DONE]"


class ChatModel:
    """Implementation of `LanguageModel` for chat-completions upstreams."""

    def __init__(self, route: Route) -> None:
        self._route = route

    def open(self, request: TurnRequest) -> "ChatTurn":
        """Start a turn. The request is sent when its events are iterated."""
        return ChatTurn(self._route, request)


class ChatTurn:
    """One upstream call."""

    def __init__(self, route: Route, request: TurnRequest) -> None:
        self._route = route
        self._request = request
        self._converter = ChatConverter(
            first_output_index=request.first_output_index,
            sampling=request.sampling,
            cipher=request.cipher,
            show_raw=route.capabilities.raw_reasoning,
            think_tags=route.capabilities.think_tags,
        )
        self._upstream_request_id: str | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of each network read."""
        lines = EventStreamDecoder()
        try:
            body = await self._body()
            async with post(self._route.upstream, "/chat/completions", body) as response:
                self._upstream_request_id = response.headers.get("x-request-id")
                # Some upstreams ignore `stream: true`.
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    yield self._whole(await response.aread())
                else:
                    async for piece in read_bytes(response):
                        yield self._converter.feed(lines.feed(piece))
                        if lines.done or lines.failure is not None or self._converter.over:
                            break
                    else:
                        yield self._converter.feed(lines.end())
                    if lines.failure is not None:
                        self._converter.fail(lines.failure)
        except UpstreamFailed as failed:
            self._converter.fail(failed.failure)
        yield self._converter.end(done=lines.done)

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._converter.result(upstream_request_id=self._upstream_request_id)

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Return the events that close open items, and the partial result."""
        events = self._converter.interrupt()
        return events, self._converter.result(interrupted=True, upstream_request_id=self._upstream_request_id)

    async def _body(self) -> dict[str, Any]:
        can, attachments = self._route.capabilities, self._request.attachments
        if attachments is None:
            return request_body(self._request, can)
        loaded = await attachments.load(self._request.items, files=can.files, inline_images=can.inline_images)
        return request_body(self._request, can, loaded)

    def _whole(self, body: bytes) -> list[Event]:
        # An answer that was not streamed is converted as a single chunk.
        completion = decode(body)
        choices = completion.get("choices") or []
        if not choices:
            message = "The model's server sent an answer without choices."
            raise UpstreamFailed(Failure(code="server_error", message=message))
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        reason = choice.get("finish_reason") or "stop"
        chunk = {**completion, "choices": [{**choice, "delta": choice.get("message"), "finish_reason": reason}]}
        return self._converter.feed([chunk])


class EventStreamDecoder:
    """Incremental decoder of server-sent events with JSON data. `done` is set after `[DONE]`.

    An event that is not a chunk ends the stream: `failure` is set, and earlier chunks still count.

    Normally each event has one `data:` line with a whole JSON document, which is decoded immediately. A line that is
    not valid JSON is joined with further `data:` lines of the same event. Comments and other fields are ignored; lines
    may end with CRLF.

    `check` takes the parsed document and its bytes, and raises `UpstreamFailed` if it is not a chunk.
    """

    def __init__(self, *, check: Callable[[object, bytes], Chunk] | None = None) -> None:
        self._check = check or _check_chunk
        self._rest = b""
        self._begun = b""
        self.done = False
        self.failure: Failure | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the chunks that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        chunks: list[Chunk] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._line(line[5:].strip(), chunks)
            elif self._begun and not line.strip():
                self.failure = _NO_JSON
            if self.done or self.failure is not None:
                break
        return chunks

    def end(self) -> list[Chunk]:
        """Return the chunk of a last event without a blank line after it."""
        return self.feed(b"\n\n")

    def _line(self, data: bytes, chunks: list[Chunk]) -> None:
        if data == DONE:
            self.done = True
            self.failure = _NO_JSON if self._begun else None
            return
        data = self._begun + data
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._begun = data
            return
        self._begun = b""
        try:
            chunks.append(self._check(parsed, data))
        except UpstreamFailed as failed:
            self.failure = failed.failure


_NO_JSON = Failure(code="server_error", message="The model's server sent something that is not JSON.")
TOO_DEEP = Failure(code="server_error", message="The model's server sent something that is nested too deeply.")


def decode(data: bytes) -> Chunk:
    """Return a chunk or a completion. Raises `UpstreamFailed` for an error object and for invalid data."""
    try:
        return _check_chunk(orjson.loads(data), data)
    except orjson.JSONDecodeError as broken:
        raise UpstreamFailed(_NO_JSON) from broken


def _check_chunk(chunk: object, data: bytes) -> Chunk:
    # Some upstreams send an error with status 200. NUL and deep nesting are handled here because PostgreSQL can store
    # neither of them as JSON.
    if not isinstance(chunk, dict):
        message = "The model's server sent something that is not a JSON object."
        raise UpstreamFailed(Failure(code="server_error", message=message))
    if is_too_deep(chunk, data):
        raise UpstreamFailed(TOO_DEEP)
    if error := chunk.get("error"):
        status = error.get("code") if isinstance(error, dict) else None
        raise UpstreamFailed(failure_from_status(status if isinstance(status, int) else 500, error))
    return without_nul(chunk) if b"\\u0000" in data else chunk


def request_body(
    request: TurnRequest, can: Capabilities | None = None, attachments: AttachmentMap | None = None
) -> dict[str, Any]:
    """Return the body of the upstream request. Parameters that the client did not send are omitted."""
    can = can or Capabilities()
    parts = PartWriter(attachments=attachments or {}, vision=can.vision)
    reasoning = _reasoning_writer(request, can)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages(
            request.instructions,
            request.items,
            parts=parts,
            reasoning=reasoning,
            extras=CallExtras(request.cipher, request.items),
            custom_tools=can.custom_tools,
            developer_role=can.developer_role,
        ),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.sampling.tools:
        body |= tool_parameters(request.sampling, can)
    return body | _parameters(request.sampling)


def _reasoning_writer(request: TurnRequest, can: Capabilities) -> ReasoningWriter | None:
    if not can.reasoning_field:
        return None
    all_turns = request.sampling.reasoning_context == "all_turns"
    return ReasoningWriter(can.reasoning_field, cipher=request.cipher, items=request.items, all_turns=all_turns)


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
        "prompt_cache_options": sampling.prompt_cache_options,
        "prompt_cache_retention": sampling.prompt_cache_retention,
        "user": sampling.user,
        **(sampling.extra or {}),
    }
    return {name: value for name, value in named.items() if value is not None}
