"""Prepare a request: check all of it, and read all data that its run or a token count needs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings

from conversations.items import StoredItem
from core.clock import now
from core.db.db_threads import in_db_thread
from core.json.large_work import LARGE_BYTES, note_size, off_loop
from core.records import record
from engine import messages
from engine.compaction import token_estimate
from engine.events.types import Body
from engine.state import ModelTraits, RunContext
from engine.turn import Sampling
from responses.models import Response
from responses.requests import completion_window, targets
from responses.requests.attachments import TeamAttachments, check_attachments
from responses.requests.context import (
    RequestContext,
    UnstoredResponse,
    effective_request,
    needs_database,
    read_context,
    restore_context,
)
from responses.requests.encrypted_content import TeamCipher, reject_foreign_content
from responses.requests.parameters import (
    build_sampling,
    compaction_plan,
    hidden_options,
    included_fields,
    input_items,
    public_parameters,
    split_instructions,
)
from responses.schema import CreateResponse
from tenants.directory import Route
from tenants.models import Scope
from tenants.principal import Principal

# Number of items whose conversion takes 5 ms.
_LONG_HISTORY = 200
LockConversation = Callable[[CreateResponse], Awaitable[RequestContext]]
"""Function that locks the conversation of a request for its new response and returns the context."""


@record
class PreparedRequest:
    """A valid request that its model supports, with the data that was read for the request.

    `body` includes the defaults of its prompt and the settings of its context. `options` holds the values that
    `run_context.parameters` does not contain. Both are stored. `route` has the targets that support the request.
    `starts_at` is set if the run waits for a cheaper time within its completion window.
    """

    body: CreateResponse
    context: RequestContext
    attachments: TeamAttachments | None
    created_at: datetime
    options: dict[str, Any]
    run_context: RunContext
    route: Route | None = None
    starts_at: datetime | None = None

    def with_room(self) -> "PreparedRequest":
        """Return the request without the targets whose context window is too small for it."""
        if self.route is None or self.body.truncation == "auto":
            return self
        route = targets.with_room(self.route, self.estimate_input_tokens())
        return self if route is self.route else self._through(route)

    def at_cheapest_time(self) -> "PreparedRequest":
        """Return the request with the start and the first target that are cheapest within its completion window."""
        if self.route is None:
            return self
        starts_at, route = completion_window.plan_start(
            self.body, self.route, created_at=self.created_at, input_tokens=self.estimate_input_tokens()
        )
        prepared = self if route is self.route else self._through(route)
        return replace(prepared, starts_at=starts_at)

    def _through(self, route: Route) -> "PreparedRequest":
        context, traits = self.run_context, targets.traits(route)
        return replace(
            self,
            route=route,
            options={**self.options, "traits": traits},
            run_context=replace(
                context,
                model=route.upstream_model,
                traits=ModelTraits(**traits),
                parameters={**context.parameters, "model": route.model},
            ),
        )

    def estimate_input_tokens(self) -> int:
        """Return an estimate of the tokens that the model reads."""
        context = self.run_context
        return token_estimate.input_tokens(
            instructions=context.instructions,
            items=context.items,
            sampling=context.sampling,
            attachments=context.attachments,
        )


@record
class ContextSources:
    """The sources of a request's context that are not part of the request.

    `preface` are the messages of the request's prompt. `previous` is the response of `previous_response_id` if the
    caller has it in memory. Without `lock_conversation`, a conversation is read without locking it.
    """

    preface: Sequence[StoredItem] = ()
    previous: UnstoredResponse | None = None
    lock_conversation: LockConversation | None = None


_DATABASE_ONLY = ContextSources()


async def prepare(
    *,
    principal: Principal,
    body: CreateResponse,
    route: Route | None,
    response_id: str = "",
    sources: ContextSources = _DATABASE_ONLY,
    wants_events: bool = True,
) -> PreparedRequest:
    """Check a request and read its context. Without a route, the capabilities of the model are not checked.

    The length of the context is not checked. Raises the API error of the first defect.
    """
    preface, previous = sources.preface, sources.previous
    await off_loop(partial(reject_foreign_content, input_items(body), team_id=principal.team_id))
    if body.conversation is not None and sources.lock_conversation is not None:
        context = await sources.lock_conversation(body)
    else:
        if body.conversation is not None:
            principal.require(Scope.CONVERSATIONS_READ)
        read = partial(read_context, principal=principal, body=body, previous=previous)
        # Most requests contain their whole context and need no database thread.
        context = await (in_db_thread if needs_database(body, previous) else off_loop)(read)
    # A short request may continue a long conversation.
    if len(context.history) > _LONG_HISTORY:
        note_size(LARGE_BYTES)
    if preface:
        context = replace(context, preface=preface)
    # Items of the context may change reasoning and text settings, so capabilities are checked only now.
    body = effective_request(body, context.items)
    options = hidden_options(body)
    if route is not None:
        if route.others:
            route = await targets.ordered(principal, body, route)
        route = targets.supporting(route, body, context)
        # Stored with the run, so that a worker that resumes the run uses the same traits, even if an operator has
        # changed the model in the meantime.
        options["traits"] = targets.traits(route)
        if route.model != body.model:
            # All upstreams of the requested model are disabled, and its fallback model answers.
            body = body.model_copy(update={"model": route.model})
    can = route.capabilities if route is not None else None
    attachments = await check_attachments(principal=principal, body=body, context=context, can=can)
    created_at = now()
    parameters = public_parameters(body, response_id=response_id, created_at=created_at, preface=preface)
    run_context = await off_loop(
        partial(
            build_run_context,
            principal.team_id,
            StoredRequest(
                parameters=parameters,
                options=options,
                model=route.upstream_model if route is not None else "",
                instructions=body.instructions,
            ),
            context=context,
            attachments=attachments,
            generates=body.generates,
            wants_events=wants_events,
        )
    )
    if body.enable_response_messages:
        parameters["input_messages"] = await off_loop(
            lambda: messages.input_messages(
                instructions=body.instructions,
                items=[item.wire() for item in run_context.items],
                tools=run_context.sampling.tools,
            )
        )
    return PreparedRequest(
        body=body,
        context=context,
        attachments=attachments,
        created_at=created_at,
        options=options,
        run_context=run_context,
        route=route,
    )


@record
class StoredRequest:
    """The parts of a request that are stored with its response. `model` is the upstream's name of the model.

    `instructions` are only the request's own instructions. The parameters also contain the messages of its prompt.
    """

    parameters: dict[str, Any]
    options: dict[str, Any]
    model: str
    instructions: str | None


def build_run_context(
    team_id: str,
    request: StoredRequest,
    *,
    context: RequestContext,
    attachments: TeamAttachments | None,
    generates: bool = True,
    wants_events: bool = True,
) -> RunContext:
    """Build the constant part of a run from its request and its context."""
    items, parameters, options = context.items, request.parameters, request.options
    return RunContext(
        parameters=parameters,
        model=request.model,
        instructions=request.instructions,
        items=items,
        attachments=attachments,
        cipher=TeamCipher(team_id),
        # An unstored response has no stored parameters, so its run can only be ended.
        sampling=build_sampling(parameters, options, items) if parameters else Sampling(),
        traits=ModelTraits(**options.get("traits", {})),
        include=included_fields(options),
        instruction_items=len(context.preface),
        compacted_items=context.compacted,
        compaction=compaction_plan(options),
        decision_seconds=options.get("decision_seconds"),
        generates=generates,
        wants_events=wants_events,
    )


def _call_wait_seconds(options: Mapping[str, Any]) -> int:
    """Return the time for which a run waits for decisions about calls that it has made."""
    given: int | None = options.get("decision_seconds", options.get("call_wait_seconds"))
    return settings.APPROVAL_WAIT_SECONDS if given is None else given


def restore_run_context(response: Response, input_bodies: Sequence[Body]) -> RunContext:
    """Build the constant part of a stored response's run. `input_bodies` are the bodies of its own input items."""
    instructions, preface = split_instructions(response.parameters)
    context = build_run_context(
        response.team_id,
        StoredRequest(
            parameters=response.parameters,
            options=response.options,
            model=response.upstream_model,
            instructions=instructions,
        ),
        context=restore_context(response, input_bodies, preface=preface),
        attachments=TeamAttachments(response.team_id),
    )
    # Other runs have a client that waits for the response.
    if not response.background:
        return context
    return replace(context, call_wait_seconds=_call_wait_seconds(response.options))
