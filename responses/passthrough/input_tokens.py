"""`POST /v1/responses/input_tokens`: count the input tokens of a response without creating it.

The body has the parameters of `POST /v1/responses` that affect the input. All of them are optional. They are checked
and read in the same way, so that the count is the same as for a response. Nothing is stored, and no model is called.
Upstreams count the tokens if they can. Otherwise, four characters count as one token.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from engine.compaction import token_estimate
from engine.turn import Attempt, TurnRequest
from providers import chat_completions, responses_api
from providers.clients import PostOptions, UpstreamFailed, post
from providers.event_stream import read_document
from providers.http_client import Answer
from providers.targets.forwarding import ForwardedCall
from providers.upstream import load_attachments
from responses.requests.prepare import prepare
from responses.schema import CreateResponse, parse_create
from responses.schema.subset import refuse_others
from tenants import directory
from tenants.capabilities import TokenCounting
from tenants.directory import Route
from tenants.principal import Principal

PARAMETERS = (
    "model",
    "input",
    "instructions",
    "conversation",
    "previous_response_id",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "truncation",
)
_REFUSED = ("personality",)
# Parameters that are required for a response but not for a count. Any value passes the check.
_PLACEHOLDERS: dict[str, Any] = {"model": "any", "input": "any"}
_NOT_SENT: dict[str, Any] = {"model": "", "input": []}
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


def parse_count(values: dict[str, Any]) -> CreateResponse:
    """Parse a body as `parse_create` does for a response. `null` and an empty input count as not sent.

    Without a model, the model of the result is empty.
    """
    refuse_others(values, known=PARAMETERS, unsupported=_REFUSED)
    sent = {name: value for name, value in values.items() if value is not None}
    if sent.get("input") in ("", []):
        del sent["input"]
    body = parse_create(_PLACEHOLDERS | sent)
    return body.model_copy(update={name: value for name, value in _NOT_SENT.items() if name not in sent})


async def count_input_tokens(*, principal: Principal, body: CreateResponse) -> int:
    """Return the upstream's count of the input tokens, or an estimate if it cannot count or no model is given."""
    route = await directory.aroute(principal, body.model) if body.model else None
    prepared = await prepare(principal=principal, body=body, route=route)
    route, run_context = prepared.route, prepared.run_context
    counted: dict[str, Any] = {
        "instructions": run_context.instructions,
        "items": run_context.items,
        "sampling": run_context.sampling,
        "attachments": run_context.attachments,
    }
    if route is not None and (run_context.items or run_context.instructions):
        turn_request = TurnRequest(
            model=route.upstream_model, first_output_index=0, cipher=run_context.cipher, **counted
        )
        if (tokens := await _count_upstream(route, turn_request)) is not None:
            return tokens
    return token_estimate.input_tokens(**counted)


async def _count_upstream(route: Route, request: TurnRequest) -> int | None:
    # Errors of the upstream do not fail the request: without an answer, the caller uses an estimate.
    if route.capabilities.token_counting == TokenCounting.ESTIMATE:
        return None
    # Other models count other tokens.
    targets = [target for target in route.targets if target.model == route.model and _can_count(target)]
    try:
        async with asyncio.timeout(_SECONDS):
            # Upstreams do not charge for counting, so there is no usage record.
            attempts: list[Attempt] = []
            send = partial(_send, request=request, attempts=attempts)
            if len(targets) == 1:
                async with send(route, PostOptions()) as response:
                    return await _read_count(response)
            call = ForwardedCall(
                route=Route.through(targets),
                send=send,
                attempts=attempts,
                reserve_again=_costs_nothing,
                patience=_SECONDS,
            )
            async with call.answered(_read_count) as count:
                return count
    except (UpstreamFailed, TimeoutError):
        return None


async def _costs_nothing() -> bool:
    return True


def _can_count(target: Route) -> bool:
    return target.capabilities.token_counting != TokenCounting.ESTIMATE


@asynccontextmanager
async def _send(
    target: Route, options: PostOptions, *, request: TurnRequest, attempts: list[Attempt]
) -> AsyncIterator[Answer]:
    request = replace(request, model=target.upstream_model)
    attachments = await load_attachments(target, request)
    if target.capabilities.token_counting == TokenCounting.TOKENIZE:
        # vLLM's endpoint is outside `/v1`. It counts the tokens after applying the chat template.
        path = f"{target.upstream.base_url.removesuffix('/v1')}/tokenize"
        body, names = chat_completions.request_body(target, request, attachments), _TOKENIZED
    else:
        path = "/responses/input_tokens"
        body, names = responses_api.request_body(target, request, attachments), _COUNTED
    asked = {name: body[name] for name in names if name in body}
    async with post(target, path, asked, attempts=attempts, options=options) as response:
        yield response


async def _read_count(response: Answer) -> int | None:
    document = await read_document(response)
    # vLLM's name, and OpenAI's.
    found = document.get("count", document.get("input_tokens"))
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
