"""Replay of exchanges: sends a request through the engine with scripted model and tools, and collects the rows."""

import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from conversations.models import Conversation, Item, Placement, Section
from kernel.ids import new_id
from responses.engine.calls.toolbox import Toolbox
from responses.engine.events.response_body import Ending
from responses.engine.events.terminal import opening, queued
from responses.engine.events.types import Body, Event
from responses.engine.loop import Run
from responses.engine.state import RunState
from responses.engine.steps import Emitted, Step, ToolsStarted
from responses.models import Approval, ApprovalState, EventBatch, Mode, Response, Status, ToolCall
from responses.requests import pairing, parameters
from responses.requests.context import RequestContext
from responses.requests.prepare import build_run_context
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder, RecorderState, item_rows, preview
from responses.runs.store import CallUpdate, Change
from responses.schema import CreateResponse, parse_create
from responses.seeding.rows import Rows
from responses.seeding.scripted_run import CallTimes, Clock, ScriptedModel, ScriptedTool, SeedStep, TurnScript
from responses.seeding.teams import MODELS
from tenants.models import ApiKey, Upstream

_FLUSH = timedelta(milliseconds=250)
# Long enough that no worker resumes a run that only appears to be in progress.
_LEASE = timedelta(days=2)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request with the scripted turns of its response.

    `ends` is "" for a normal end, or "cancelled", "running" or "queued". Cancelled and running responses stop after
    `steps` steps.
    """

    request: Mapping[str, Any]
    turns: Sequence[TurnScript] = ()
    stream: bool = False
    waits: float = 0.0
    pause: float = 30.0
    ends: str = ""
    steps: int = 12
    before: Sequence[Body] = ()
    approved: Sequence[SeedStep] = ()


@dataclass(frozen=True, kw_only=True)
class SeedActor:
    """API key and upstream of requests."""

    key: ApiKey
    upstream: Upstream
    upstream_model: str
    rng: random.Random


@dataclass(kw_only=True)
class OpenConversation:
    """A conversation that is being extended."""

    row: Conversation
    items: list[Body] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Played:
    """A replayed response."""

    row: Response
    output: list[Body]
    ended: datetime

    @property
    def calls(self) -> list[str]:
        """Return the ids of the calls that the client has to answer."""
        return [item["call_id"] for item in self.output if item["type"] == "function_call"]

    @property
    def asked(self) -> str:
        """Return the id of the approval request."""
        return str(next(item["id"] for item in self.output if item["type"] == "mcp_approval_request"))


class Replayer:
    """Replays the exchanges of one team."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def play(
        self,
        exchange: Exchange,
        actor: SeedActor,
        at: datetime,
        *,
        previous: Played | None = None,
        talk: OpenConversation | None = None,
    ) -> Played:
        """Replay an exchange at a time, optionally continuing a conversation or a previous response."""
        request = dict(exchange.request)
        if talk is not None:
            request["conversation"] = talk.row.pk
        elif previous is not None:
            request["previous_response_id"] = previous.row.pk
        body = parse_create({**request, "stream": exchange.stream})
        running = _Running(self._rows, exchange, actor, body, at, talk)
        self._answer(running, previous)
        await running.run()
        return running.played()

    def _answer(self, running: "_Running", previous: Played | None) -> None:
        # Outputs and approvals in the request end the calls of the previous response.
        if previous is None:
            return
        for item in running.own:
            if item["type"] == "mcp_approval_response":
                self._approve(item, running, previous)
            elif (answer := pairing.call_output(item)) is not None:
                update = CallUpdate(
                    response_id=previous.row.pk,
                    call_id=answer.call_id,
                    status="failed" if answer.failed else "completed",
                    ended_at=running.clock.at,
                    output=answer.text,
                )
                self._rows.answer(update)

    def _approve(self, item: Body, running: "_Running", previous: Played) -> None:
        approval = next(row for row in self._rows.of(Approval) if row.pk == item["approval_request_id"])
        approval.state = ApprovalState.GRANTED if item["approve"] else ApprovalState.DENIED
        approval.answered_at, approval.answered_in = running.clock.at, running.row.pk
        status = "approved" if item["approve"] else "denied"
        update = CallUpdate(
            response_id=previous.row.pk, call_id=approval.call_id, status=status, ended_at=running.clock.at
        )
        self._rows.answer(update)
        if item["approve"]:
            running.approved[approval.call_id] = approval.pk


