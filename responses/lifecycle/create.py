"""Create responses, which are either executed in this process or queued for a worker.

Creation has four stages: the request is parsed, resolved, admitted and stored.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from core.admission.overload import admission
from core.records import record
from engine import spans
from engine.events.response_body import response_body
from engine.events.types import Body
from engine.state import RunState
from providers.first_answer import FirstAnswer
from responses.lifecycle import conversation_runs
from responses.lifecycle.admit import admit
from responses.lifecycle.decisions import answers
from responses.lifecycle.new_response import NewResponse, build_response
from responses.lifecycle.queue import notify_workers
from responses.lifecycle.resolve import NewRequest, resolve
from responses.lifecycle.run_factory import RunFactory
from responses.models import Status
from responses.requests.context import RequestContext, UnstoredResponse
from responses.runs.event_log import FLUSH_BYTES
from responses.runs.runner import AssembledRun, LiveRun, RunClient


@record
class StartedRun:
    """A started run, with the data that a WebSocket connection needs to continue the response later."""

    run: LiveRun
    context: RequestContext
    state: RunState
    previous: UnstoredResponse | None

    def as_unstored(self) -> UnstoredResponse | None:
        """Return the ended response for use as an in-memory predecessor, or None if it is stored in the database."""
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


async def create_response(request: NewRequest) -> LiveRun:
    """Store a response with its first events, start its run and return the run.

    Raises an API error if the request is invalid or not permitted.
    """
    return (await start_response(request)).run


async def start_response(request: NewRequest) -> StartedRun:
    """Create a response like `create_response`, for a connection on which later responses may continue it.

    With `generate: false`, the response completes without output. It can still be continued.
    """
    spans.begin()
    async with (
        answers.withdraw_on_failure(request),
        conversation_runs.release_on_failure(
            principal=request.principal, body=request.body, response_id=request.response_id
        ),
    ):
        response = await build_response(await admit(await resolve(request)))
        state = RunState()
        live = _live_run(response, state)
        commit = response.store()
        try:
            with spans.span(spans.Activity.STORAGE, "Commit"):
                await commit
        except asyncio.CancelledError:
            # The client has disconnected. If the commit has succeeded, the run must start, because otherwise its row
            # would stay in progress until the sweeper ends the run. It is detached, because no client reads it.
            if commit.exception() is None:
                live.start()
                live.detach()
            raise
        live.start()
        admission.started()
    context = response.admitted.resolved.prepared.context
    return StartedRun(run=live, context=context, state=state, previous=request.previous)


def _live_run(response: NewResponse, state: RunState) -> LiveRun:
    admitted, resolved = response.admitted, response.admitted.resolved
    request, prepared = resolved.request, resolved.prepared
    first_answer = FirstAnswer() if request.is_open_stream else None
    factory = RunFactory.for_route(
        resolved.route,
        resolved.identity,
        checks=admitted.checks if prepared.body.generates else None,
        reservation=admitted.reservation,
        first_answer=first_answer,
    )
    run = factory.build(prepared.run_context, state, admitted.tools.toolbox)
    frames = response.opening
    if request.stream_format is not None:
        frames = request.stream_format.open(response.first_events, input_tokens=resolved.input_tokens)
    return LiveRun(
        AssembledRun(run=run, recorder=response.recorder, identity=resolved.identity),
        grace_seconds=request.principal.grace_seconds,
        client=RunClient(
            opening=frames,
            warnings=resolved.warnings,
            stream_format=request.stream_format,
            first_answer=first_answer,
        ),
        encrypted_secrets=admitted.tools.encrypted_secrets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResponse:
    """A response that waits for a worker: its body with the status `queued`, and the warnings for the client.

    `opening` holds the bytes of the first events if they are small, and is empty otherwise.
    """

    body: Body
    opening: bytes
    warnings: Sequence[str] = ()


async def queue_response(request: NewRequest) -> QueuedResponse:
    """Store a background response for the next free worker.

    Raises an API error if the request is invalid or not permitted.
    """
    spans.begin()
    async with (
        answers.withdraw_on_failure(request),
        conversation_runs.release_on_failure(
            principal=request.principal, body=request.body, response_id=request.response_id
        ),
    ):
        response = await build_response(await admit(await resolve(request)))
        await response.store()
    notify_workers()
    resolved = response.admitted.resolved
    return QueuedResponse(
        body=response_body(resolved.prepared.run_context.parameters, status=Status.QUEUED.value),
        # Large events are read from the log, in a thread.
        opening=response.opening if len(response.opening) < FLUSH_BYTES else b"",
        warnings=resolved.warnings,
    )
