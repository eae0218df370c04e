"""Writes: creating and deleting responses."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection, models
from typing_extensions import override

from conversations.models import Placement, Section, opens_context
from conversations.services import remove_unplaced
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.ids import new_id
from responses.engine import messages
from responses.engine.calls.port import Toolbox
from responses.engine.events.response_body import response_body
from responses.engine.events.terminal import opening, queued
from responses.engine.events.types import Body
from responses.engine.loop import Run
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Step
from responses.engine.turn import LanguageModel
from responses.lifecycle import conversation_runs
from responses.lifecycle.cancel import cancel_run
from responses.lifecycle.notifier import notify_workers
from responses.models import Mode, Response, Status
from responses.moderation import guardrails
from responses.moderation.guardrails import GuardrailChecks
from responses.moderation.run import ModeratedRun
from responses.providers.routing import model_for
from responses.requests import capabilities, pairing, prompts, settings, tool_offer
from responses.requests import parameters as wire
from responses.requests.attachments import TeamAttachments, check_attachments
from responses.requests.context import RequestContext, UnstoredResponse, needs_database, read_context
from responses.requests.encrypted_content import TeamCipher, reject_foreign_content
from responses.runs import conversation_lock
from responses.runs.identity import RunIdentity
from responses.runs.ledger import RequestInfo
from responses.runs.recorder import Recorder, RecorderState, item_rows, preview
from responses.runs.runner import PROCESS, LiveRun, lease_until
from responses.runs.store import CallUpdate, Change, PredecessorGuard, writer
from responses.schema import CreateResponse
from responses.tools.registry import create_tools
from tenants import directory, scope
from tenants.audit import audit
from tenants.models import Scope
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that has begun, with what its connection needs to go on from it."""

    run: LiveRun
    context: RequestContext
    state: RunState
    previous: UnstoredResponse | None

    def remembered(self) -> UnstoredResponse | None:
        """What a response that follows this one reads, once it has ended; None where the database holds it."""
        who = self.run.identity
        if who.stored:
            return None
        output = [item.body for item in self.state.output if item.in_context]
        before, context = self.previous, self.context
        if context.conversation_id is not None:
            # The chain of a stored response holds no conversation but its own: the follower takes this one's items.
            told = [item.with_id() for item in context.history]
            unstored = [*told, *context.input_bodies, *output]
            return UnstoredResponse(response_id=who.response_id, predecessor_id=None, history=(), unstored=unstored)
        return UnstoredResponse(
            response_id=who.response_id,
            predecessor_id=context.predecessor_id,
            history=before.history if before else context.history,
            unstored=[*(before.unstored if before else ()), *context.input_bodies, *output],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A response that is about to be stored: what its run needs, and the change that stores it."""

    who: RunIdentity
    recorder: Recorder
    given: RunContext
    context: RequestContext
    route: directory.Route
    toolbox: Toolbox
    checks: GuardrailChecks | None
    opening: bytes
    change: Change


class _WarmUp(Run):
    """The run of `generate:false`: it asks no model, and has ended as soon as it has begun."""

    @override
    async def steps(self) -> AsyncGenerator[Step, None]:
        at = self._now()
        yield self._end(self._completed(at), at=at)


async def create_response(*, principal: Principal, body: CreateResponse, mode: Mode, request: RequestInfo) -> LiveRun:
    """Insert the response with its first events, and begin to run it. The run is started; the caller reads it."""
    return (await start_response(principal=principal, body=body, mode=mode, request=request)).run


async def start_response(
    *,
    principal: Principal,
    body: CreateResponse,
    mode: Mode,
    request: RequestInfo,
    previous: UnstoredResponse | None = None,
) -> StartedRun:
    """`create_response` for a connection that goes on: `previous` is the response of `previous_response_id` where the
    connection has it in memory. With `generate:false` the response completes with no output, and can be followed."""
    response_id = new_id("resp")
    async with conversation_runs.holding(principal=principal, body=body, response_id=response_id):
        planned = await _plan(principal, body, previous, response_id=response_id, mode=mode, request=request)
        state = RunState()
        run = _run(planned, state, generates=body.generates, model=model_for(planned.route))
        live = LiveRun(
            run, planned.recorder, planned.who, opening=planned.opening, grace_seconds=principal.grace_seconds
        )
        await _start_when_committed(live, writer.submit(planned.change))
    return StartedRun(run=live, context=planned.context, state=state, previous=previous)


async def queue_response(*, principal: Principal, body: CreateResponse, mode: Mode, request: RequestInfo) -> Body:
    """Insert a background response, which the next free worker runs; returns it as it is now. Its client may leave."""
    response_id = new_id("resp")
    async with conversation_runs.holding(principal=principal, body=body, response_id=response_id):
        planned = await _plan(principal, body, None, response_id=response_id, mode=mode, request=request)
        await asyncio.shield(writer.submit(planned.change))
    notify_workers()
    return response_body(planned.given.parameters, status=Status.QUEUED.value)


async def _plan(
    principal: Principal,
    body: CreateResponse,
    previous: UnstoredResponse | None,
    *,
    response_id: str,
    mode: Mode,
    request: RequestInfo,
) -> _Planned:
    """Check the request against everything that there is, and put its response together."""
    principal.require(Scope.RESPONSES_WRITE)
    prompted = await prompts.resolve(principal=principal, body=body)
    body = prompted.body
    route = await directory.aroute(principal, body.model)
    context = replace(await _read(principal, body, previous, response_id), preface=prompted.preface)
    body = settings.effective_request(body, context.items)
    capabilities.check(body, route)
    content = await check_attachments(principal=principal, body=body, context=context, can=route.capabilities)
    await tool_offer.check_grammars(body)
    created_at = now()
    parameters = wire.public_parameters(body, response_id=response_id, created_at=created_at, preface=prompted.preface)
    options = {**wire.hidden_options(body), **_of_route(route)}
    given = _context(principal, route, body, context, content, parameters=parameters, options=options)
    capabilities.check_length(given)
    _show_messages(body, given)
    checks = await guardrails.start_checks(
        principal=principal, request=request, body=body, context=context, content=content, response_id=response_id
    )
    options |= checks.stored_options() if checks is not None else {}
    tools = await create_tools(
        principal=principal,
        body=body,
        items=context.items,
        response_id=response_id,
        answers_http=mode is Mode.JSON and not body.background,
    )
    who = _identity(principal, route, request, context, parameters=parameters, options=options, created_at=created_at)
    items = _input_rows(who, context) if who.stored or who.conversation_id else []
    recorder = Recorder(who, RecorderState(), conversation_runs.appendix_of(who, context, items))
    first, batch = recorder.opening((queued if body.background else opening)(parameters))
    row = _row(who, body, mode=mode, request=request, parameters=parameters, options=options, context=context)
    row.secrets = tools.secrets
    answers = [*_answered_calls(body, context), *tools.calls]
    return _Planned(
        who=who,
        recorder=recorder,
        given=given,
        context=context,
        route=route,
        toolbox=tools.toolbox,
        checks=checks,
        opening=first,
        change=Change(
            team_id=who.team_id,
            insert=[row, *(items if who.stored else ()), *batch],
            hold=conversation_runs.hold_of(who),
            follow=_follow(who, context),
            calls=answers,
        ),
    )


def _of_route(route: directory.Route) -> dict[str, Any]:
    """What the run keeps of its model, whatever is said of that later."""
    return {"traits": asdict(capabilities.traits(route.capabilities)), "prices": route.prices.noted()}


def _run(planned: _Planned, state: RunState, *, generates: bool, model: LanguageModel) -> Run:
    given, tools = planned.given, planned.toolbox
    if planned.checks is not None and generates:
        return ModeratedRun(given, state, model=model, tools=tools, now=now, checks=planned.checks)
    return (Run if generates else _WarmUp)(given, state, model=model, tools=tools, now=now)


def _context(
    principal: Principal,
    route: directory.Route,
    body: CreateResponse,
    context: RequestContext,
    content: TeamAttachments | None,
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
        attachments=content,
        cipher=TeamCipher(principal.team_id),
        sampling=wire.sampling(parameters, options, context.items),
        traits=capabilities.traits(route.capabilities),
        include=frozenset(options.get("include", ())),
        instruction_items=len(context.preface),
        compacted_items=context.compacted,
        compaction=wire.compaction(options),
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


def _show_messages(body: CreateResponse, given: RunContext) -> None:
    """Put what the model reads into the public object, for those who asked to see it."""
    if body.enable_response_messages:
        read = [item.wire() for item in given.items]
        given.parameters["input_messages"] = messages.input_messages(
            instructions=given.instructions, items=read, tools=given.sampling.tools
        )


async def _start_when_committed(live: LiveRun, commit: "asyncio.Future[None]") -> None:
    """A client that leaves while its response is being stored leaves a run behind that nobody listens to, not a row
    that nobody runs."""
    try:
        await asyncio.shield(commit)
    except asyncio.CancelledError:
        await asyncio.wait([commit])
        if commit.exception() is None:
            live.start()
            live.detach()
        raise
    live.start()


async def _read(
    principal: Principal, body: CreateResponse, previous: UnstoredResponse | None, response_id: str
) -> RequestContext:
    reject_foreign_content(wire.input_items(body), team_id=principal.team_id)
    if body.conversation is not None:
        return await conversation_runs.read(principal=principal, body=body, response_id=response_id)
    if not needs_database(body, previous):
        return read_context(principal=principal, body=body, previous=previous)
    return await in_db_thread(lambda: read_context(principal=principal, body=body, previous=previous))


def _row(
    who: RunIdentity,
    body: CreateResponse,
    *,
    mode: Mode,
    request: RequestInfo,
    parameters: dict[str, Any],
    options: dict[str, Any],
    context: RequestContext,
) -> Response:
    """The response's row; without content where the client said `store:false`."""
    row = Response(
        id=who.response_id,
        team_id=who.team_id,
        api_key_id=who.key_id,
        created_at=who.created_at,
        mode=mode,
        stored=who.stored,
        # What is not stored has no items: a stored response is linked to the one whose stored chain it goes on.
        previous_response_id=context.predecessor_id if who.stored else body.previous_response_id,
        conversation_id=who.conversation_id,
        history_id=who.conversation_id,
        history_end=context.history_end,
        model=who.model,
        upstream_id=who.upstream_id,
        upstream_model=who.upstream_model,
        end_user=(body.safety_identifier or body.user or "")[:128] or None,
        request_id=request.request_id,
        client_request_id=request.client_request_id or body.request_id or "",
    )
    if who.background:
        row.status, row.background = Status.QUEUED, True
    else:
        row.lease_owner, row.lease_until = PROCESS, lease_until()
    if who.stored:
        row.parameters = parameters
        row.options = options
        row.metadata = parameters["metadata"]
        row.input_preview = preview(context.input_bodies[-1]) if context.input_bodies else ""
    return row


def _input_rows(who: RunIdentity, context: RequestContext) -> list[models.Model]:
    rows: list[models.Model] = []
    for position, item in enumerate(context.input_bodies):
        # Nothing but its place keeps an item that is shared: who stores no places has copies.
        key = context.shared_keys.get(position) if who.stored else None
        if key is None:
            rows += item_rows(item, who, Section.INPUT, position)
        else:
            rows.append(
                Placement(
                    team_id=who.team_id,
                    owner=who.response_id,
                    section=Section.INPUT,
                    position=position,
                    item_id=key,
                    opens_context=opens_context(item["type"]),
                )
            )
    return rows


def _follow(who: RunIdentity, context: RequestContext) -> PredecessorGuard | None:
    """What the change that stores a response of a chain depends on."""
    if context.predecessor_id is None or not who.stored:
        return None
    return PredecessorGuard(response_id=who.response_id, previous_id=context.predecessor_id)


def _answered_calls(body: CreateResponse, context: RequestContext) -> Sequence[CallUpdate]:
    """The outputs that this request brings end the waiting calls of the response that it follows."""
    asked = body.previous_response_id or context.answered_response_id
    if asked is None:
        return ()
    at: datetime = now()
    answers = [answer for item in context.input_bodies if (answer := pairing.call_output(item)) is not None]
    return [
        CallUpdate(
            response_id=asked,
            call_id=answer.call_id,
            status="failed" if answer.failed else "completed",
            ended_at=at,
            output=answer.text,
        )
        for answer in answers
    ]


def delete_response(*, actor: str, response: Response, request: RequestInfo, reason: str = "") -> None:
    """Delete a response with its turns, tool calls and events, and those of its items that nothing else shows. What
    followed it follows from now on what it followed itself; a conversation keeps its items. The audit log names the
    `actor`, and the reason where there is one.

    A background run is cancelled first, so that whoever was told of it hears its end. One in the foreground ends by
    itself: its next commit finds no row.
    """
    if response.background:
        cancel_run(team_id=response.team_id, actor=actor, response_id=response.pk, request=request)
    with scope.team(response.team_id):
        _cut_out(response)
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


def _cut_out(response: Response) -> None:
    """Link the followers of a response to what it followed, and free the conversation that it holds.

    Two neighbours of a chain that are deleted at once must not link a third to each other, so a team's responses are
    deleted one after the other. The row is locked before anything is changed: who ends the run meanwhile finds nothing
    to end, and who makes another follower has stored it, or finds nothing to follow. Followers are locked before it, as
    groups of commits do.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"cut-out:{response.team_id}"])
    followers = Response.objects.filter(previous_response_id=response.pk)
    list(followers.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    fresh = Response.objects.select_for_update().filter(pk=response.pk).first()
    if fresh is None:
        return
    followers.update(
        previous_response_id=fresh.previous_response_id, history_id=fresh.history_id, history_end=fresh.history_end
    )
    conversation_lock.release_deleted(fresh)
