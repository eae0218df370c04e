"""Token counting by the upstream, for models whose capabilities name an endpoint for it.

A count is not worth a failed request, so all errors return None and the caller estimates.
"""

import asyncio

from responses.engine.turn import TurnRequest
from responses.providers import chat_completions, responses_api
from responses.providers.clients import UpstreamFailed, post
from responses.providers.event_stream import read_document
from responses.providers.upstream import load_attachments
from tenants.capabilities import TokenCounting
from tenants.directory import Route

_SECONDS = 10.0
# Parameters of vLLM's `/tokenize`.
_TOKENIZED: tuple[str, ...] = ("model", "messages", "tools", "chat_template_kwargs")
# Parameters of OpenAI's `/responses/input_tokens`.
_COUNTED: tuple[str, ...] = (
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
            attachments = await load_attachments(route, request)
            if how == TokenCounting.TOKENIZE:
                # vLLM's endpoint is outside `/v1`. It counts the tokens after applying the chat template.
                path = f"{route.upstream.base_url.removesuffix('/v1')}/tokenize"
                body, names, name = chat_completions.request_body(route, request, attachments), _TOKENIZED, "count"
            else:
                path = "/responses/input_tokens"
                body, names, name = responses_api.request_body(route, request, attachments), _COUNTED, "input_tokens"
            async with post(route.upstream, path, {name: body[name] for name in names if name in body}) as response:
                found = (await read_document(response)).get(name)
    except (UpstreamFailed, TimeoutError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
