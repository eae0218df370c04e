"""Upstreams that speak chat completions: a turn is one streamed request, its chunks converted into events."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.storable_json import is_too_deep, without_nul
from responses.engine.attachments import AttachmentMap
from responses.engine.chat.converter import ChatConverter, Chunk
from responses.engine.events.types import Event
from responses.engine.turn import Sampling, TurnRequest, TurnResult
from responses.providers.chat_extras import CallExtras
from responses.providers.chat_messages import messages
from responses.providers.chat_parts import PartWriter
from responses.providers.chat_reasoning import ThoughtWriter
from responses.providers.chat_tools import tool_parameters
from responses.providers.clients import UpstreamFailed, failure_of_status, post, read_bytes
from tenants.capabilities import Capabilities
from tenants.directory import Route

DONE = b"[DONE]"


class ChatModel:
    """The engine's `Model` port over an upstream of chat completions."""

    def __init__(self, route: Route) -> None:
        self._route = route

    def open(self, request: TurnRequest) -> "ChatTurn":
        """Begin a turn; nothing is sent before its events are asked for."""
        return ChatTurn(self._route, request)


class ChatTurn:
    """One upstream call."""

    def __init__(self, route: Route, request: TurnRequest) -> None:
        self._route = route
        self._request = request
        sampling = request.sampling
        self._converter = ChatConverter(
            first_output_index=request.first_output_index,
            logprobs=sampling.logprobs,
            top_logprobs=sampling.top_logprobs,
            max_calls=sampling.max_calls,
            tools=sampling.tools,
            cipher=request.cipher,
            raw_reasoning=route.capabilities.raw_reasoning,
            think_tags=route.capabilities.think_tags,
        )
        self._upstream_request_id: str | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and convert what comes back, read by read."""
        lines = EventLines()
        try:
            body = await self._body()
            async with post(self._route.upstream, "/chat/completions", body) as response:
                self._upstream_request_id = response.headers.get("x-request-id")
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    yield self._whole(await response.aread())
                else:
                    async for piece in read_bytes(response):
                        yield self._converter.feed(lines.feed(piece))
                        if lines.done or lines.failure is not None or self._converter.failed:
                            break
                    else:
                        yield self._converter.feed(lines.end())
                    if lines.failure is not None:
                        self._converter.fail(lines.failure)
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

    async def _body(self) -> dict[str, Any]:
        can, content = self._route.capabilities, self._request.attachments
        if content is None:
            return request_body(self._request, can)
        found = await content.load(self._request.items, files=can.files, inline_images=can.inline_images)
        return request_body(self._request, can, found)

    def _whole(self, body: bytes) -> list[Event]:
        """An upstream that does not stream: its message is one big delta."""
        completion = decode(body)
        choices = completion.get("choices") or []
        if not choices:
            message = "The model's server sent an answer without choices."
            raise UpstreamFailed(Failure(code="server_error", message=message))
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        reason = choice.get("finish_reason") or "stop"
        chunk = {**completion, "choices": [{**choice, "delta": choice.get("message"), "finish_reason": reason}]}
        return self._converter.feed([chunk])


class EventLines:
    """Cuts server-sent events out of pieces of bytes and decodes their data; `done` after `[DONE]`.

    An event that is no chunk ends it: `failure` says why, and what came before it still counts.

    Chat completions put one JSON document on one `data:` line, so a line that is one is taken at once; one that is not
    waits for more to the end of its event. Comments and other fields are passed over; lines may end in CRLF.

    `check` takes the parsed document and its bytes, and raises `UpstreamFailed` for what is no chunk.
    """

    def __init__(self, *, check: Callable[[object, bytes], Chunk] | None = None) -> None:
        self._check = check or _checked
        self._rest = b""
        self._begun = b""
        self.done = False
        self.failure: Failure | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """The chunks that this piece completes."""
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
        """The chunks of a last event whose end never came."""
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
    """A chunk or a completion; raises `UpstreamFailed` for an error in its place and for what is no JSON object."""
    try:
        return _checked(orjson.loads(data), data)
    except orjson.JSONDecodeError as broken:
        raise UpstreamFailed(_NO_JSON) from broken


def _checked(chunk: object, data: bytes) -> Chunk:
    """A chunk is an object and no error; nothing in it, no NUL and no depth, keeps it from being stored."""
    if not isinstance(chunk, dict):
        message = "The model's server sent something that is not a JSON object."
        raise UpstreamFailed(Failure(code="server_error", message=message))
    if is_too_deep(chunk, data):
        raise UpstreamFailed(TOO_DEEP)
    if error := chunk.get("error"):
        status = error.get("code") if isinstance(error, dict) else None
        raise UpstreamFailed(failure_of_status(status if isinstance(status, int) else 500, error))
    return without_nul(chunk) if b"\\u0000" in data else chunk


def request_body(
    request: TurnRequest, can: Capabilities | None = None, attachments: AttachmentMap | None = None
) -> dict[str, Any]:
    """The body of the upstream call. What the client did not send is not sent."""
    can = can or Capabilities()
    parts = PartWriter(attachments=attachments or {}, vision=can.vision)
    thoughts = _thoughts(request, can)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages(
            request.instructions,
            request.items,
            parts=parts,
            thoughts=thoughts,
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


def _thoughts(request: TurnRequest, can: Capabilities) -> ThoughtWriter | None:
    if not can.reasoning_field:
        return None
    all_turns = request.sampling.reasoning_context == "all_turns"
    return ThoughtWriter(can.reasoning_field, cipher=request.cipher, items=request.items, all_turns=all_turns)


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
