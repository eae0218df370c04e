"""Create responses, either run in this process or queued for a worker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import limits
from conversations.models import Placement, Section, opens_context
from core.admission.overload import admission
from core.clock import now
from core.ids import new_id
from core.json.large_work import off_loop
from core.process_name import process_name
from core.telemetry import tracing
from core.work.leases import lease_until
from engine import spans, turn_request
from engine.calls.toolbox import Toolbox
from engine.compaction import token_estimate
from engine.events.response_body import opening, queued, response_body
from engine.events.types import Body, Event
from engine.loop import Run
from engine.state import RunContext, RunState
from engine.turn import LanguageModel, TurnRequest
from limits import end_user_of
from limits.throttle import is_limited
from providers.first_answer import FirstAnswer
from providers.upstream import UpstreamModel
from responses import moderation
from responses.lifecycle import conversation_runs
from responses.lifecycle.queue import notify_workers
from responses.models import Mode, Response, Status
from responses.models.stored_request import stored_options, stored_parameters
from responses.passthrough.reasoning_summaries import TeamSummarizer
from responses.requests import capabilities, pairing, prompts, tool_offer
from responses.requests.context import RequestContext, UnstoredResponse
from responses.requests.prepare import PreparedRequest, prepare
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.identity import RequestInfo, RunIdentity, UsageAccount
from responses.runs.recorder import FLUSH_BYTES, Recorder, RecorderState, item_rows, preview
from responses.runs.reservations import LimitedModel, RunReservation
from responses.runs.rows import Row, new_row
from responses.runs.runner import LiveRun, StreamFormat
from responses.runs.store import CallUpdate, Change, LockGuard, PredecessorGuard, submit_new
from responses.schema import CreateResponse
from responses.tools.registry import RunTools, create_tools, without_unavailable_tools
from tenants import directory
from tenants.models import Scope
from tenants.prices import UNKNOWN
from tenants.principal import Principal, SubjectLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A started run, with the state that its WebSocket connection needs to continue from it."""

    run: LiveRun
    context: RequestContext
    state: RunState
    previous: UnstoredResponse | None

    def as_unstored(self) -> UnstoredResponse | None:
        """Return the ended response as a predecessor in memory, or None if it is stored in the database."""
        identity = self.run.identity
        if identity.stored:
            return None
        output = [item.body for item in self.state.output if item.in_context]
        before, context = self.previous, self.context
        if context.conversation_id is not None:
            # A stored chain can contain only its own conversation, so a successor must copy these items as well.
            history = [item.with_id() for item in context.history]
            unstored = [*history, *context.input_bodies, *output]
            return UnstoredResponse(
                response_id=identity.response_id, predecessor_id=None, history=(), unstored=unstored
            )
        return UnstoredResponse(
            response_id=identity.response_id,
            predecessor_id=context.predecessor_id,
            history=before.history if before else context.history,
            unstored=[*(before.unstored if before else ()), *context.input_bodies, *output],
        )


async def create_response(
    *,
    principal: Principal,
    body: CreateResponse,
    mode: Mode,
    request: RequestInfo,
    stream_format: StreamFormat | None = None,
) -> LiveRun:
    """Store a response with its first events and start its run. The caller reads the run.

    Raises an API error if the request is invalid or not permitted.
    """
    started = await start_response(
        principal=principal,
        body=body,
        mode=mode,
        request=request,
        stream_format=stream_format,
        is_stream=mode is Mode.STREAM,
    )
    return started.run


def _input_tokens(context: RunContext) -> int:
    return token_estimate.input_tokens(
        instructions=context.instructions,
        items=context.items,
        sampling=context.sampling,
        attachments=context.attachments,
    )


