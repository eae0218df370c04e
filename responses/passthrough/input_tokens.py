"""`POST /v1/responses/input_tokens`: count the input tokens of a response without creating it.

The body is that of `POST /v1/responses` without the parameters that do not affect the input; all of it is optional. It
is checked and read in the same way, so that the count matches the response. Nothing is stored, and no model is called.
Upstreams that can count tokens are asked to; for others, four characters count as one token.
"""

from dataclasses import dataclass
from typing import Any

from kernel.clock import now
from kernel.db_threads import in_db_thread
from responses.engine.compaction import token_estimate
from responses.engine.turn import TurnRequest
from responses.providers import token_counts
from responses.requests import capabilities
from responses.requests.attachments import check_attachments
from responses.requests.context import RequestContext, effective_request, needs_database, read_context
from responses.requests.encrypted_content import TeamCipher, reject_foreign_content
from responses.requests.parameters import build_sampling, hidden_options, input_items, public_parameters
from responses.schema import CreateResponse, parse_create
from responses.schema.subset import refuse_others
from tenants import directory
from tenants.capabilities import Capabilities
from tenants.models import Scope
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
# Parameters that a response requires but a count does not; any value passes the check.
_PLACEHOLDERS = {"model": "any", "input": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """A checked body. Without a model, the tokens are estimated."""

    body: CreateResponse
    model: str | None


def parse_count(values: dict[str, Any]) -> CountRequest:
    """Parse a body as `parse_create` does for a response. `null` and an empty input count as not sent."""
    refuse_others(values, known=PARAMETERS, unsupported=_REFUSED)
    sent = {name: value for name, value in values.items() if value is not None}
    if sent.get("input") in ("", []):
        del sent["input"]
    body = parse_create(_PLACEHOLDERS | sent)
    if "input" not in sent:
        body = body.model_copy(update={"input": []})
    return CountRequest(body=body, model=sent.get("model"))


async def count_input_tokens(*, principal: Principal, request: CountRequest) -> int:
    """Return the upstream's count of the input tokens, or an estimate.

    Requires the scope for creating responses: a key without it has no use for a count.
    """
    principal.require(Scope.RESPONSES_WRITE)
    body = request.body
    route = await directory.aroute(principal, request.model) if request.model is not None else None
    context = await _read_context(principal, body)
    body = effective_request(body, context.items)
    if route is not None:
        capabilities.check(body, route)
    # Without a model nothing is known to be unsupported.
    can = route.capabilities if route else Capabilities()
    attachments = await check_attachments(principal=principal, body=body, context=context, can=can)
    parameters = public_parameters(body, response_id="", created_at=now())
    sampling = build_sampling(parameters, hidden_options(body), context.items)
    turn_request = TurnRequest(
        model=route.upstream_model if route else "",
        instructions=body.instructions,
        items=context.items,
        sampling=sampling,
        first_output_index=0,
        attachments=attachments,
        cipher=TeamCipher(principal.team_id),
    )
    has_input = bool(turn_request.items or turn_request.instructions)
    counted = await token_counts.count(route, turn_request) if route and has_input else None
    if counted is not None:
        return counted
    return token_estimate.input_tokens(
        instructions=body.instructions, items=context.items, sampling=sampling, attachments=attachments
    )


async def _read_context(principal: Principal, body: CreateResponse) -> RequestContext:
    reject_foreign_content(input_items(body), team_id=principal.team_id)
    if body.conversation is not None:
        principal.require(Scope.CONVERSATIONS_READ)
    # Most counts need no database thread.
    if not needs_database(body):
        return read_context(principal=principal, body=body)
    return await in_db_thread(lambda: read_context(principal=principal, body=body))
