"""`POST /v1/responses/compact`: compact a conversation that only the client stores.

The body has some parameters of `POST /v1/responses`, which are checked and read in the same way. The answer contains
the user's messages and one compaction item, which the client sends as its next input. Only a usage record is stored.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from core.clock import now
from core.errors import UnknownParameter
from core.ids import new_id
from engine.calls.toolbox import Toolbox
from engine.compaction import token_estimate
from engine.compaction.run import Compactor
from engine.events.response_body import usage_body
from engine.events.types import Body
from engine.state import RunState
from engine.steps import ContextCompacted, TurnRecord
from engine.turn import LanguageModel, ReserveAgain, TurnRequest, TurnStream, Usage
from providers.targets.turn import model_of
from responses.requests import capabilities
from responses.requests.prepare import prepare
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from responses.schema import CreateResponse, parse_create
from responses.schema.subset import refuse_others
from tenants import directory
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
    # In contrast to other endpoints, an `input` of null counts as not sent.
    sent = {name: value for name, value in values.items() if value is not None or name == "model"}
    body = parse_create({"input": [], **sent})
    for name in body.prompt_cache_options.model_fields_set if body.prompt_cache_options else ():
        if name not in _CACHE_OPTIONS:
            raise UnknownParameter(f"prompt_cache_options.{name}")
    return body


async def compact(*, principal: Principal, body: CreateResponse, request: RequestInfo) -> Body:
    """Run one compaction pass and return its result as a `response.compaction`. Raises the upstream's error."""
    route = await directory.aroute(principal, body.model)
    response_id = new_id("resp")
    prepared = await prepare(principal=principal, body=body, route=route, response_id=response_id)
    if route.others:
        prepared = prepared.with_room()
    route, run_context = prepared.route or route, prepared.run_context
    capabilities.check_length(run_context)
    state = RunState()
    model = _CappedModel(model_of(route))
    compacting = Compactor.at_once(run_context, state, model=model, tools=Toolbox(), now=now)
    # The messages of the user are returned unchanged. The compaction item replaces all other items.
    messages = compacting.kept_messages()
    call = RoutedCall(
        principal=principal,
        route=route,
        endpoint="responses.compact",
        request_id=request.request_id,
        end_user=body.safety_identifier or body.user or "",
        targets=route.targets if route.others else (),
    )
    if principal.is_limited:
        asked = compacting.build_request()
        model.max_output_tokens = await call.reserve(
            partial(cost_bounds.of_turn, asked, cost_bounds.widest([target.capabilities for target in route.targets])),
            ExpectedTokens(
                input=token_estimate.input_tokens(
                    instructions=asked.instructions, items=asked.items, sampling=asked.sampling
                ),
                max_output=None,
            ),
            service_tier=asked.sampling.service_tier,
        )
        model.may_repeat, model.reserve_again = call.may_repeat, call.reserve_again
    turn: TurnRecord | None = None

    def spent(_: str) -> tuple[str, Usage]:
        call.attempts.extend(turn.result.attempts or () if turn is not None else ())
        return response_id, turn.usage if turn is not None else Usage()

    async with call.recorded(spent, success="compacted"):
        try:
            async with aclosing(compacting.steps()) as steps:
                async for step in steps:
                    turn = step.turn if isinstance(step, ContextCompacted) else turn
        except asyncio.CancelledError:
            turn = compacting.interrupt()
            raise
        if compacting.failure is not None:
            raise compacting.failure.as_api_error()
    return {
        "id": response_id,
        "object": "response.compaction",
        "created_at": run_context.parameters["created_at"],
        "output": [*messages, *state.bodies()],
        "usage": usage_body(state.usage),
        **{name: run_context.parameters[name] for name in ("image",) if name in run_context.parameters},
    }


class _CappedModel:
    """A model for calls that were reserved: the options of requests are set after the reservation."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.max_output_tokens: int | None = None
        self.may_repeat = True
        self.reserve_again: ReserveAgain | None = None

    def open(self, request: TurnRequest) -> TurnStream:
        """Start a turn."""
        if self.max_output_tokens is not None:
            sampling = replace(request.sampling, max_output_tokens=self.max_output_tokens)
            request = replace(request, sampling=sampling)
        return self._model.open(replace(request, may_repeat=self.may_repeat, reserve_again=self.reserve_again))