async def start_response(
    *,
    principal: Principal,
    body: CreateResponse,
    mode: Mode,
    request: RequestInfo,
    previous: UnstoredResponse | None = None,
    stream_format: StreamFormat | None = None,
    is_stream: bool = False,
) -> StartedRun:
    """Create a response like `create_response`, for a connection that may create further ones after it.

    `previous` is the response of `previous_response_id` if the connection has it in memory. With `generate: false` the
    response completes without output and can be continued. `is_stream`: it counts as an open stream of its own.
    """
    response_id = new_id("resp")
    spans.begin()
    async with conversation_runs.release_on_failure(principal=principal, body=body, response_id=response_id):
        new = await _check(
            principal,
            body,
            previous,
            response_id=response_id,
            mode=mode,
            request=request,
            is_stream=is_stream,
            counts_input=stream_format is not None,
        )
        state = RunState()
        account = UsageAccount(
            team_id=principal.team_id,
            key_id=principal.key_id,
            object_id=response_id,
            request_id=request.request_id,
            end_user=new.identity.end_user,
        )
        # A WebSocket has no status line.
        first_answer = FirstAnswer() if is_stream else None
        run = Run(
            new.prepared.run_context,
            state,
            model=new.model(UpstreamModel(new.route, summarizer=TeamSummarizer(account), first_answer=first_answer)),
            tools=replace(new.tools.toolbox, budget=new.reservation),
            now=now,
            checks=new.checks if new.prepared.body.generates else None,
        )
        first_frames = new.opening
        if stream_format is not None:
            first_frames = stream_format.open(new.first_events, input_tokens=new.input_tokens)
        live = LiveRun(
            run,
            new.recorder,
            new.identity,
            opening=first_frames,
            grace_seconds=principal.grace_seconds,
            warnings=new.warnings,
            stream_format=stream_format,
            is_streamed=mode is Mode.STREAM,
            encrypted_secrets=new.tools.encrypted_secrets,
            first_answer=first_answer,
        )
        commit = new.store()
        try:
            with spans.span(spans.Activity.STORAGE, "Commit"):
                await asyncio.shield(commit)
        except asyncio.CancelledError:
            # The client has disconnected, but the commit may still succeed. Then the run must start: otherwise its row
            # would stay in progress until the sweeper ends it. It is detached, because no client reads it.
            await asyncio.wait([commit])
            if commit.exception() is None:
                live.start()
                live.detach()
            raise
        live.start()
        admission.started()
    return StartedRun(run=live, context=new.prepared.context, state=state, previous=previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResponse:
    """A response that waits for a worker: its body with the status `queued`, and the warnings for the client.

    `opening` holds the bytes of its first events if they are small.
    """

    body: Body
    opening: bytes
    warnings: Sequence[str] = ()


async def queue_response(
    *, principal: Principal, body: CreateResponse, mode: Mode, request: RequestInfo
) -> QueuedResponse:
    """Store a background response for the next free worker.

    Raises an API error if the request is invalid or not permitted.
    """
    response_id = new_id("resp")
    spans.begin()
    async with conversation_runs.release_on_failure(principal=principal, body=body, response_id=response_id):
        new = await _check(principal, body, None, response_id=response_id, mode=mode, request=request)
        # Shielded: once submitted, the change may be committed even if the client disconnects.
        await asyncio.shield(new.store())
    notify_workers()
    queued_body = response_body(new.prepared.run_context.parameters, status=Status.QUEUED.value)
    return QueuedResponse(
        body=queued_body,
        # Large events are read from the log, in a thread.
        opening=new.opening if len(new.opening) < FLUSH_BYTES else b"",
        warnings=new.warnings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewResponse:
    """A response that was checked but is not stored yet: the change that stores it, and the parts of its run."""

    prepared: PreparedRequest
    route: directory.Route
    checks: moderation.OutputChecks | None
    tools: RunTools
    warnings: Sequence[str]
    identity: RunIdentity
    recorder: Recorder
    first_events: Sequence[Event]
    opening: bytes
    change: Change
    reservation: RunReservation | None
    input_tokens: int = 0

    def model(self, model: LanguageModel) -> LanguageModel:
        """Return the model with the run's limits applied to its calls."""
        return model if self.reservation is None else LimitedModel(model, self.reservation)

    def store(self) -> "asyncio.Future[None]":
        """Submit the change that stores the response. Await the future for the commit."""
        if self.reservation is None:
            return submit_new(self.change)
        return asyncio.ensure_future(self.reservation.store(self.change))


async def _check(
    principal: Principal,
    body: CreateResponse,
    previous: UnstoredResponse | None,
    *,
    response_id: str,
    mode: Mode,
    request: RequestInfo,
    is_stream: bool = False,
    counts_input: bool = False,
) -> _NewResponse:
    """Check a request completely. Its reservations are stored together with it.

    `counts_input`: the stream begins with an estimate of the input tokens.
    """
    principal.require(Scope.RESPONSES_WRITE)
    # The prompt comes first: it may provide the model and defaults of other parameters.
    body, preface = await prompts.resolve(principal=principal, body=body)
    end_user = end_user_of(body.safety_identifier, body.user)
    if is_limited(principal):
        body = _within_limits(body, await limits.applying(principal, end_user))
    route = await directory.aroute(principal, body.model)
    body, warnings = await without_unavailable_tools(principal, body)
    prepared = await prepare(
        principal=principal,
        body=body,
        route=route,
        response_id=response_id,
        preface=preface,
        previous=previous,
        lock_conversation=partial(conversation_runs.lock_and_read, principal=principal, response_id=response_id),
        wants_events=mode != Mode.JSON,
    )
    with spans.span(spans.Activity.PREPARE, "Request", began=prepared.created_at):
        await tool_offer.check_grammars(prepared.body)
        await off_loop(partial(capabilities.check_length, prepared.run_context))
        input_tokens = await off_loop(partial(_input_tokens, prepared.run_context)) if counts_input else 0
    # Requests that are refused in any case do not count against the limits; all others reserve before anything is
    # spent.
    reservation = None
    if is_limited(principal):
        reservation = RunReservation(
            principal,
            response_id=response_id,
            lease_token=1,
            end_user=end_user,
            endpoint=request.endpoint,
            prices=route.prices,
            capabilities=route.capabilities,
            tool_prices=await directory.tool_prices.aget() if body.tools else UNKNOWN,
            is_background=bool(body.background),
        )
        if body.background:
            await reservation.take_queue_place()
        else:
            await reservation.take(_first_call(prepared.run_context), stream=is_stream)
    try:
        new = await _build(
            principal,
            prepared,
            route,
            warnings,
            reservation,
            end_user=end_user,
            response_id=response_id,
            mode=mode,
            request=request,
        )
        return replace(new, input_tokens=input_tokens) if counts_input else new
    except BaseException:
        if reservation is not None:
            reservation.give_up()
        raise


def _within_limits(body: CreateResponse, applying: Sequence[SubjectLimits]) -> CreateResponse:
    """Return the request with its maximums lowered to those of the limits."""
    lowered: dict[str, int] = {}
    for name in ("max_output_tokens", "max_tool_calls"):
        allowed = [subject.values[name] for subject in applying if name in subject.values]
        given = getattr(body, name)
        if allowed and (given is None or given > min(allowed)):
            lowered[name] = min(allowed)
    return body.model_copy(update=lowered) if lowered else body


def _first_call(context: RunContext) -> TurnRequest | None:
    return turn_request.build(context, RunState(), Toolbox()) if context.generates else None


async def _build(
    principal: Principal,
    prepared: PreparedRequest,
    route: directory.Route,
    warnings: Sequence[str],
    reservation: RunReservation | None,
    *,
    end_user: str,
    response_id: str,
    mode: Mode,
    request: RequestInfo,
) -> _NewResponse:
    """Check the content of a request, and return the response with the change that stores it."""
    body, context = prepared.body, prepared.context
    with spans.span(spans.Activity.GUARDRAIL, "Input"):
        checks = await moderation.start_checks(
            principal=principal,
            request=request,
            body=body,
            context=context,
            attachments=prepared.attachments,
            response_id=response_id,
        )
    with spans.span(spans.Activity.PREPARE, "Tools"):
        tools = await create_tools(
            principal=principal,
            body=body,
            items=context.items,
            response_id=response_id,
        )
    options = {**prepared.options, **(checks.stored_options() if checks is not None else {})}
    # Most requests have no tools. The prices of the others are read at most once a second.
    tool_prices = await directory.tool_prices.aget() if body.tools else UNKNOWN
    options |= {"tool_prices": tool_prices.stored()} if tool_prices else {}
    options |= {} if principal.bills_estimates else {"waives_estimates": True}
    # A worker continues the trace; in this process, the task of the run inherits it.
    if body.background and (trace := tracing.headers()):
        options |= {"trace": trace}
    parameters = prepared.run_context.parameters
    identity = RunIdentity(
        response_id=response_id,
        team_id=principal.team_id,
        key_id=principal.key_id,
        model=body.model,
        upstream_id=route.upstream.id,
        upstream_model=route.upstream_model,
        request_id=request.request_id,
        stored=parameters["store"],
        obfuscate=options["obfuscate"],
        created_at=prepared.created_at,
        background=bool(body.background),
        streamed=mode is Mode.STREAM,
        in_worker=bool(body.background),
        conversation_id=context.conversation_id,
        prices=route.prices.at(prepared.created_at),
        endpoint=request.endpoint,
        end_user=end_user,
        bills_estimates=principal.bills_estimates,
        tool_prices=tool_prices,
        batch=request.batch,
    )
    build_row = partial(
        _response_row,
        identity,
        prepared,
        options,
        mode=mode,
        request=request,
        secrets=tools.encrypted_secrets() if body.background else "",
    )
    row = await off_loop(build_row)
    # An unstored response needs the rows only if it leaves its items in a conversation.
    stores_items = identity.stored or identity.conversation_id
    items = await off_loop(partial(_input_rows, identity, context)) if stores_items else []
    append = lock = predecessor = None
    if identity.conversation_id is not None:
        append = ConversationAppend(conversation_id=identity.conversation_id, read_to=context.history_end)
        append.add(items, written=identity.stored)
        lock = LockGuard(response_id=response_id, conversation_id=identity.conversation_id)
    # An unstored response has its context in memory, so it does not matter whether the predecessor is deleted.
    if context.predecessor_id is not None and identity.stored:
        predecessor = PredecessorGuard(response_id=response_id, previous_id=context.predecessor_id)
    recorder = Recorder(identity, RecorderState(), append, reservation)
    first_events = (queued if body.background else opening)(parameters)
    frames, batch = await off_loop(partial(_open_log, recorder, identity, first_events))
    return _NewResponse(
        prepared=prepared,
        route=route,
        checks=checks,
        tools=tools,
        warnings=warnings,
        identity=identity,
        recorder=recorder,
        first_events=first_events,
        opening=frames,
        change=Change(
            team_id=identity.team_id,
            insert=[row, *(items if identity.stored else ()), *batch],
            lock=lock,
            predecessor=predecessor,
            calls=[*await off_loop(partial(_answered_calls, body, context)), *tools.calls],
        ),
        reservation=reservation,
    )


def _open_log(recorder: Recorder, identity: RunIdentity, events: Sequence[Event]) -> tuple[bytes, list[Row]]:
    """Return the bytes of the first events, and the log rows that are inserted with the response."""
    frames = recorder.opening(events)
    # The first events of a foreground run are in its next batch: one row less, which was 0.3 KB of WAL. If the process
    # dies before, `resume.load` builds them again from the response. Those of a background run are in the log when its
    # worker takes over, and large ones (which echo large instructions or tools) are compressed outside of the loop.
    waits = not identity.background and len(frames) < FLUSH_BYTES
    return frames, [] if waits else recorder.take_batch()


def _response_row(
    identity: RunIdentity,
    prepared: PreparedRequest,
    options: dict[str, Any],
    *,
    mode: Mode,
    request: RequestInfo,
    secrets: str,
) -> Row:
    body, context, run = prepared.body, prepared.context, prepared.run_context
    columns: dict[str, Any]
    if identity.stored:
        columns = {
            "parameters": stored_parameters(run.parameters),
            "options": stored_options(options),
            "metadata": run.parameters["metadata"],
            "input_preview": preview(context.input_bodies[-1]) if context.input_bodies else "",
        }
    else:
        # With `store: false` the row exists for usage and administration only, and holds no content; just enough to
        # estimate the usage of a call that is lost with its process.
        tokens = token_estimate.input_tokens(instructions=run.instructions, items=run.items, sampling=run.sampling)
        kept = {name: options[name] for name in ("tool_prices", "waives_estimates") if name in options}
        columns = {"options": {"input_tokens": tokens, "prices": identity.prices.stored(), **kept}}
    # Without a lease a background response waits in the queue for a worker.
    columns |= (
        {"status": Status.QUEUED, "background": True}
        if identity.background
        else {"lease_owner": process_name(), "lease_until": lease_until()}
    )
    return new_row(
        Response,
        id=identity.response_id,
        team_id=identity.team_id,
        api_key_id=identity.key_id,
        created_at=identity.created_at,
        mode=mode,
        endpoint=identity.endpoint,
        stored=identity.stored,
        # Unstored responses have no items, so a stored one is linked to the last stored response before it.
        previous_response_id=context.predecessor_id if identity.stored else body.previous_response_id,
        conversation_id=identity.conversation_id,
        history_id=identity.conversation_id,
        history_end=context.history_end,
        model=identity.model,
        upstream_id=identity.upstream_id,
        upstream_model=identity.upstream_model,
        end_user=identity.end_user or None,
        request_id=request.request_id,
        client_request_id=request.client_request_id or body.request_id or "",
        secrets=secrets,
        spans=spans.take(identity.created_at),
        **columns,
    )


def _input_rows(identity: RunIdentity, context: RequestContext) -> list[Row]:
    rows: list[Row] = []
    for position, item in enumerate(context.input_bodies):
        # An item without any placement is removed. An unstored response writes no placements, so it must copy items
        # instead of sharing them.
        key = context.shared_keys.get(position) if identity.stored else None
        if key is None:
            rows += item_rows(item, identity, Section.INPUT, position)
        else:
            rows.append(
                new_row(
                    Placement,
                    team_id=identity.team_id,
                    owner=identity.response_id,
                    section=Section.INPUT,
                    position=position,
                    item_id=key,
                    opens_context=opens_context(item["type"]),
                )
            )
    return rows


def _answered_calls(body: CreateResponse, context: RequestContext) -> Sequence[CallUpdate]:
    """Return the updates that end the client tool calls whose outputs this request contains."""
    calling_response_id = body.previous_response_id or context.answered_response_id
    if calling_response_id is None:
        return ()
    at = now()
    return [
        CallUpdate(
            response_id=calling_response_id,
            call_id=output.call_id,
            status="failed" if output.failed else "completed",
            ended_at=at,
            output=output.text,
        )
        for item in context.input_bodies
        if (output := pairing.call_output(item)) is not None
    ]
