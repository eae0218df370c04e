"""`POST /v1/responses/compact`: compact a conversation that the client keeps itself.

The body has parameters of `POST /v1/responses`, which are checked and read in the same way. The answer contains the
user's messages and one compaction item, to be sent as the next input. Only a usage record is stored.
"""

import asyncio
from contextlib import aclosing
from typing import Any

from conversations.items import InputMessage
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.errors import UnknownParameter
from kernel.ids import new_id
from responses.engine.calls.port import NoTools
from responses.engine.compaction.items import CompactionPlan
from responses.engine.compaction.run import Compactor
from responses.engine.events.response_body import usage_body
from responses.engine.events.types import Body
from responses.engine.state import RunContext, RunState
from responses.providers.routing import model_for
from responses.requests import capabilities
from responses.requests.attachments import check_attachments
from responses.requests.context import RequestContext, effective_request, needs_database, read_context
from responses.requests.encrypted_content import TeamCipher, reject_foreign_content
from responses.requests.parameters import build_sampling, hidden_options, input_items, public_parameters
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import RoutedCall
from responses.schema import CreateResponse, parse_create
from responses.schema.subset import refuse_others
from tenants import directory
from tenants.directory import Route
from tenants.models import Scope
from tenants.principal import Principal

PARAMETERS = (
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "image",
)
_CACHE_OPTIONS = {"mode", "ttl"}


def parse_compact(values: dict[str, Any]) -> CreateResponse:
    """Parse a body as `parse_create` does for a response. Raises the 400 of its first error."""
    refuse_others(values, known=PARAMETERS)
    # Unlike elsewhere, an `input` of null is the same as none.
    sent = {name: value for name, value in values.items() if value is not None or name == "model"}
    body = parse_create({"input": [], **sent})
    for name in body.prompt_cache_options.model_fields_set if body.prompt_cache_options else ():
        if name not in _CACHE_OPTIONS:
            raise UnknownParameter(f"prompt_cache_options.{name}")
    return body


async def compact(*, principal: Principal, body: CreateResponse, request: RequestInfo) -> Body:
    """Run one compaction pass and return its result as a `response.compaction`. Raises the upstream's error."""
    principal.require(Scope.RESPONSES_WRITE)
    route = await directory.aroute(principal, body.model)
    run_context = await _run_context(principal, body, route)
    state, model = RunState(), model_for(route)
    compacting = Compactor(run_context, state, model=model, tools=NoTools(), now=now)
    # The messages of the user are returned as they are; the compaction item replaces the rest.
    messages = [item.with_id() for item in compacting.kept() if isinstance(item, InputMessage) and item.role == "user"]
    call = RoutedCall(principal=principal, route=route, endpoint="responses.compact", request_id=request.request_id)
    outcome = "failed"
    try:
        await _run(compacting)
        outcome = "compacted"
    except asyncio.CancelledError:
        compacting.interrupt()
        outcome = "interrupted"
        raise
    finally:
        # Also for a failed or interrupted call: its tokens were spent. Shielded, because the request may be cancelled.
        await asyncio.shield(call.write(object_id=run_context.response_id, outcome=outcome, usage=state.usage))
    return {
        "id": run_context.response_id,
        "object": "response.compaction",
        "created_at": run_context.parameters["created_at"],
        "output": [*messages, *state.bodies()],
        "usage": usage_body(state.usage),
        **{name: run_context.parameters[name] for name in ("image",) if name in run_context.parameters},
    }


async def _run(compacting: Compactor) -> None:
    async with aclosing(compacting.steps()) as steps:
        async for _ in steps:
            continue
    if compacting.failure is not None:
        raise compacting.failure.as_api_error()


async def _run_context(principal: Principal, body: CreateResponse, route: Route) -> RunContext:
    context = await _read_context(principal, body)
    body = effective_request(body, context.items)
    capabilities.check(body, route)
    attachments = await check_attachments(principal=principal, body=body, context=context, can=route.capabilities)
    parameters = public_parameters(body, response_id=new_id("resp"), created_at=now())
    run_context = RunContext(
        response_id=parameters["id"],
        parameters=parameters,
        model=route.upstream_model,
        instructions=body.instructions,
        items=context.items,
        attachments=attachments,
        cipher=TeamCipher(principal.team_id),
        sampling=build_sampling(parameters, hidden_options(body), context.items),
        traits=capabilities.traits(route.capabilities),
        compacted_items=context.compacted,
        compaction=CompactionPlan(at_once=True),
    )
    capabilities.check_length(run_context)
    return run_context


async def _read_context(principal: Principal, body: CreateResponse) -> RequestContext:
    reject_foreign_content(input_items(body), team_id=principal.team_id)
    # Most requests bring their whole context and need no database thread.
    if not needs_database(body):
        return read_context(principal=principal, body=body)
    return await in_db_thread(lambda: read_context(principal=principal, body=body))
