"""Token counting by the upstream, for models whose capabilities name an endpoint for it.

A count is not worth a failed request, so all errors return None and the caller estimates.
"""

import asyncio
from typing import Any

from responses.engine.attachments import AttachmentMap
from responses.engine.turn import TurnRequest
from responses.providers import chat_completions, responses_api
from responses.providers.chat_completions import decode
from responses.providers.clients import UpstreamFailed, post, read_bytes
from tenants.capabilities import TokenCounting
from tenants.directory import Route

_SECONDS = 10.0
# Parameters of vLLM's `/tokenize`.
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs")
# Parameters of OpenAI's `/responses/input_tokens`.
_COUNTED = (
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
)


async def count(route: Route, request: TurnRequest) -> int | None:
    """Return the number of input tokens; None if the upstream cannot count or fails to."""
    how = route.capabilities.token_counting
    if how == TokenCounting.ESTIMATE:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            found = await _attachments(route, request)
            if how == TokenCounting.TOKENIZE:
                return await _tokenize(route, request, found)
            return await _input_tokens(route, request, found)
    except (UpstreamFailed, TimeoutError):
        return None


async def _attachments(route: Route, request: TurnRequest) -> AttachmentMap:
    if request.attachments is None:
        return {}
    can = route.capabilities
    return await request.attachments.load(request.items, files=can.files, inline_images=can.inline_images)


async def _tokenize(route: Route, request: TurnRequest, found: AttachmentMap) -> int | None:
    # vLLM's endpoint is outside `/v1`. It counts the tokens after applying the chat template.
    body = chat_completions.request_body(request, route.capabilities, found)
    url = f"{route.upstream.base_url.removesuffix('/v1')}/tokenize"
    return _number(await _ask(route, url, body, _TOKENIZED), "count")


async def _input_tokens(route: Route, request: TurnRequest, found: AttachmentMap) -> int | None:
    body = responses_api.request_body(route, request, found)
    return _number(await _ask(route, "/responses/input_tokens", body, _COUNTED), "input_tokens")


async def _ask(route: Route, path: str, body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    asked = {name: body[name] for name in names if name in body}
    async with post(route.upstream, path, asked) as response:
        return decode(b"".join([piece async for piece in read_bytes(response)]))


def _number(answer: dict[str, Any], name: str) -> int | None:
    found = answer.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
