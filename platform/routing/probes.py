"""Small real calls that find out what a model can do: a tool call, an image and a request with reasoning.

They use the client of upstreams, so they work with both APIs. The upstream bills them.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from conversations.items import plain_text
from conversations.items.messages import InputMessage
from core.errors import ModelNotFound
from engine.turn import FunctionTool, Sampling, TurnRequest, TurnResult
from providers.upstream import UpstreamModel
from routing.detection import ModelDetails, Support
from tenants.directory import Route, UpstreamEndpoint

MAX_MODELS = 10
"""Maximum number of models that are probed at once."""

SECONDS = 50.0
"""Time limit of all calls together. Proxies wait for a page for a minute."""

_AT_ONCE = 6
# Reasoning models think before they call a tool.
_MAX_TOKENS = 512
_TOOL = FunctionTool(
    name="get_weather",
    description="Return the weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
_WEATHER = "What is the weather in Lisbon? Use the tool."


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The findings of the calls to a model. `notes` are the reasons for an answer other than yes, by ability."""

    details: ModelDetails
    notes: Mapping[str, str]


Found = tuple[Support, str]


# A red square. Some models refuse images of less than 28 pixels.
_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAAjAsP7/tF7hIASyp6lTCQQC"
    "gUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)


async def probe_models(
    upstream: UpstreamEndpoint, names: Sequence[str], *, seconds: float = SECONDS
) -> Mapping[str, Probe]:
    """Probe models of an upstream, several calls at the same time. What is not found in time stays unknown."""
    deadline = asyncio.get_running_loop().time() + seconds
    limit = asyncio.Semaphore(_AT_ONCE)
    routes = [Route(model=name, upstream_model=name, upstream=upstream) for name in names]
    return dict(zip(names, await asyncio.gather(*(_probe(route, limit, deadline) for route in routes)), strict=True))


async def _probe(route: Route, limit: asyncio.Semaphore, deadline: float) -> Probe:
    found = await asyncio.gather(*(_limited(probe(route), limit, deadline) for probe in (_tools, _images, _reasoning)))
    supports, notes = zip(*found, strict=True)
    if set(supports) == {Support.NO} and len(set(notes)) == 1:
        # The server refuses every request to this model, for a reason that these abilities have nothing to do with.
        supports = (Support.UNKNOWN,) * len(supports)
    tools, images, reasoning = supports
    return Probe(
        details=ModelDetails(tools=tools, images=images, reasoning=reasoning),
        notes={name: note for name, note in zip(("tools", "images", "reasoning"), notes, strict=True) if note},
    )


async def _limited(probe: Coroutine[Any, Any, Found], limit: asyncio.Semaphore, deadline: float) -> Found:
    try:
        async with asyncio.timeout_at(deadline), limit:
            return await probe
    except TimeoutError:
        return Support.UNKNOWN, "No answer in time."
    finally:
        # Without effect on a finished probe; one that was not begun would warn.
        probe.close()


async def _tools(route: Route) -> Found:
    forced = await _call(route, _WEATHER, tools=(_TOOL,), tool_choice="required")
    if forced.calls:
        return Support.YES, ""
    free = await _call(route, _WEATHER, tools=(_TOOL,), tool_choice="auto")
    if free.calls:
        return Support.LIMITED, _words(forced) or "The model ignores tool_choice."
    return _refused(free) or (Support.UNKNOWN, "The model answered without a call.")


async def _images(route: Route) -> Found:
    image = {"type": "input_image", "image_url": _IMAGE, "detail": "auto"}
    text = {"type": "input_text", "text": "Name the colour in one word."}
    result = await _call(route, [text, image])
    return _refused(result) or (Support.YES, "")


async def _reasoning(route: Route) -> Found:
    result = await _call(route, "What is 17 * 23?", reasoning_effort="low")
    if refused := _refused(result):
        return refused
    if any(item["type"] == "reasoning" for item in result.items) or (result.usage and result.usage.reasoning_tokens):
        return Support.YES, ""
    if any((plain_text(item) or "").lstrip().startswith("<think>") for item in result.items):
        return Support.LIMITED, "The reasoning is between <think> tags in the text."
    return Support.UNKNOWN, "The server accepts an effort, but shows no reasoning."


async def _call(route: Route, content: Any, **sampling: Any) -> TurnResult:
    message = InputMessage.model_validate({"type": "message", "role": "user", "content": content})
    request = TurnRequest(
        model=route.upstream_model,
        instructions=None,
        items=[message],
        sampling=Sampling(max_output_tokens=_MAX_TOKENS, **sampling),
        first_output_index=0,
    )
    # Without patience, a refused request is not repeated.
    turn = UpstreamModel(route, patience=0).open(request)
    async for _ in turn.events():
        pass
    return turn.result()


def _refused(result: TurnResult) -> Found | None:
    """Return that the server refuses such requests, or failed for another reason; None if it answered."""
    failure = result.failure
    if failure is None:
        return None
    is_refused = failure.status == HTTPStatus.BAD_REQUEST and failure.code != ModelNotFound.default_code
    return (Support.NO if is_refused else Support.UNKNOWN), failure.message


def _words(result: TurnResult) -> str:
    return result.failure.message if result.failure is not None else ""
