"""Past runs: the engine runs scripted turns and calls, and the recorder of real runs turns its steps into rows."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime, timedelta
from random import Random
from typing import Any, Self

from django.db import models

from conversations.models import Conversation, Item, Placement, Section
from core.ids import new_id
from engine.calls.toolbox import HostedTool, Toolbox
from engine.events.response_body import Ending, failed, opening, queued
from engine.events.types import Body, Event
from engine.loop import Run
from engine.state import RunContext, RunState
from engine.steps import Emitted, Step, ToolFinished, ToolsStarted
from responses.lifecycle.decisions.expiry import ACTOR as EXPIRY_ACTOR
from responses.lifecycle.decisions.expiry import EXPIRED
from responses.models import Decision, DecisionState, EventBatch, Mode, Response, Status, ToolCall
from responses.requests import parameters
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder
from responses.runs.rows import Row, item_rows, preview
from responses.schema import parse_create
from responses.tools import registry  # noqa: F401 - adds the hosted tools to the schema of requests
from seeding.scenarios import Exchange, ScriptedCall
from seeding.scripted import Clock, ScriptedModel, ScriptedTools
from seeding.teams import MODELS
from tenants.models import ApiKey, AuditEvent, Upstream, UsageRecord

# As in real runs, deltas are logged four times a second, everything else immediately.
_FLUSH = timedelta(milliseconds=250)
# Long enough that no worker resumes a run that only appears to be in progress.
_LEASE = timedelta(days=2)
_DATED: dict[type[models.Model], str] = {
    Item: "created_at",
    EventBatch: "created_at",
    Decision: "asked_at",
    ToolCall: "started_at",
    UsageRecord: "occurred_at",
}


class SeedRun:
    """A past response: `rows` are its database rows, `at` is the time at which it ended."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        key: ApiKey,
        upstream: Upstream,
        at: datetime,
        rng: Random,
        previous: Self | None = None,
        conversation: Conversation | None = None,
    ) -> None:
        """Store the request, which continues a conversation or a previous response if one is given."""
        chain = {"previous_response_id": previous.row.pk} if previous else {}
        chain = {"conversation": conversation.pk} if conversation else chain
        request = parse_create({**exchange.request, **chain, "stream": exchange.stream})
        background = bool(request.background)
        self._exchange, self._clock, self._conversation = exchange, Clock(at, calls_at=at), conversation
        # Four characters a token.
        self._pace = 4 * rng.uniform(40, 160)
        shown = parameters.public_parameters(request, response_id=new_id("resp", at=at), created_at=at)
        hidden = parameters.hidden_options(request) | {"obfuscate": False}
        if exchange.decision is not None:
            hidden["decision_seconds"] = exchange.decision_seconds
        inputs = [item.with_id() for item in parameters.input_items(request)]
        self._context = RunContext(
            parameters=shown,
            model=request.model,
            instructions=request.instructions,
            items=(),
            sampling=parameters.build_sampling(shown, hidden),
            decision_seconds=hidden.get("decision_seconds"),
        )
        self.row: Response = Response(
            id=shown["id"],
            team_id=key.team_id,
            api_key_id=key.pk,
            created_at=at,
            mode=Mode.STREAM if request.stream else Mode.JSON,
            background=background,
            status=Status.QUEUED if background else Status.IN_PROGRESS,
            previous_response_id=request.previous_response_id,
            conversation_id=conversation.pk if conversation else None,
            history_id=conversation.pk if conversation else None,
            history_end=conversation.next_position if conversation else None,
            model=request.model,
            upstream_id=upstream.pk,
            upstream_model="demo",
            end_user=request.safety_identifier,
            request_id=new_id("req", at=at),
            client_request_id=f"job-{rng.randrange(10**6):06d}" if rng.random() < 0.3 else "",
            parameters=shown,
            options=hidden | {"prices": MODELS[request.model].stored()},
            metadata=shown["metadata"],
            input_preview=preview(inputs[-1]),
        )
        self._identity = RunIdentity.of(self.row, lease_token=self.row.lease_token)
        self.rows: list[models.Model] = [self.row]
        self._tool_calls: dict[str, ToolCall] = {}
        self._tools: list[HostedTool] = []
        self._recorder = Recorder(self._identity)
        if previous is not None:
            self._answer(inputs, previous)
        for position, item in enumerate(inputs):
            self._add(item_rows(item, self._identity, Section.INPUT, position))
        self._recorder.log.append((queued if background else opening)(shown))
        self._add(self._recorder.log.take_batch())

    @property
    def at(self) -> datetime:
        """The time of the run."""
        return self._clock.at

    def _answer(self, inputs: Sequence[Body], previous: Self) -> None:
        """End the calls of the previous response whose output the request contains."""
        for item in inputs:
            if item["type"] == "function_call_output":
                call = previous._tool_calls[item["call_id"]]
                call.status, call.ended_at, call.output = "completed", self.at, item["output"]

    async def play(self) -> None:
        """Run the exchange to its end, or until the piece at which it stops. Without turns, it stays queued."""
        exchange = self._exchange
        if not exchange.turns:
            self.row.lease_until = self.at + _LEASE
            return
        self.row.attempt = int(self._identity.background)
        self._clock.wait(exchange.waits)
        self._tools = self._scripted_tools()
        state = RunState(queued=self._identity.background)
        model = ScriptedModel(exchange.turns, clock=self._clock, pace=self._pace)
        run = self._new_run(state, model)
        await self._record_steps(run)
        if exchange.cancelled:
            self._record(run.interrupt(Ending(status="cancelled")))
        elif exchange.pieces is not None:
            self.row.lease_owner, self.row.lease_until = "worker-1:4711:c0ffee00", self.at + _LEASE
        elif exchange.decision is not None:
            self._wait_for_decision(run)
            if exchange.decision in {DecisionState.GRANTED, DecisionState.DENIED}:
                # As when a worker resumes the run: the state says nothing about the requests that were answered.
                state.awaits_client = False
                await self._record_steps(self._new_run(state, model))
        elif self._conversation is not None:
            self._append_to(self._conversation)

    def _new_run(self, state: RunState, model: ScriptedModel) -> Run:
        return Run(self._context, state, model=model, tools=Toolbox(self._tools), now=self._clock)

    async def _record_steps(self, run: Run) -> None:
        """Record the steps of a run to its end, or until the piece at which the exchange stops."""
        pieces, flushed, buffered = 0, self.at, list[Event]()
        async with aclosing(run.steps()) as steps:
            async for step in steps:
                if isinstance(step, Emitted):
                    buffered += step.events
                    pieces += 1
                if buffered and (not isinstance(step, Emitted) or self.at - flushed >= _FLUSH):
                    self._record(Emitted(buffered))
                    flushed, buffered = self.at, []
                if not isinstance(step, Emitted):
                    self._record(step)
                if pieces == self._exchange.pieces:
                    break
        if buffered:
            self._record(Emitted(buffered))

    def _wait_for_decision(self, run: Run) -> None:
        """Make the decision for which the run waits, as `responses.lifecycle.decisions` does."""
        exchange, state = self._exchange, self._exchange.decision
        (row,) = [row for row in self.rows if isinstance(row, Decision)]
        (request,) = [item.body for item in self.rows if isinstance(item, Item) and item.id == row.pk]
        # Its mails and webhook events are in the past.
        row.announced_at = row.asked_at
        if state is None or state == DecisionState.ASKED or row.expires_at is None:
            self.row.waits_until = row.expires_at
            return
        has_expired = state == DecisionState.EXPIRED
        self._clock.at = row.expires_at if has_expired else self.at + timedelta(seconds=exchange.decided_after)
        row.state, row.answered_at, row.reason = state, self.at, exchange.reason if not has_expired else ""
        row.decided_by = EXPIRY_ACTOR if has_expired else exchange.decided_by
        self.rows.append(
            AuditEvent(
                team_id=self.row.team_id,
                occurred_at=self.at,
                actor=row.decided_by,
                action=f"approval.{row.state}",
                target=row.pk,
                after={
                    "tool": f"{request['server_label']}.{request['name']}",
                    "response": self.row.pk,
                    "reason": row.reason,
                },
                request_id=new_id("req", at=self.at),
            )
        )
        if has_expired:
            self._record(run.interrupt(failed(EXPIRED)))
            return
        approve = state == DecisionState.GRANTED
        call = self._tool_calls[row.call_id]
        call.status, call.ended_at = ("approved" if approve else "denied"), self.at
        for tool in self._tools:
            if isinstance(tool, ScriptedTools) and tool.kind == "mcp":
                tool.settle(request, row.call_id, approve=approve, reason=row.reason)

    def _scripted_tools(self) -> list[HostedTool]:
        kinds: dict[str, list[ScriptedCall]] = {}
        for call in [call for turn in self._exchange.turns for call in turn.calls if call.item]:
            kinds.setdefault(call.item["type"].removesuffix("_call"), []).append(call)
        return [ScriptedTools(kind, calls, clock=self._clock) for kind, calls in kinds.items()]

    def _append_to(self, conversation: Conversation) -> None:
        for place in [row for row in self.rows if isinstance(row, Placement)]:
            owned = {"team_id": place.team_id, "owner": conversation.pk, "section": Section.ITEMS}
            self.rows.append(Placement(position=conversation.next_position, item_id=place.item_id, **owned))
            conversation.next_position += 1

    def _record(self, step: Step) -> None:
        """Add the rows of a step and apply its updates, as `responses.runs.store` does."""
        if isinstance(step, ToolsStarted):
            self._clock.calls_at = step.started_at
        elif isinstance(step, ToolFinished):
            # The clock shows the end of the call that was made last.
            self._clock.at = max(self._clock.at, step.ended_at)
        change = self._recorder.plan(step)[1]
        self._add(change.insert)
        updates: list[tuple[models.Model, dict[str, Any]]] = []
        updates += [(self._tool_calls[call.call_id], asdict(call)) for call in change.calls]
        updates += [(self.row, asdict(change.update))] if change.update else []
        for row, values in updates:
            for name, value in values.items():
                if value is not None and name not in {"response_id", "lease_token"}:
                    setattr(row, name, value)
        if self.row.status == Status.COMPLETED:
            self.row.completed_at = self.row.ended_at

    def _add(self, rows: Sequence[Row]) -> None:
        # The recorder dates rows with the current time.
        for row in (row.instance() for row in rows):
            if isinstance(row, ToolCall):
                self._tool_calls[row.call_id] = row
            if name := _DATED.get(type(row)):
                setattr(row, name, self.at)
            self.rows.append(row)
