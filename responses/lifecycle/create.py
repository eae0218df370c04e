"""Create responses, either run in this process or queued for a worker, and delete them."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection, models

from conversations.models import Placement, Section, opens_context
from conversations.services import remove_unplaced
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.ids import new_id
from kernel.leases import PROCESS, lease_until
from responses.engine import messages
from responses.engine.calls.port import Toolbox
from responses.engine.events.response_body import response_body
from responses.engine.events.terminal import opening, queued
from responses.engine.events.types import Body
from responses.engine.loop import Run
from responses.engine.state import RunContext, RunState
from responses.lifecycle import conversation_runs
from responses.lifecycle.cancel import cancel_run
from responses.lifecycle.notifier import notify_workers
from responses.models import Mode, Response, Status
from responses.moderation import guardrails
from responses.moderation.guardrails import GuardrailChecks
from responses.providers.routing import model_for
from responses.requests import capabilities, pairing, prompts, tool_offer
from responses.requests.attachments import TeamAttachments, check_attachments
from responses.requests.context import RequestContext, UnstoredResponse, effective_request, needs_database, read_context
from responses.requests.encrypted_content import TeamCipher, reject_foreign_content
from responses.requests.parameters import (
    build_sampling,
    compaction_plan,
    hidden_options,
    input_items,
    public_parameters,
)
from responses.runs import conversation_lock
from responses.runs.identity import RequestInfo, RunIdentity
from responses.runs.recorder import Recorder, RecorderState, item_rows, preview
from responses.runs.runner import LiveRun
from responses.runs.store import CallUpdate, Change, PredecessorGuard, writer
from responses.schema import CreateResponse
from responses.tools.registry import create_tools
from tenants import directory, scope
from tenants.audit import audit
from tenants.models import Scope
from tenants.principal import Principal


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedResponse:
    """A validated response that is not stored yet: the change that stores it, and the parts of its run."""

    identity: RunIdentity
    recorder: Recorder
    run_context: RunContext
    context: RequestContext
    route: directory.Route
    toolbox: Toolbox
    checks: GuardrailChecks | None
    opening: bytes
    change: Change


async def create_response(*, principal: Principal, body: CreateResponse, mode: Mode, request: RequestInfo) -> LiveRun:
    """Store a response with its first events and start its run. The caller reads the run.

    Raises an API error if the request is invalid or not permitted.
    """
    return (await start_response(principal=principal, body=body, mode=mode, request=request)).run


async def start_response(
    *,
    principal: Principal,
    body: CreateResponse,
    mode: Mode,
    request: RequestInfo,
    previous: UnstoredResponse | None = None,
) -> StartedRun:
    """Create a response like `create_response`, for a connection that may create further ones after it.

    `previous` is the response of `previous_response_id` if the connection has it in memory. With `generate: false` the
    response completes without output and can be continued.
    """
    response_id = new_id("resp")
    async with conversation_runs.release_on_failure(principal=principal, body=body, response_id=response_id):
        planned = await _plan(principal, body, previous, response_id=response_id, mode=mode, request=request)
        state = RunState()
        run = Run(
            planned.run_context,
            state,
            model=model_for(planned.route),
            tools=planned.toolbox,
            now=now,
            checks=planned.checks if body.generates else None,
        )
        live = LiveRun(
            run, planned.recorder, planned.identity, opening=planned.opening, grace_seconds=principal.grace_seconds
        )
        await _start_when_committed(live, writer.submit(planned.change))
    return StartedRun(run=live, context=planned.context, state=state, previous=previous)


async def queue_response(*, principal: Principal, body: CreateResponse, mode: Mode, request: RequestInfo) -> Body:
    """Store a background response for the next free worker and return its body with the status `queued`.

    Raises an API error if the request is invalid or not permitted.
    """
    response_id = new_id("resp")
    async with conversation_runs.release_on_failure(principal=principal, body=body, response_id=response_id):
        planned = await _plan(principal, body, None, response_id=response_id, mode=mode, request=request)
        # Shielded: once submitted, the change may be committed even if the client disconnects.
        await asyncio.shield(writer.submit(planned.change))
    notify_workers()
    return response_body(planned.run_context.parameters, status=Status.QUEUED.value)


async def _plan(
    principal: Principal,
    body: CreateResponse,
    previous: UnstoredResponse | None,
    *,
    response_id: str,
    mode: Mode,
    request: RequestInfo,
) -> _PlannedResponse:
    """Check a request completely and build the response, its run and the change that stores them."""
    principal.require(Scope.RESPONSES_WRITE)
    # The prompt comes first: it may provide the model and defaults of other parameters.
    prompt = await prompts.resolve(principal=principal, body=body)
    body = prompt.body
    route = await directory.aroute(principal, body.model)
    context = replace(await _read_context(principal, body, previous, response_id), preface=prompt.preface)
    # Items of the context may change reasoning and text settings, so capabilities are checked after it was read.
    body = effective_request(body, context.items)
    capabilities.check(body, route)
    attachments = await check_attachments(principal=principal, body=body, context=context, can=route.capabilities)
    await tool_offer.check_grammars(body)
    created_at = now()
    parameters = public_parameters(body, response_id=response_id, created_at=created_at, preface=prompt.preface)
    options = {**hidden_options(body), **_route_options(route)}
    run_context = _new_run_context(principal, route, body, context, attachments, parameters=parameters, options=options)
    capabilities.check_length(run_context)
    _add_input_messages(body, run_context)
    checks = await guardrails.start_checks(
        principal=principal,
        request=request,
        body=body,
        context=context,
        attachments=attachments,
        response_id=response_id,
    )
    options |= checks.stored_options() if checks is not None else {}
    tools = await create_tools(
        principal=principal,
        body=body,
        items=context.items,
        response_id=response_id,
        answers_http=mode is Mode.JSON and not body.background,
    )
    identity = _identity(
        principal, route, request, context, parameters=parameters, options=options, created_at=created_at
    )
    # An unstored response needs the rows only if it leaves its items in a conversation.
    items = _input_rows(identity, context) if identity.stored or identity.conversation_id else []
    recorder = Recorder(identity, RecorderState(), conversation_runs.new_append(identity, context, items))
    first_events, batch = recorder.opening((queued if body.background else opening)(parameters))
    row = _response_row(
        identity, body, mode=mode, request=request, parameters=parameters, options=options, context=context
    )
    row.secrets = tools.secrets
    return _PlannedResponse(
        identity=identity,
        recorder=recorder,
        run_context=run_context,
        context=context,
        route=route,
        toolbox=tools.toolbox,
        checks=checks,
        opening=first_events,
        change=Change(
            team_id=identity.team_id,
            insert=[row, *(items if identity.stored else ()), *batch],
            lock=conversation_runs.lock_guard(identity),
            predecessor=_predecessor_guard(identity, context),
            calls=[*_answered_calls(body, context), *tools.calls],
        ),
    )


def _route_options(route: directory.Route) -> dict[str, Any]:
    # Stored with the run, so that a worker that resumes it uses the same traits and prices even if an operator has
    # changed the model since.
    return {"traits": asdict(capabilities.traits(route.capabilities)), "prices": route.prices.noted()}


def _new_run_context(
    principal: Principal,
    route: directory.Route,
    body: CreateResponse,
    context: RequestContext,
    attachments: TeamAttachments | None,
    *,
    parameters: dict[str, Any],
    options: dict[str, Any],
) -> RunContext:
    return RunContext(
        response_id=parameters["id"],
        parameters=parameters,
        model=route.upstream_model,
        instructions=body.instructions,
        items=context.items,
        attachments=attachments,
        cipher=TeamCipher(principal.team_id),
        sampling=build_sampling(parameters, options, context.items),
        traits=capabilities.traits(route.capabilities),
        include=frozenset(options.get("include", ())),
        instruction_items=len(context.preface),
        compacted_items=context.compacted,
        compaction=compaction_plan(options),
        generates=body.generates,
    )


def _identity(
    principal: Principal,
    route: directory.Route,
    request: RequestInfo,
    context: RequestContext,
    *,
    parameters: dict[str, Any],
    options: dict[str, Any],
    created_at: datetime,
) -> RunIdentity:
    return RunIdentity(
        response_id=parameters["id"],
        team_id=principal.team_id,
        key_id=principal.key_id,
        model=parameters["model"],
        upstream_id=route.upstream.id,
        upstream_model=route.upstream_model,
        request_id=request.request_id,
        stored=parameters["store"],
        obfuscate=options["obfuscate"],
        created_at=created_at,
        background=bool(parameters["background"]),
        conversation_id=context.conversation_id,
        prices=route.prices,
    )


def _add_input_messages(body: CreateResponse, run_context: RunContext) -> None:
    if body.enable_response_messages:
        read = [item.wire() for item in run_context.items]
        run_context.parameters["input_messages"] = messages.input_messages(
            instructions=run_context.instructions, items=read, tools=run_context.sampling.tools
        )


async def _start_when_committed(live: LiveRun, commit: "asyncio.Future[None]") -> None:
    try:
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


async def _read_context(
    principal: Principal, body: CreateResponse, previous: UnstoredResponse | None, response_id: str
) -> RequestContext:
    reject_foreign_content(input_items(body), team_id=principal.team_id)
    if body.conversation is not None:
        return await conversation_runs.lock_and_read(principal=principal, body=body, response_id=response_id)
    if not needs_database(body, previous):
        return read_context(principal=principal, body=body, previous=previous)
    return await in_db_thread(lambda: read_context(principal=principal, body=body, previous=previous))


def _response_row(
    identity: RunIdentity,
    body: CreateResponse,
    *,
    mode: Mode,
    request: RequestInfo,
    parameters: dict[str, Any],
    options: dict[str, Any],
    context: RequestContext,
) -> Response:
    row = Response(
        id=identity.response_id,
        team_id=identity.team_id,
        api_key_id=identity.key_id,
        created_at=identity.created_at,
        mode=mode,
        stored=identity.stored,
        # Unstored responses have no items, so a stored one is linked to the last stored response before it.
        previous_response_id=context.predecessor_id if identity.stored else body.previous_response_id,
        conversation_id=identity.conversation_id,
        history_id=identity.conversation_id,
        history_end=context.history_end,
        model=identity.model,
        upstream_id=identity.upstream_id,
        upstream_model=identity.upstream_model,
        end_user=(body.safety_identifier or body.user or "")[:128] or None,
        request_id=request.request_id,
        client_request_id=request.client_request_id or body.request_id or "",
    )
    if identity.background:
        # Without a lease a background response waits in the queue for a worker.
        row.status, row.background = Status.QUEUED, True
    else:
        row.lease_owner, row.lease_until = PROCESS, lease_until()
    # With `store: false` the row exists for usage and administration only, and holds no content.
    if identity.stored:
        row.parameters = parameters
        row.options = options
        row.metadata = parameters["metadata"]
        row.input_preview = preview(context.input_bodies[-1]) if context.input_bodies else ""
    return row


def _input_rows(identity: RunIdentity, context: RequestContext) -> list[models.Model]:
    rows: list[models.Model] = []
    for position, item in enumerate(context.input_bodies):
        # An item without any placement is removed. An unstored response writes no placements, so it must copy items
        # instead of sharing them.
        key = context.shared_keys.get(position) if identity.stored else None
        if key is None:
            rows += item_rows(item, identity, Section.INPUT, position)
        else:
            rows.append(
                Placement(
                    team_id=identity.team_id,
                    owner=identity.response_id,
                    section=Section.INPUT,
                    position=position,
                    item_id=key,
                    opens_context=opens_context(item["type"]),
                )
            )
    return rows


def _predecessor_guard(identity: RunIdentity, context: RequestContext) -> PredecessorGuard | None:
    # An unstored response has its context in memory, so it does not matter whether the predecessor is deleted.
    if context.predecessor_id is None or not identity.stored:
        return None
    return PredecessorGuard(response_id=identity.response_id, previous_id=context.predecessor_id)


def _answered_calls(body: CreateResponse, context: RequestContext) -> Sequence[CallUpdate]:
    """Return the updates that end the client's tool calls whose outputs this request brings."""
    calling_response_id = body.previous_response_id or context.answered_response_id
    if calling_response_id is None:
        return ()
    at: datetime = now()
    outputs = [output for item in context.input_bodies if (output := pairing.call_output(item)) is not None]
    return [
        CallUpdate(
            response_id=calling_response_id,
            call_id=output.call_id,
            status="failed" if output.failed else "completed",
            ended_at=at,
            output=output.text,
        )
        for output in outputs
    ]


