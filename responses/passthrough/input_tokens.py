"""`POST /v1/responses/input_tokens`: how many tokens a response would read, before anybody pays for it.

The body is that of `POST /v1/responses` without what has no effect on the input, and all of it is optional. It is
checked and read as there, so that a count and the response after it agree; nothing is stored and no model answers. An
upstream that can count is asked to; for others four characters are a token.
"""

from dataclasses import dataclass
from typing import Any

from kernel.clock import now
from kernel.db_threads import in_db_thread
from responses.engine.compaction import token_estimate
from responses.engine.turn import TurnRequest
from responses.providers import token_counts
from responses.requests import capabilities, settings
from responses.requests.attachments import check_attachments
from responses.requests.context import RequestContext, needs_database, read_context
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
# A response cannot do without these; a count can.
_INSTEAD = {"model": "any", "input": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """A checked body; without a model, whichever it is."""

    body: CreateResponse
    model: str | None


def parse_count(values: dict[str, Any]) -> CountRequest:
    """Check a body as `parse_create` checks that of a response; `null` and an empty input are "not sent"."""
    refuse_others(values, known=PARAMETERS, unsupported=_REFUSED)
    sent = {name: value for name, value in values.items() if value is not None}
    if sent.get("input") in ("", []):
        del sent["input"]
    body = parse_create(_INSTEAD | sent)
    if "input" not in sent:
        body = body.model_copy(update={"input": []})
    return CountRequest(body=body, model=sent.get("model"))


async def count_input_tokens(*, principal: Principal, request: CountRequest) -> int:
    """What the upstream counts in what would be sent, or else an estimate.

    The scope is that of creating: who may not ask a model need not count.
    """
    principal.require(Scope.RESPONSES_WRITE)
    body = request.body
    route = await directory.aroute(principal, request.model) if request.model is not None else None
    context = await _read(principal, body)
    body = settings.effective_request(body, context.items)
    if route is not None:
        capabilities.check(body, route)
    can = route.capabilities if route else Capabilities()
    content = await check_attachments(principal=principal, body=body, context=context, can=can)
    parameters = public_parameters(body, response_id="", created_at=now())
    sampling = build_sampling(parameters, hidden_options(body), context.items)
    asked = TurnRequest(
        model=route.upstream_model if route else "",
        instructions=body.instructions,
        items=context.items,
        sampling=sampling,
        first_output_index=0,
        attachments=content,
        cipher=TeamCipher(principal.team_id),
    )
    counted = await token_counts.count(route, asked) if route and (asked.items or asked.instructions) else None
    if counted is not None:
        return counted
    return token_estimate.input_tokens(
        instructions=body.instructions, items=context.items, sampling=sampling, attachments=content
    )


async def _read(principal: Principal, body: CreateResponse) -> RequestContext:
    reject_foreign_content(input_items(body), team_id=principal.team_id)
    if body.conversation is not None:
        principal.require(Scope.CONVERSATIONS_READ)
    if not needs_database(body):
        return read_context(principal=principal, body=body)
    return await in_db_thread(lambda: read_context(principal=principal, body=body))
