"""Runs with a scripted model on stored responses, without a server."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from conversations.models import Section
from core.clock import now
from core.db.db_threads import in_db_thread
from core.process_name import process_name
from core.work.leases import lease_until
from engine.calls.toolbox import HostedTool, Toolbox
from engine.events.fold import read_frames
from engine.events.response_body import opening
from engine.loop import Run
from engine.state import RunContext, RunState
from engine.turn import LanguageModel
from responses.models import EventBatch, Mode, Response
from responses.requests.parameters import hidden_options
from responses.runs import selectors, store
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder
from responses.runs.rows import item_rows, new_row
from responses.runs.runner import AssembledRun, LiveRun, RunClient
from responses.runs.store import Change, writer
from responses.schema import parse_create
from tenants import scope
from tests.support.api import Caller
from tests.support.runs import context
from tests.support.scripted import toolbox

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A stored response that is ready to run."""

    who: RunIdentity
    recorder: Recorder
    context: RunContext
    opening: bytes

    def run(self, model: LanguageModel, hosted: HostedTool | Toolbox | None = None) -> Run:
        """Return the run, whose steps the test executes."""
        return Run(self.context, RunState(), model=model, tools=toolbox(hosted), now=now)

    def live(self, model: LanguageModel, *, grace_seconds: float | None = 30) -> LiveRun:
        """Return the run as the web process executes it."""
        identity = replace(self.who, streamed=True)
        assembled = AssembledRun(run=self.run(model), recorder=self.recorder, identity=identity)
        return LiveRun(assembled, client=RunClient(opening=self.opening), grace_seconds=grace_seconds)


def begin(caller: Caller, *, at: datetime | None = None, **request: Any) -> Begun:
    """Store a response with its input and first events, created at this time or now."""
    begun, change = prepare(caller, at=at, **request)
    assert store.apply([change]) == [None]
    return begun


async def abegin(caller: Caller, **request: Any) -> Begun:
    """Store a response from an event loop."""
    begun, change = prepare(caller, **request)
    await writer.submit(change)
    return begun


def prepare(caller: Caller, *, at: datetime | None = None, **request: Any) -> tuple[Begun, Change]:
    """Return a response with the change that stores it."""
    given = context(at=at, **request)
    stored, options = given.parameters["store"], _options(request)
    who = RunIdentity(
        response_id=given.parameters["id"],
        team_id=caller.team.pk,
        key_id=caller.key.pk,
        model=given.model,
        upstream_id="upst_nowhere",
        upstream_model=given.model,
        request_id="req_test",
        stored=stored,
        obfuscate=False,
        created_at=at or now(),
        background=given.parameters["background"],
    )
    recorder = Recorder(who)
    first, batch = recorder.log.append(opening(given.parameters)), recorder.log.take_batch()
    row = new_row(
        Response,
        id=who.response_id,
        team_id=who.team_id,
        api_key_id=who.key_id,
        created_at=who.created_at,
        mode=Mode.JSON,
        stored=stored,
        background=who.background,
        previous_response_id=request.get("previous_response_id"),
        model=who.model,
        upstream_id=who.upstream_id,
        upstream_model=who.upstream_model,
        parameters=given.parameters if stored else {},
        options=options if stored else {},
        metadata=given.parameters["metadata"] if stored else {},
        lease_owner=process_name(),
        lease_until=lease_until(),
    )
    bodies = [item.with_id() for item in given.items] if stored else []
    items = [row for position, body in enumerate(bodies) for row in item_rows(body, who, Section.INPUT, position)]
    begun = Begun(who=who, recorder=recorder, context=given, opening=first)
    return begun, Change(team_id=who.team_id, insert=[row, *items, *batch])


def _options(request: dict[str, Any]) -> dict[str, Any]:
    options = hidden_options(parse_create({"model": "scripted", "input": "Hi", **request}))
    return {**options, "obfuscate": False}


def response_of(begun: Begun) -> Response:
    """Return the row of the response."""
    with scope.team(begun.who.team_id):
        return Response.objects.get(pk=begun.who.response_id)


def log_of(begun: Begun) -> list[dict[str, Any]]:
    """Return the events in the response's log, asserting that its batches are consecutive."""
    with scope.team(begun.who.team_id):
        batches = list(EventBatch.objects.filter(response_id=begun.who.response_id).order_by("first_sequence"))
    firsts = [batch.first_sequence for batch in batches]
    assert firsts == [0, *(batch.last_sequence + 1 for batch in batches[:-1])][: len(firsts)]
    return [event for batch in batches for _, event in read_frames(batch.frames)]


def body_of(begun: Begun) -> dict[str, Any]:
    """Return the response as the API returns it."""
    with scope.team(begun.who.team_id):
        response = Response.objects.get(pk=begun.who.response_id)
        return selectors.public_body(response, selectors.outputs([response])[response.pk])


async def everything_written(begun: Begun) -> None:
    """Wait until all changes submitted so far are committed."""
    await writer.submit(Change(team_id=begun.who.team_id))


__all__ = ["Begun", "abegin", "begin", "body_of", "everything_written", "in_db_thread", "log_of", "response_of"]
