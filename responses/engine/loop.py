"""The run loop: call the model, run the tools that it calls, and repeat until the response is finished.

The loop only yields steps. Its consumer decides whether they become a JSON body, a stream or database rows, so blocking
requests, streams and background workers run the same code.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import assert_never

from conversations.items import plain_text
from kernel.clock import unix
from kernel.errors import Failure
from responses.engine import citation_markers, turn_request
from responses.engine.calls import dispatch
from responses.engine.calls.dispatch import ClassifiedCalls
from responses.engine.calls.hosted import HostedCalls, whole_item
from responses.engine.calls.toolbox import Toolbox
from responses.engine.compaction import token_estimate
from responses.engine.compaction.run import Compactor
from responses.engine.constraints.gate import Gate, gate_for
from responses.engine.events.response_body import Ending, response_body
from responses.engine.events.terminal import closing, failed
from responses.engine.events.types import Body, Event, ResponseInProgress
from responses.engine.interrupted_items import OpenItem, close_fragment
from responses.engine.moderation import ModerationGate, OutputCheck
from responses.engine.state import DiscardedTurn, OutputItem, PendingCall, RunContext, RunState
from responses.engine.steps import (
    CallRecord,
    Emitted,
    FragmentsClosed,
    RunEnded,
    RunStarted,
    Step,
    ToolsPrepared,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
)
from responses.engine.turn import LanguageModel, TurnRequest, TurnResult, TurnStream, Usage
from responses.engine.turn_outcome import CompleteRun, ContinueRun, EndIncomplete, FailRun, RetryTurn, TurnEvaluator


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
        self._hosted = HostedCalls(state, tools, now=now, include=context.include)
        self._compactor = Compactor(context, state, model=model, tools=tools, now=now)
        self._evaluator = TurnEvaluator(context=context, state=state, tools=tools)
        self._moderation = ModerationGate(checks, state, end=self._end, now=now) if checks is not None else None
        self._open_item = OpenItem()
        self._stream: TurnStream | None = None
        self._request: TurnRequest | None = None
        self._gate: Gate | None = None
        self._turn_started = now()
        self._service_tier = "default"

    def steps(self) -> AsyncGenerator[Step, None]:
        """Yield the steps of the run up to `RunEnded`.

        The iteration may be stopped at any point; call `interrupt` afterwards to close open items.
        """
        steps = self._unchecked_steps()
        return steps if self._moderation is None else self._moderation.steps(steps)

    async def _unchecked_steps(self) -> AsyncGenerator[Step, None]:
        try:
            if not self._context.generates:
                at = self._now()
                yield self._end(self._completed(at), at=at)
                return
            for first in self._start():
                yield first
            async with aclosing(self._prepare_tools()) as preparing:
                async for prepared in preparing:
                    yield prepared
                    if isinstance(prepared, RunEnded):
                        return
            while (end := self._end_before_calls()) is None:
                async with aclosing(self._hosted.steps()) as calls:
                    async for called in calls:
                        # Before the yield: if the consumer stops here, `interrupt` has to know the open item.
                        self._open_item.follow(called.events)
                        yield called
                if (end := self._end_before_turn()) is not None:
                    break
                async with aclosing(self._next_turn()) as turn:
                    async for step in turn:
                        yield step
                        if isinstance(step, RunEnded):
                            return
            yield end
        finally:
            await self._tools.close()

    @property
    def is_idle(self) -> bool:
        """True when another process can continue the run without repeating a model call or a tool call."""
        busy = self._stream is not None or self._compactor.is_running
        return not busy and not any(p.attempt and p.result is None for p in self._state.pending)

    def interrupt(self, ending: Ending) -> RunEnded:
        """End the run immediately, because it was cancelled or its process has to give it up.

        Output received so far is kept; open items are closed as incomplete.
        """
        events, result = self._stream.interrupt() if self._stream else ([], None)
        self._stream = None
        if result is None:
            end = self.end_idle(ending, turn=self._compactor.interrupt())
        else:
            items, turn = _output_items(result.items), self._record(result)
            events = [*self._release_gate(), *events]
            end = self._end(ending, at=self._now(), events=events, items=items, turn=turn)
        return end if self._moderation is None else self._moderation.interrupt(end)

    def end_idle(self, ending: Ending, *, turn: TurnRecord | None = None) -> RunEnded:
        """End a run that has no turn in progress, e.g. a resumed run that cannot be continued."""
        for fragment in (self._open_item.fragment, self._compactor.fragment()):
            if fragment is not None:
                self._state.fragments.append(fragment)
        events, items = self._close_fragments()
        return self._end(ending, at=self._now(), events=events, items=items, turn=turn)

    def _start(self) -> Iterator[Step]:
        if self._state.queued:
            # A background response becomes `in_progress` when a worker starts it, not when it is created.
            self._state.queued = False
            body = response_body(self._context.parameters, status="in_progress")
            yield RunStarted(events=[ResponseInProgress(response=body)])
        # Before the fragments are closed: an announced compaction item is not closed, since its pass is repeated.
        self._compactor.resume()
        if self._state.fragments:
            events, items = self._close_fragments()
            self._state.output += items
            yield FragmentsClosed(events=events, items=items)

    # -- hosted tools --------------------------------------------------------------------------------------------------

    async def _prepare_tools(self) -> AsyncGenerator[Step, None]:
        # A run that only compacts its input calls no tools, so they need no preparation.
        if self._compactor.is_only_step:
            return
        async with aclosing(self._tools.prepare(self._context, self._state)) as preparing:
            async for step in preparing:
                self._open_item.follow(step.events)
                if isinstance(step, ToolsPrepared):
                    self._state.output += step.items
                    self._register_calls(step.calls)
                yield step
                if isinstance(step, ToolsPrepared) and step.failure is not None:
                    yield self._end(failed(step.failure), at=self._now())

    def _register_calls(self, calls: list[CallRecord]) -> None:
        state = self._state
        state.pending += [PendingCall(call=c.call, turn=c.turn) for c in calls if c.state == "pending"]
        state.hosted_calls += sum(c.state == "pending" for c in calls)
        state.insertions += [insertion for c in calls if (insertion := dispatch.refusal_insertion(c)) is not None]
        state.awaits_client = state.awaits_client or any(c.state in {"waiting", "asked"} for c in calls)

    def _end_before_calls(self) -> RunEnded | None:
        # A call that an earlier process started may have taken effect. If its tool is not repeatable, failing the run
        # is the only safe outcome.
        if (interrupted := self._hosted.unrepeatable_call()) is None:
            return None
        message = f"The call of '{interrupted.name}' was interrupted, and its tool is not known to be repeatable."
        return self._end(failed(Failure(code="server_error", message=message)), at=self._now())

    def _end_before_turn(self) -> RunEnded | None:
        if self._state.awaits_client:
            # The response is complete for us: the client sends outputs or approvals in its next request.
            return self._end(self._completed(self._now()), at=self._now())
        left = turn_request.tokens_left(self._context, self._state)
        if left is not None and left <= 0:
            return self._end(self._incomplete("max_output_tokens"), at=self._now())
        return None

    async def _next_turn(self) -> AsyncGenerator[Step, None]:
        async with aclosing(self._compact()) as compacting:
            async for compacted in compacting:
                yield compacted
                if isinstance(compacted, RunEnded):
                    return
        async with aclosing(self._sample()) as sampling:
            async for emitted in sampling:
                yield emitted
        yield await self._finish_turn()

    async def _compact(self) -> AsyncGenerator[Step, None]:
        compactor = self._compactor
        if compactor.is_due():
            async with aclosing(compactor.steps()) as steps:
                async for step in steps:
                    yield step
            # A failed pass is tolerated while the model can still read everything. It is fatal once the compaction item
            # was announced in the stream, because an announced item has to follow.
            if compactor.failure is not None and compactor.is_needed():
                yield self.end_idle(failed(compactor.failure))
                return
        if compactor.is_only_step:
            yield self._end(self._completed(self._now()), at=self._now())

    # -- sampling ------------------------------------------------------------------------------------------------------

    async def _sample(self) -> AsyncGenerator[Emitted, None]:
        context, state = self._context, self._state
        self._turn_started = self._now()
        self._request = turn_request.build(context, state, self._tools)
        # With the trait "native" the upstream enforces the format, so text can be streamed without validation.
        self._gate = gate_for(
            self._request.sampling,
            text=context.sampling.response_format is not None and context.traits.structured_output != "native",
            choice=turn_request.required_choice(context, state),
        )
        self._stream = citation_markers.open_turn(self._model, self._request)
        async with aclosing(self._stream.events()) as turn:
            async for events in turn:
                passed = events if self._gate is None else self._gate.let_through(events)
                if passed:
                    yield Emitted(passed)

    def _release_gate(self) -> list[Event]:
        return self._gate.release() if self._gate is not None else []

    # -- after a turn --------------------------------------------------------------------------------------------------

    async def _finish_turn(self) -> TurnEnded | TurnDiscarded | RunEnded:
        if self._stream is None or self._request is None:
            msg = "no turn is in progress"
            raise RuntimeError(msg)
        result = self._stream.result()
        outcome = await self._evaluator.evaluate(result, request=self._request, gate=self._gate)
        # Cleared only now: an interrupt during the evaluation still has to find the turn.
        self._stream = None
        match outcome:
            case ContinueRun(calls, accepted_items):
                return self._accept_turn(result, calls, accepted_items)
            case RetryTurn(discarded):
                return self._discard_turn(result, discarded)
            case CompleteRun() | EndIncomplete() | FailRun() as end:
                return self._end_after_turn(result, end)
            case never:
                assert_never(never)

    def _accept_turn(self, result: TurnResult, calls: ClassifiedCalls, accepted_items: int) -> TurnEnded:
        record, items = self._record(result), _output_items(result.items[:accepted_items])
        # When items are dropped, the events that the gate still holds belong to them and are dropped as well.
        events = self._release_gate() if accepted_items == len(result.items) else []
        state = self._state
        state.output += items
        self._compactor.record_usage(record.usage)
        # Feedback on a rejected turn is only for the turn directly after it.
        state.rejected = None
        state.unproductive_turns = 0 if calls.makes_progress else state.unproductive_turns + 1
        for body in calls.approval_requests:
            events += whole_item(body, output_index=state.next_output_index)
            items = [*items, OutputItem(body=body)]
            state.output.append(items[-1])
        records = calls.records(turn=record.number, after=len(state.output))
        self._register_calls(records)
        return TurnEnded(events=events, turn=record, items=items, calls=records)

    def _discard_turn(self, result: TurnResult, discarded: DiscardedTurn) -> TurnDiscarded:
        record = self._record(result, discarded)
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

    # -- endings -------------------------------------------------------------------------------------------------------

    def _end_after_turn(self, result: TurnResult, end: CompleteRun | EndIncomplete | FailRun) -> RunEnded:
        discarded = end.discarded if isinstance(end, FailRun) else None
        record = self._record(result, discarded)
        match end:
            case CompleteRun():
                ending = self._completed(record.ended_at)
            case EndIncomplete(reason):
                ending = self._incomplete(reason)
            case FailRun(failure):
                ending = failed(failure)
        if discarded is not None:
            items = _output_items(result.items[: len(result.items) - len(discarded.items)])
            return self._end(ending, at=record.ended_at, items=items, turn=record)
        calls = dispatch.unexecuted(result.calls, turn=record.number, tools=self._tools)
        items = _output_items(result.items)
        return self._end(ending, at=record.ended_at, events=self._release_gate(), items=items, turn=record, calls=calls)

    def _incomplete(self, reason: str) -> Ending:
        return Ending(status="incomplete", incomplete_reason=reason, service_tier=self._service_tier)

    def _completed(self, at: datetime) -> Ending:
        return Ending(status="completed", completed_at=unix(at), service_tier=self._service_tier)

    def _record(self, result: TurnResult, discarded: DiscardedTurn | None = None) -> TurnRecord:
        # Every turn counts, also a discarded or failed one: the upstream has charged for its tokens.
        usage = result.usage or self._estimate(result)
        record = TurnRecord(
            number=self._state.turn,
            started_at=self._turn_started,
            ended_at=self._now(),
            result=result,
            usage=usage,
            discarded=discarded,
        )
        self._state.turn += 1
        self._state.usage += usage
        self._service_tier = result.reported_tier
        return record

    def _estimate(self, result: TurnResult) -> Usage:
        # For upstreams that report no usage: four characters per token, marked as an estimate in the usage record.
        if result.failure is not None and not result.items:
            return Usage(estimated=True)
        items = turn_request.all_items(self._context, self._state)
        files = self._context.attachments.file_texts(items) if self._context.attachments else ()
        read = [plain_text(item.wire()) for item in items]
        return Usage(
            input_tokens=token_estimate.tokens(self._context.instructions or "", *read, *files),
            output_tokens=token_estimate.tokens(*map(plain_text, result.items)),
            estimated=True,
        )

    def _end(
        self,
        ending: Ending,
        *,
        at: datetime,
        events: list[Event] | None = None,
        items: list[OutputItem] | None = None,
        turn: TurnRecord | None = None,
        calls: list[CallRecord] | None = None,
    ) -> RunEnded:
        items = items or []
        self._state.output += items
        body = response_body(
            self._context.parameters,
            status=ending.status,
            output=self._state.bodies(),
            usage=self._state.usage if self._state.turn else None,
            ending=ending,
            include=self._context.include,
        )
        return RunEnded(
            events=[*(events or []), *closing(ending, body)],
            ending=ending,
            ended_at=at,
            response=body,
            usage=self._state.usage,
            turn=turn,
            items=items,
            calls=calls or [],
            unfinished=self._state.pending,
        )

    def _close_fragments(self) -> tuple[list[Event], list[OutputItem]]:
        # The client has seen these items, so they stay in the output. A model would be confused by half an item, so
        # they are left out of the context of later turns.
        items: list[OutputItem] = []
        events: list[Event] = []
        for fragment in self._state.fragments:
            body, closed = close_fragment(fragment)
            items.append(OutputItem(body=body, in_context=False))
            events += closed
        self._state.fragments = []
        return events, items


def _output_items(items: Sequence[Body]) -> list[OutputItem]:
    # A call that was cut stays visible, but its incomplete JSON arguments make many upstreams reject the next request.
    return [OutputItem(body=body, in_context=not _is_truncated_call(body)) for body in items]


def _is_truncated_call(body: Body) -> bool:
    return bool(body["type"].endswith("_call") and body["status"] == "incomplete")
