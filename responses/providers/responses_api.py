"""Adapter for Responses upstreams: a turn is one streamed request whose events become ours.

The upstream is asked to store nothing: responses, items and their ids are this platform's.
"""

from collections.abc import AsyncGenerator
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.storable_json import is_too_deep, without_nul
from responses.engine.attachments import AttachmentMap
from responses.engine.converter.base import UpstreamEvent
from responses.engine.converter.responses_api import ResponsesConverter
from responses.engine.events.types import Event
from responses.engine.turn import Sampling, TurnRequest, TurnResult
from responses.providers.chat_completions import TOO_DEEP, EventStreamDecoder
from responses.providers.chat_tools import tool_parameters
from responses.providers.clients import UpstreamFailed, post, read_bytes
from responses.providers.responses_failures import failure_from_error
from responses.providers.responses_input import InputWriter
from tenants.capabilities import Capabilities
from tenants.directory import Route

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


class ResponsesModel:
    """Implementation of `LanguageModel` for Responses upstreams."""

    def __init__(self, route: Route) -> None:
        self._route = route

    def open(self, request: TurnRequest) -> "ResponsesTurn":
        """Start a turn. The request is sent when its events are iterated."""
        return ResponsesTurn(self._route, request)


class ResponsesTurn:
    """One upstream call."""

    def __init__(self, route: Route, request: TurnRequest) -> None:
        self._route = route
        self._request = request
        self._converter = ResponsesConverter(
            first_output_index=request.first_output_index,
            sampling=request.sampling,
            upstream_id=route.upstream.id,
            to_failure=failure_from_error,
            cipher=request.cipher,
            show_raw=route.capabilities.raw_reasoning,
        )
        self._upstream_request_id: str | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of each network read."""
        converter, lines = self._converter, EventStreamDecoder(check=checked)
        try:
            body = await self._body()
            async with post(self._route.upstream, "/responses", body) as response:
                self._upstream_request_id = response.headers.get("x-request-id")
                # Some upstreams ignore `stream: true`.
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    yield converter.whole(decode(await response.aread()))
                else:
                    async for piece in read_bytes(response):
                        yield converter.feed(lines.feed(piece))
                        if lines.done or lines.failure is not None or converter.over:
                            break
                    else:
                        yield converter.feed(lines.end())
                    if lines.failure is not None and not converter.over:
                        converter.fail(lines.failure)
        except UpstreamFailed as failed:
            converter.fail(failed.failure)
        yield converter.end()

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._converter.result(upstream_request_id=self._upstream_request_id)

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Return the events that close open items, and the partial result."""
        events = self._converter.interrupt()
        return events, self._converter.result(interrupted=True, upstream_request_id=self._upstream_request_id)

    async def _body(self) -> dict[str, Any]:
        can, content = self._route.capabilities, self._request.attachments
        if content is None:
            return request_body(self._route, self._request)
        found = await content.load(self._request.items, files=can.files, inline_images=can.inline_images)
        return request_body(self._route, self._request, found)


def checked(event: object, data: bytes) -> UpstreamEvent:
    """Return an event or response that can be stored as JSON. Raises `UpstreamFailed` for anything else."""
    if not isinstance(event, dict):
        message = "The model's server sent something that is not a JSON object."
        raise UpstreamFailed(Failure(code="server_error", message=message))
    if is_too_deep(event, data):
        raise UpstreamFailed(TOO_DEEP)
    return without_nul(event) if b"\\u0000" in data else event


def decode(data: bytes) -> UpstreamEvent:
    """Return the response object of an answer that was not streamed."""
    try:
        return checked(orjson.loads(data), data)
    except orjson.JSONDecodeError as broken:
        message = "The model's server sent something that is not JSON."
        raise UpstreamFailed(Failure(code="server_error", message=message)) from broken


def request_body(route: Route, request: TurnRequest, attachments: AttachmentMap | None = None) -> dict[str, Any]:
    """Return the body of the upstream request. Parameters that the client did not send are omitted."""
    sampling = request.sampling
    # The upstream stores nothing, so its reasoning is only available to later turns in encrypted form.
    body: dict[str, Any] = {
        "model": request.model,
        "input": InputWriter(route, request, attachments or {}).write(request.items),
        "stream": True,
        "store": False,
        "include": [_ENCRYPTED, _LOGPROBS] if sampling.logprobs else [_ENCRYPTED],
    }
    if request.instructions:
        body["instructions"] = request.instructions
    if sampling.tools:
        body |= _tools(sampling, route.capabilities)
    return body | _parameters(sampling)


def _tools(sampling: Sampling, can: Capabilities) -> dict[str, Any]:
    # Chat completions nest a tool's fields under its type; the Responses API does not.
    body = tool_parameters(sampling, can)
    body["tools"] = [_tool(tool) for tool in body["tools"]]
    if isinstance(choice := body.get("tool_choice"), dict):
        body["tool_choice"] = {"type": choice["type"], **choice[choice["type"]]}
    return body


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] == "function":
        # Both fields are required in the Responses API, unlike in chat completions.
        return {"type": "function", "parameters": None, "strict": None, **tool["function"]}
    custom = {"type": "custom", **tool["custom"]}
    if "format" in custom:
        custom["format"] = {"type": "grammar", **custom["format"]["grammar"]}
    return custom


def _parameters(sampling: Sampling) -> dict[str, Any]:
    reasoning = {"effort": sampling.reasoning_effort, "summary": sampling.reasoning_summary}
    text = {"format": _format(sampling.response_format), "verbosity": sampling.verbosity}
    named = {
        "max_output_tokens": sampling.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": sampling.top_logprobs,
        "reasoning": _known(reasoning) or None,
        "text": _known(text) or None,
        "service_tier": sampling.service_tier,
        "safety_identifier": sampling.safety_identifier,
        "prompt_cache_key": sampling.prompt_cache_key,
        "prompt_cache_options": sampling.prompt_cache_options,
        "prompt_cache_retention": sampling.prompt_cache_retention,
        "user": sampling.user,
        **(sampling.extra or {}),
    }
    return _known(named)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _format(chat: dict[str, Any] | None) -> dict[str, Any] | None:
    if chat is None or chat["type"] != "json_schema":
        return chat
    return {"type": "json_schema", **chat["json_schema"]}