def delete_response(*, actor: str, response: Response, request: RequestInfo, reason: str = "") -> None:
    """Delete a response with its turns, tool calls and events, and the items that have no other placement.

    Its successors are linked to its predecessor. Items that were appended to a conversation stay there. The audit log
    records the `actor`, and the `reason` if there is one.
    """
    # A background run is cancelled first, so that its followers and webhooks receive its end. A foreground run needs no
    # cancelling: its next commit finds no row, and it stops.
    if response.background:
        cancel_run(team_id=response.team_id, actor=actor, response_id=response.pk, request=request)
    with scope.team(response.team_id):
        _unlink(response)
        places = Placement.objects.filter(owner=response.pk)
        keys = list(places.values_list("item_id", flat=True))
        places.delete()
        remove_unplaced(keys)
        audit(
            team_id=response.team_id,
            actor=actor,
            action="response.deleted",
            target=response.pk,
            after={"reason": reason} if reason else None,
            request_id=request.request_id,
        )
        Response.objects.filter(pk=response.pk).delete()


def _unlink(response: Response) -> None:
    """Link the successors of a response to its predecessor, and release its conversation lock."""
    # Two neighbours of a chain that are deleted at the same time could link a third response to each other. The lock
    # has a team's responses deleted one after the other.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"cut-out:{response.team_id}"])
    # Successors are locked before the response: the run writer locks rows in that order, and another order could
    # deadlock with it.
    successors = Response.objects.filter(previous_response_id=response.pk)
    list(successors.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    # The row is locked before anything changes. A concurrent end of the run finds nothing to end; a concurrent
    # successor is stored by now, or fails because its predecessor is gone.
    fresh = Response.objects.select_for_update().filter(pk=response.pk).first()
    if fresh is None:
        return
    successors.update(
        previous_response_id=fresh.previous_response_id, history_id=fresh.history_id, history_end=fresh.history_end
    )
    conversation_lock.release_deleted(fresh)
