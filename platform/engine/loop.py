"""The run loop: call the model, run the tools that it calls, and repeat until the response is finished.

The loop only yields steps. Its consumer decides whether they become a JSON body, a stream or database rows, so blocking
requests, streams and background workers run the same code.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import assert_never

from conversations.items import plain_text
from core.clock import unix
from core.records import record
from engine import citation_markers, turn_request
from engine.calls import dispatch
from engine.calls.dispatch import ClassifiedCalls
from engine.calls.hosted import HostedCalls
from engine.calls.toolbox import Toolbox
from engine.compaction import token_estimate
from engine.compaction.run import Compactor
from engine.constraints.code_fence import without_fence
from engine.constraints.gate import Gate, gate_for
from engine.events.response_body import Ending, closing, failed, response_body
from engine.events.types import Body, Event, ResponseInProgress
from engine.interrupted_items import OpenItem, close_fragment
from engine.moderation import ModerationGate, OutputCheck
from engine.state import DiscardedTurn, OutputItem, PendingCall, RunContext, RunState
from engine.steps import (
    CallRecord,
    Emitted,
    FragmentsClosed,
    RunEnded,
    RunStarted,
    RunSuspended,
    Step,
    ToolsPrepared,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
    lost_usage,
)
from engine.turn import Finish, LanguageModel, TurnRequest, TurnResult, TurnStream, Usage
from engine.turn_outcome import CompleteRun, ContinueRun, EndIncomplete, FailRun, RetryTurn, TurnEvaluator


class Action(Enum):
    """Action of the run. The loop chooses one of these, or `RunEnded`."""

    START = auto()
    PREPARE_TOOLS = auto()
    RUN_CALLS = auto()
    COMPACT = auto()
    CALL_MODEL = auto()


@record
class _OpenTurn:
    """Model call in progress."""

    stream: TurnStream
    gate: Gate | None
    started_at: datetime

    def release(self) -> list[Event]:
        return self.gate.release() if self.gate is not None else []


class Run:
    """Execution of one response, from any persisted state to a terminal one."""

    def __init__(
        self,
        context: RunContext,
        state: RunState,
        *,
        model: LanguageModel,
        tools: Toolbox,
        now: Callable[[], datetime],
        checks: OutputCheck | None = None,
    ) -> None:
        self._context = context
        self._state = state
        self._model = model
        self._tools = tools
        self._now = now
        # Runs of unstored responses that are only ended have no parameters, and make no calls.
        response_id = context.parameters.get("id", "")
        self._hosted = HostedCalls(
            state,
            tools,
            response_id=response_id,
            now=now,
            include=context.include,
            wait_seconds=context.call_wait_seconds,
        )
        self._compactor = Compactor(context, state, model=model, tools=tools, now=now)
        self._evaluator = TurnEvaluator(context=context, state=state, tools=tools)
        self._moderation = ModerationGate(checks, state, end=self._end, now=now) if checks is not None else None
        self._open_item = OpenItem()
        self._turn: _OpenTurn | None = None
        self._service_tier = "default"

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield the steps of the run up to `RunEnded` or `RunSuspended`.

        The iteration may be stopped at any point; call `interrupt` afterwards to close open items.
        """
        action: Action | RunEnded | RunSuspended = self._first_action()
        try:
            while isinstance(action, Action):
                if (steps := self._steps_of(action)) is not None:
                    async with aclosing(steps):
                        async for step in steps:
                            # Without a set: hashing a member of an enum is a call of Python for each step.
                            if action is Action.PREPARE_TOOLS or action is Action.RUN_CALLS:
                                # Before the yield: if the consumer stops here, `interrupt` has to know the open item.
                                self._open_item.follow(step.events)
                            passed = step if self._moderation is None else await self._moderation.check(step)
                            if passed is not None:
                                yield passed
                            if isinstance(passed, RunEnded):
                                return
                action = self._next(action)
            last = action if self._moderation is None else await self._moderation.check(action)
            if last is not None:
                yield last
        finally:
            await self._tools.close()

    def _first_action(self) -> Action | RunEnded:
        if not self._context.generates:
            return self._completed()
        # Before the open items are closed: the item of this call must tell the model that the outcome is unknown.
        unknown = self._hosted.unknown_outcome(knows_tools=False)
        return Action.START if unknown is None else self.end_idle(failed(unknown.failure))

    def _steps_of(self, action: Action) -> AsyncGenerator[Step, None] | None:
        """Return the steps of an action; None if it has none, as most actions of a run without hosted tools."""
        match action:
            case Action.START:
                # Before the fragments are closed: an announced compaction item is not closed, since its pass is
                # repeated.
                self._compactor.resume()
                return self._start() if self._state.queued or self._state.fragments else None
            case Action.PREPARE_TOOLS:
                return self._prepare_tools() if self._tools.tools else None
            case Action.RUN_CALLS:
                return self._hosted.steps() if self._state.pending else None
            case Action.COMPACT:
                return self._compactor.steps()
            case Action.CALL_MODEL:
                return self._call_model()

    def _next(self, done: Action) -> Action | RunEnded | RunSuspended:
        """Return the action that follows a finished one, or the last step in this process."""
        compactor = self._compactor
        match done:
            # A run that only compacts its input calls no tools, so they need no preparation.
            case Action.START if not compactor.is_only_step:
                return Action.PREPARE_TOOLS
            case Action.START | Action.PREPARE_TOOLS | Action.CALL_MODEL:
                # The tool of a call that an earlier process started may be gone.
                unknown = self._hosted.unknown_outcome(knows_tools=True)
                if unknown is not None:
                    return self.end_idle(failed(unknown.failure))
                if (kept := self._hosted.resume()) is not None:
                    self._open_item.fragment = kept
                return Action.RUN_CALLS
            case Action.RUN_CALLS:
                if self._hosted.is_waiting or self._waits_for_approvals():
                    return RunSuspended()
                if self._state.awaits_client:
                    # The response is complete for us: the client sends outputs or approvals in its next request.
                    return self._completed()
                left = turn_request.tokens_left(self._context, self._state)
                if left is not None and left <= 0:
                    return self._end(self._incomplete("max_output_tokens"))
                if compactor.is_due():
                    return Action.COMPACT
            case Action.COMPACT if compactor.failure is not None and compactor.is_needed():
                # A failed pass is tolerated while the model can still read everything. It is fatal once the compaction
                # item was announced in the stream, because an announced item has to follow.
                return self.end_idle(failed(compactor.failure))
        return self._completed() if compactor.is_only_step else Action.CALL_MODEL

    def _waits_for_approvals(self) -> bool:
        """Return true if people have to approve calls before the run continues. It waits for no outputs."""
        state = self._state
        return self._context.decision_seconds is not None and state.awaits_client and not state.awaits_outputs

    def next_request(self) -> TurnRequest | None:
        """Return the next model request, from the state that is known now; None for a run that calls no model."""
        return turn_request.build(self._context, self._state, Toolbox()) if self._context.generates else None

    @property
    def turn(self) -> int:
        """Number of the next turn."""
        return self._state.turn

    @property
    def is_idle(self) -> bool:
        """True when another process can continue the run without repeating a model call or a tool call."""
        busy = self._turn is not None or self._compactor.is_running
        return not busy and not any(p.is_unanswered and p.decision is None for p in self._state.pending)

    def interrupt(self, ending: Ending) -> RunEnded:
        """End the run immediately, because it was cancelled or because its process cannot continue it.

        Output received so far is kept; open items are closed as incomplete.
        """
        turn, self._turn = self._turn, None
        if turn is None:
            end = self.end_idle(ending, turn=self._compactor.interrupt())
        else:
            events, result = turn.stream.interrupt()
            items, record = _output_items(result.items), self._record(turn, result)
            end = self._end(ending, events=[*turn.release(), *events], items=items, turn=record)
        return end if self._moderation is None else self._moderation.interrupt(end)

    def end_idle(self, ending: Ending, *, turn: TurnRecord | None = None) -> RunEnded:
        """End a run that has no turn in progress, e.g. a resumed run that cannot be continued."""
        for fragment in (self._open_item.fragment, self._compactor.fragment()):
            if fragment is not None:
                self._state.fragments.append(fragment)
        events, items = self._close_fragments(ends_run=True)
        return self._end(ending, events=events, items=items, turn=turn)

    def lost_turn(self, *, began: datetime, ended: datetime) -> TurnRecord | None:
        """Return the record of the model call during which the previous process died, estimated from the log.

        None if the process was not calling the model.
        """
        state = self._state
        kinds = {fragment.body["type"] for fragment in state.fragments}
        # MCP tools are listed before the first model call.
        if state.queued or state.pending or state.awaits_client or "mcp_list_tools" in kinds:
            return None
        if not self._context.generates:
            return None
        result = TurnResult(finish=Finish.INTERRUPTED, items=[fragment.body for fragment in state.fragments])
        return TurnRecord(
            number=state.turn,
            started_at=began,
            ended_at=ended,
            result=result,
            usage=self._estimate(result),
            compacts="compaction" in kinds,
        )

    def end_dead(self, ending: Ending, *, lost: TurnRecord | None, has_open_call: bool = False) -> RunEnded:
        """End a run whose process died, and count the model call that was lost with it.

        `has_open_call`: the process is still alive and will add its open model call to the usage. Until then, the usage
        is hidden.
        """
        self._state.has_open_call = has_open_call
        if lost is not None:
            self._state.turn += 1
            self._state.usage += lost.total_usage
        return self.end_idle(ending, turn=lost)

    async def _start(self) -> AsyncGenerator[Step, None]:
        if self._state.queued:
            # A background response becomes `in_progress` when a worker starts it, not when it is created.
            self._state.queued = False
            body = response_body(self._context.parameters, status="in_progress")
            yield RunStarted(events=[ResponseInProgress(response=body)])
        if self._state.fragments:
            events, items = self._close_fragments()
            self._state.output += items
            if events or items:
                yield FragmentsClosed(events=events, items=items)

    async def _prepare_tools(self) -> AsyncGenerator[Step, None]:
        async with aclosing(self._tools.prepare(self._context, self._state)) as preparing:
            async for step in preparing:
                if isinstance(step, ToolsPrepared):
                    self._state.output += step.items
                    self._register_calls(step.calls)
                yield step
                if isinstance(step, ToolsPrepared) and step.failure is not None:
                    yield self._end(failed(step.failure))

    def _register_calls(self, calls: list[CallRecord]) -> None:
        state = self._state
        state.pending += [PendingCall(call=c.call, turn=c.turn) for c in calls if c.state == "pending"]
        state.hosted_calls += sum(c.state == "pending" for c in calls)
        state.insertions += [insertion for c in calls if (insertion := dispatch.refusal_insertion(c)) is not None]
        state.awaits_outputs = state.awaits_outputs or any(c.state == "waiting" for c in calls)
        state.awaits_client = state.awaits_outputs or state.awaits_client or any(c.state == "asked" for c in calls)

    async def _call_model(self) -> AsyncGenerator[Step, None]:
        context, state, started_at = self._context, self._state, self._now()
        request = turn_request.build(context, state, self._tools)
        # With the trait "native" the upstream enforces the format, so text can be streamed without validation.
        gate = gate_for(
            request.sampling,
            text=context.sampling.response_format is not None and context.traits.structured_output != "native",
            choice=turn_request.required_choice(context, state),
        )
        stream = citation_markers.open_turn(self._model, request)
        turn = self._turn = _OpenTurn(stream=stream, gate=gate, started_at=started_at)
        async with aclosing(stream.events()) as reads:
            async for events in reads:
                passed = events if gate is None else gate.let_through(events)
                if passed:
                    yield Emitted(passed)
        result = stream.result()
        if context.sampling.response_format is not None and result.finish is Finish.STOP:
            result = without_fence(result, gate)
        outcome = await self._evaluator.evaluate(result, request=request, gate=gate)
        # Cleared only now: an interrupt during the evaluation still has to find the turn.
        self._turn = None
        match outcome:
            case ContinueRun(calls, accepted_items):
                yield self._accept_turn(turn, result, calls, accepted_items)
            case RetryTurn(discarded):
                yield self._discard_turn(turn, result, discarded)
            case CompleteRun() | EndIncomplete() | FailRun() as end:
                yield self._end_after_turn(turn, result, end)
            case never:
                assert_never(never)

    def _accept_turn(
        self, turn: _OpenTurn, result: TurnResult, calls: ClassifiedCalls, accepted_items: int
    ) -> TurnEnded:
        record, items = self._record(turn, result), _output_items(result.items[:accepted_items])
        # If items are dropped, the events that the gate still holds belong to these items and are dropped too.
        events = turn.release() if accepted_items == len(result.items) else []
        state = self._state
        state.output += items
        self._compactor.record_usage(record.usage)
        # Feedback on a rejected turn is only for the turn directly after it.
        state.rejected = None
        state.unproductive_turns = 0 if calls.makes_progress else state.unproductive_turns + 1
        for body in calls.approval_requests:
            events += self._hosted.complete_item(body)
            items = [*items, OutputItem(body=body)]
            state.output.append(items[-1])
        records = calls.records(turn=record.number, after=len(state.output))
        self._register_calls(records)
        if self._waits_for_approvals():
            expires_at = record.ended_at + timedelta(seconds=self._context.decision_seconds or 0)
            records = [call if call.ask is None else replace(call, expires_at=expires_at) for call in records]
        return TurnEnded(events=events, turn=record, items=items, calls=records)

    def _discard_turn(self, turn: _OpenTurn, result: TurnResult, discarded: DiscardedTurn) -> TurnDiscarded:
        record = self._record(turn, result, discarded)
        # Items that were streamed before the defect showed cannot be taken back, so they stay in the output.
        items = _output_items(result.items[: len(result.items) - len(discarded.items)])
        state = self._state
        state.output += items
        state.discarded += 1
        if discarded.defect is None:
            state.input_too_long = True
        else:
            state.rejected = discarded
        return TurnDiscarded(turn=record, items=items)

    def _end_after_turn(
        self, turn: _OpenTurn, result: TurnResult, end: CompleteRun | EndIncomplete | FailRun
    ) -> RunEnded:
        discarded = end.discarded if isinstance(end, FailRun) else None
        record = self._record(turn, result, discarded)
        match end:
            case CompleteRun():
                ending = self._completion(record.ended_at)
            case EndIncomplete(reason):
                ending = self._incomplete(reason)
            case FailRun(failure):
                ending = failed(failure)
        if discarded is not None:
            items = _output_items(result.items[: len(result.items) - len(discarded.items)])
            return self._end(ending, at=record.ended_at, items=items, turn=record)
        calls = dispatch.unexecuted(result.calls, turn=record.number, tools=self._tools)
        items = _output_items(result.items)
        return self._end(ending, at=record.ended_at, events=turn.release(), items=items, turn=record, calls=calls)

    def _incomplete(self, reason: str) -> Ending:
        return Ending(status="incomplete", incomplete_reason=reason, service_tier=self._service_tier)

    def _completion(self, at: datetime) -> Ending:
        return Ending(status="completed", completed_at=unix(at), service_tier=self._service_tier)

    def _completed(self) -> RunEnded:
        at = self._now()
        return self._end(self._completion(at), at=at)

    def _record(self, turn: _OpenTurn, result: TurnResult, discarded: DiscardedTurn | None = None) -> TurnRecord:
        # Discarded and failed turns count too: the upstream has charged for their tokens.
        record = TurnRecord(
            number=self._state.turn,
            started_at=turn.started_at,
            ended_at=self._now(),
            result=result,
            usage=self._usage_of(result),
            discarded=discarded,
            repeated=lost_usage(result, input_tokens=self._input_tokens),
        )
        self._state.turn += 1
        self._state.usage += record.total_usage
        self._state.note_target(result)
        self._service_tier = result.reported_tier
        return record

    def _usage_of(self, result: TurnResult) -> Usage:
        usage = result.usage
        if usage is None:
            return self._estimate(result)
        if usage.input_tokens and (usage.output_tokens or not result.items):
            return usage
        # An upstream that reports 0 tokens for an answer does not count tokens.
        estimate = self._estimate(result)
        return replace(
            usage,
            input_tokens=usage.input_tokens or estimate.input_tokens,
            output_tokens=usage.output_tokens or estimate.output_tokens,
            estimated=True,
        )

    def _estimate(self, result: TurnResult) -> Usage:
        # For upstreams that report no usage: four characters per token, marked as an estimate in the usage record.
        if not result.may_be_charged:
            return Usage()
        output = token_estimate.tokens(*map(plain_text, result.items))
        return Usage(input_tokens=self._input_tokens(), output_tokens=output, estimated=True)

    def _input_tokens(self) -> int:
        items = turn_request.all_items(self._context, self._state)
        files = self._context.attachments.file_texts(items) if self._context.attachments else ()
        read = [plain_text(item.wire()) for item in items]
        return token_estimate.tokens(self._context.instructions or "", *read, *files)

    def _end(
        self,
        ending: Ending,
        *,
        at: datetime | None = None,
        events: list[Event] | None = None,
        items: list[OutputItem] | None = None,
        turn: TurnRecord | None = None,
        calls: list[CallRecord] | None = None,
    ) -> RunEnded:
        items = items or []
        self._state.output += items
        # Calls that were made belong to the output, even if their results have no items or never arrived.
        shown, left = self._hosted.show_at_end()
        self._state.output += left
        parameters, model = self._context.parameters, self._state.model
        if model and parameters.get("model", model) != model:
            # A fallback model has answered.
            parameters = {**parameters, "model": model}
        body = response_body(
            parameters,
            status=ending.status,
            output=self._state.bodies(),
            usage=self._state.final_usage,
            ending=ending,
            include=self._context.include,
        )
        return RunEnded(
            events=[*(events or []), *shown, *closing(ending, body)],
            ending=ending,
            ended_at=at or self._now(),
            response=body,
            usage=self._state.usage,
            turn=turn,
            items=[*items, *left],
            calls=calls or [],
            unfinished=self._state.pending,
            has_called_tools=self._state.has_called_tools,
        )

    def _close_fragments(self, *, ends_run: bool = False) -> tuple[list[Event], list[OutputItem]]:
        # The client has seen these items, so they stay in the output. A model would be confused by half an item, so
        # they are left out of the context of later turns, except for calls, whose final items are known.
        items: list[OutputItem] = []
        events: list[Event] = []
        kept = [] if ends_run else [f for f in self._state.fragments if self._hosted.keeps_open(f)]
        for fragment in self._state.fragments:
            if fragment in kept:
                continue
            if ends_run and (call := self._hosted.close_at_end(fragment)) is not None:
                events += call[0]
                items += call[1]
                continue
            body, closed = close_fragment(fragment)
            items.append(OutputItem(body=body, in_context=False))
            events += closed
        self._state.fragments = kept
        return events, items


def _output_items(items: Sequence[Body]) -> list[OutputItem]:
    # A call that was cut stays visible, but its incomplete JSON arguments make many upstreams reject the next request.
    return [
        OutputItem(body=body, in_context=not (body["type"].endswith("_call") and body["status"] == "incomplete"))
        for body in items
    ]
