"""The second stage of creation: read and check everything on which a new response depends.

Nothing is written, except for the lock of the conversation.
"""

from collections.abc import Sequence
from dataclasses import field
from functools import partial

import limits
from core.ids import new_id
from core.json.large_work import off_loop
from core.records import record
from core.telemetry import tracing
from engine import spans
from responses.lifecycle import conversation_runs
from responses.models import Mode
from responses.requests import capabilities, prompts, tool_offer
from responses.requests.context import UnstoredResponse
from responses.requests.prepare import ContextSources, PreparedRequest, prepare
from responses.runs.identity import RequestInfo, RunIdentity, target_prices
from responses.runs.runner import StreamFormat
from responses.schema import CreateResponse
from responses.tools.registry import without_unavailable_tools
from tenants import directory
from tenants.directory import Route
from tenants.models import Scope
from tenants.prices import UNKNOWN
from tenants.principal import Principal, SubjectLimits


@record
class NewRequest:
    """The parsed request for a response, with the id that the response will have.

    `previous` is the response of `previous_response_id` if the connection has it in memory. `on_socket`: the events are
    sent over a WebSocket, which already counts as an open stream and has no HTTP status line for each response. Without
    a `stream_format`, a stream has the format of the Responses API.
    """

    principal: Principal
    body: CreateResponse
    mode: Mode
    info: RequestInfo
    previous: UnstoredResponse | None = None
    on_socket: bool = False
    stream_format: StreamFormat | None = None
    response_id: str = field(default_factory=partial(new_id, "resp"))

    @property
    def is_open_stream(self) -> bool:
        """True if the request counts as an additional open stream."""
        return self.mode is Mode.STREAM and not self.on_socket


@record
class ResolvedRequest:
    """A request that was found valid. Its limits may still refuse it.

    `warnings` are for the client. `input_tokens` is an estimate for stream formats that begin with this number.
    """

    request: NewRequest
    prepared: PreparedRequest
    route: Route
    identity: RunIdentity
    warnings: Sequence[str]
    input_tokens: int

    @property
    def body(self) -> CreateResponse:
        """The request with the defaults of its prompt, the settings of its context and the maximums of its limits."""
        return self.prepared.body


async def resolve(request: NewRequest) -> ResolvedRequest:
    """Read and check everything on which the response depends. Raises the API error of the first defect."""
    principal, info = request.principal, request.info
    principal.require(Scope.RESPONSES_WRITE)
    # The prompt comes first: it may provide the model and defaults of other parameters.
    body, preface = await prompts.resolve(principal=principal, body=request.body)
    end_user = limits.end_user_of(body.safety_identifier, body.user)
    if principal.is_limited:
        body = _within_limits(body, await limits.applying(principal, end_user))
    route = await directory.aroute(
        principal,
        body.model,
        is_flex=info.batch or body.may_wait,
        service_tier=body.service_tier,
        metadata=body.metadata,
    )
    body, warnings = await without_unavailable_tools(principal, body)
    prepared = await prepare(
        principal=principal,
        body=body,
        route=route,
        response_id=request.response_id,
        sources=ContextSources(
            preface=preface,
            previous=request.previous,
            lock_conversation=partial(
                conversation_runs.lock_and_read, principal=principal, response_id=request.response_id
            ),
        ),
        wants_events=request.mode != Mode.JSON,
    )
    with spans.span(spans.Activity.PREPARE, "Request", began=prepared.created_at):
        await tool_offer.check_grammars(prepared.body)
        if route.others:
            prepared = await off_loop(prepared.with_room)
        if body.may_wait:
            prepared = await off_loop(prepared.at_cheapest_time)
        await off_loop(partial(capabilities.check_length, prepared.run_context))
        counts_input = request.stream_format is not None
        input_tokens = await off_loop(prepared.estimate_input_tokens) if counts_input else 0
    route = prepared.route or route
    # A run that waits has the prices that are valid when it starts.
    priced_at = prepared.starts_at or prepared.created_at
    is_background = bool(body.background)
    identity = RunIdentity(
        response_id=request.response_id,
        team_id=principal.team_id,
        key_id=principal.key_id,
        model=route.model,
        upstream_id=route.upstream.id,
        upstream_model=route.upstream_model,
        request_id=info.request_id,
        stored=prepared.run_context.parameters["store"],
        obfuscate=prepared.options["obfuscate"],
        created_at=prepared.created_at,
        background=is_background,
        streamed=request.mode is Mode.STREAM,
        in_worker=is_background,
        conversation_id=prepared.context.conversation_id,
        prices=route.prices.at(priced_at),
        endpoint=info.endpoint,
        end_user=end_user,
        bills_estimates=principal.bills_estimates,
        # Most requests have no tools. For the others, the prices of tools are read at most once a second.
        tool_prices=await directory.tool_prices.aget() if body.tools else UNKNOWN,
        batch=info.batch,
        # Stored for a worker that continues the trace. In this process, the task of the run inherits the trace.
        trace=tracing.headers() if is_background else {},
        targets=target_prices(route, at=priced_at) if route.others else (),
    )
    return ResolvedRequest(
        request=request,
        prepared=prepared,
        route=route,
        identity=identity,
        warnings=warnings,
        input_tokens=input_tokens,
    )


def _within_limits(body: CreateResponse, applying: Sequence[SubjectLimits]) -> CreateResponse:
    """Return the request with its maximums reduced to the maximums that the limits allow."""
    lowered: dict[str, int] = {}
    for name in ("max_output_tokens", "max_tool_calls"):
        allowed = [subject.values[name] for subject in applying if name in subject.values]
        given = getattr(body, name)
        if allowed and (given is None or given > min(allowed)):
            lowered[name] = min(allowed)
    return body.model_copy(update=lowered) if lowered else body