class _Running:
    """A response that is being replayed."""

    def __init__(
        self,
        rows: Rows,
        exchange: Exchange,
        actor: SeedActor,
        body: CreateResponse,
        at: datetime,
        talk: OpenConversation | None,
    ) -> None:
        self.rows, self.exchange, self.actor, self.body, self.talk = rows, exchange, actor, body, talk
        self.clock = Clock(at)
        self.own = [item.with_id() for item in parameters.input_items(body)]
        self.approved: dict[str, str] = {}
        self.parameters = parameters.public_parameters(body, response_id=new_id("resp", at=at), created_at=at)
        self.prices = MODELS[body.model]
        self.options = parameters.hidden_options(body) | {"obfuscate": False, "prices": self.prices.noted()}
        self.who = self._identity()
        self.row = self._row()
        self.recorder = Recorder(self.who, RecorderState())
        self.output: list[Body] = []
        self._waiting: list[Event] = []
        self._waiting_since = at

    # -- the rows that the request leaves ------------------------------------------------------------------------------

    def _identity(self) -> RunIdentity:
        return RunIdentity(
            response_id=self.parameters["id"],
            team_id=self.rows.team_id,
            key_id=self.actor.key.pk,
            model=self.body.model,
            upstream_id=self.actor.upstream.pk,
            upstream_model=self.actor.upstream_model,
            request_id=new_id("req", at=self.clock.at),
            stored=self.parameters["store"],
            obfuscate=False,
            created_at=self.clock.at,
            background=bool(self.parameters["background"]),
            conversation_id=self.talk.row.pk if self.talk else None,
            prices=self.prices,
        )

    def _row(self) -> Response:
        who, body = self.who, self.body
        row = Response(
            id=who.response_id,
            team_id=who.team_id,
            api_key_id=who.key_id,
            created_at=who.created_at,
            mode=Mode.STREAM if self.exchange.stream else Mode.JSON,
            background=who.background,
            stored=who.stored,
            status=Status.QUEUED if who.background else Status.IN_PROGRESS,
            previous_response_id=body.previous_response_id,
            conversation_id=who.conversation_id,
            history_id=who.conversation_id,
            history_end=self.talk.row.next_position if self.talk else None,
            model=who.model,
            upstream_id=who.upstream_id,
            upstream_model=who.upstream_model,
            end_user=body.safety_identifier or body.user or None,
            request_id=who.request_id,
            client_request_id=f"job-{self.actor.rng.randrange(10**6):06d}" if self.actor.rng.random() < 0.3 else "",
        )
        if who.stored:
            row.parameters, row.options = self.parameters, self.options
            row.metadata = self.parameters["metadata"]
            row.input_preview = preview(self.own[-1]) if self.own else ""
        return row

    # -- the run -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Replay the response."""
        self.rows.add([self.row])
        for position, item in enumerate(self.own if self.who.stored else ()):
            self._add(item_rows(item, self.who, Section.INPUT, position))
        _, batch = self.recorder.opening((queued if self.who.background else opening)(self.parameters))
        self._add(batch)
        if self.exchange.ends == "queued":
            self.row.lease_until = self.clock.at + _LEASE
            return
        self.row.attempt = 1 if self.who.background else 0
        self.clock.pass_by(self.exchange.waits or 0.02)
        times = CallTimes(clock=self.clock, began=self.clock.at, latest=self.clock.at)
        run = self._run(self._tools(times))
        await self._follow(run, times)
        if self.talk is not None and self.row.status in {Status.COMPLETED, Status.INCOMPLETE}:
            self._converse(self.talk)

    def _tools(self, times: CallTimes) -> Toolbox:
        steps = [*(step for turn in self.exchange.turns for step in turn.steps), *self.exchange.approved]
        kinds = {step.kind for step in steps} - {"function", "mcp"}
        # Only MCP servers list tools and ask for approvals.
        servers = ScriptedTool("mcp", steps, times, before=self.exchange.before, approved=self.approved)
        return Toolbox([servers, *(ScriptedTool(kind, steps, times) for kind in sorted(kinds))])

    def _run(self, tools: Toolbox) -> Run:
        items = parameters.input_items(self.body)
        given = build_run_context(
            team_id=self.who.team_id,
            parameters=self.parameters,
            options=self.options,
            model=self.actor.upstream_model,
            instructions=self.body.instructions,
            context=RequestContext(input_items=items),
            attachments=None,
        )
        model = ScriptedModel(self.clock, self.exchange.turns)
        return Run(given, RunState(queued=self.who.background), model=model, tools=tools, now=self.clock.now)

    async def _follow(self, run: Run, times: CallTimes) -> None:
        steps, stops = 0, self.exchange.ends in {"cancelled", "running"}
        async with aclosing(run.steps()) as stepping:
            async for step in stepping:
                self._take(step)
                if isinstance(step, ToolsStarted):
                    times.restart()
                elif not isinstance(step, Emitted):
                    self.clock.at = max(self.clock.at, times.latest)
                steps += 1
                if stops and steps >= self.exchange.steps:
                    break
            if stops:
                self._stop(run)

    def _stop(self, run: Run) -> None:
        if self.exchange.ends == "cancelled":
            self._take(run.interrupt(Ending(status="cancelled")))
        else:
            self._flush()
            self.row.lease_owner, self.row.lease_until = "worker-1:4711:c0ffee00", self.clock.at + _LEASE

    def _take(self, step: Step) -> None:
        # As in real runs, deltas are logged four times a second, everything else immediately.
        if isinstance(step, Emitted):
            if not self._waiting:
                self._waiting_since = self.clock.at
            self._waiting += step.events
            if self.clock.at - self._waiting_since >= _FLUSH:
                self._flush()
            return
        self._flush()
        self._apply(self.recorder.plan(step)[1])
        self.output += [item.body for item in getattr(step, "items", ())]

    def _flush(self) -> None:
        if self._waiting:
            events, self._waiting = self._waiting, []
            self._apply(replace(self.recorder.plan(Emitted(events))[1], calls=()))

    def _apply(self, change: Change) -> None:
        # Rows are dated with the simulated time.
        for row in change.insert:
            self._date(row)
        self.rows.apply(change, self.row)

    def _add(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self._date(row)
        self.rows.add(rows)

    def _date(self, row: Any) -> None:
        match row:
            case Item() | EventBatch():
                row.created_at = self.clock.at
            case Approval():
                row.asked_at = self.clock.at
            case ToolCall():
                row.started_at = self.clock.at
                row.ended_at = row.ended_at and self.clock.at

    def _converse(self, talk: OpenConversation) -> None:
        """Append input and output to the conversation."""
        places = [row for row in self.rows.of(Placement) if row.owner == self.who.response_id]
        for place in places:
            self.rows.add([_again(place, talk)])
            talk.row.next_position += 1
        talk.items += [*self.own, *self.output]

    def played(self) -> Played:
        """Return the result."""
        return Played(row=self.row, output=self.output, ended=self.clock.at)


def _again(place: Placement, talk: OpenConversation) -> Placement:
    """Return a placement of the same item in the conversation."""
    return Placement(
        team_id=place.team_id,
        owner=talk.row.pk,
        section=Section.ITEMS,
        position=talk.row.next_position,
        item_id=place.item_id,
        in_context=place.in_context,
        opens_context=place.opens_context,
    )
