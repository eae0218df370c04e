"""The loop: sample a turn, look at what it asked for, run tools or end. The same for JSON, streams and workers."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from conversations.items import plain_text
from kernel.clock import unix
from kernel.errors import Failure
from responses.engine import admission, estimate, structured
from responses.engine.admission import Sorted
from responses.engine.body import Ending, response_body
from responses.engine.endings import closing, failed
from responses.engine.events import Body, Event
from responses.engine.fragments import OpenItem, close_fragment
from responses.engine.hosted import HostedCalls, whole_item
from responses.engine.state import OutputItem, PendingCall, RunContext, RunState
from responses.engine.steps import (
    CallRecord,
    Emitted,
    FragmentsClosed,
    Prepared,
    RunEnded,
    Step,
    TurnEnded,
    TurnRecord,
)
from responses.engine.tools import Toolbox
from responses.engine.turns import Finish, Model, Sampling, TurnRequest, TurnResult, TurnStream, Usage

# So many turns in a row may do nothing but call what does not exist or is not allowed.
_FUTILE_TURNS = 3


@dataclass(frozen=True, slots=True)
class GoOn:
    """The turn asked for hosted tools."""

    calls: Sorted


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to do for us; calls to the client's functions may be outstanding."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A limit or a filter cut the answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The run cannot go on."""

    failure: Failure


NextStep = GoOn | Finished | Incomplete | Failed


class Run:
    """One execution of a response, from any persisted state to a terminal one."""

    def __init__(
        self, context: RunContext, state: RunState, *, model: Model, tools: Toolbox, now: Callable[[], datetime]
    ) -> None:
        self._context = context
        self._state = state
        self._model = model
        self._tools = tools
        self._now = now
        self._hosted = HostedCalls(state, tools, now=now)
        self._open_item = OpenItem()
        self._stream: TurnStream | None = None
        self._turn_started = now()
        self._futile_turns = 0
        self._service_tier = "default"

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Run to the end. Stopping the iteration early is allowed at any point; then ask `interrupt`."""
        try:
            if self._state.fragments:
                events, items = self._close_fragments()
                self._state.output += items
                yield FragmentsClosed(events=events, items=items)
            async with aclosing(self._prepare()) as preparing:
                async for prepared in preparing:
                    yield prepared
                    if isinstance(prepared, RunEnded):
                        return
            while (end := self._end_before_calls()) is None:
                async with aclosing(self._hosted.steps()) as calls:
                    async for called in calls:
                        self._open_item.follow(called.events)
                        yield called
                if (end := self._end_before_turn()) is not None:
                    break
                async with aclosing(self._sample()) as sampling:
                    async for emitted in sampling:
                        yield emitted
                yield (over := self._turn_over())
                if isinstance(over, RunEnded):
                    return
            yield end
        finally:
            await self._tools.close()

    def interrupt(self, ending: Ending) -> RunEnded:
        """End the run where it stands (cancelled, or failed by somebody else's fault): close what is open."""
        events, result = self._stream.interrupt() if self._stream else ([], None)
        self._stream = None
        if result is None:
            return self.end_dead(ending)
        items, turn = _output(result), self._record(result)
        return self._end(ending, at=self._now(), events=events, items=items, turn=turn)

    def end_dead(self, ending: Ending) -> RunEnded:
        """End a run in which no turn is going on, such as one that was taken over and cannot be continued."""
        if (fragment := self._open_item.fragment) is not None:
            self._state.fragments.append(fragment)
        events, items = self._close_fragments()
        return self._end(ending, at=self._now(), events=events, items=items)

    # -- hosted tools --------------------------------------------------------------------------------------------------

    async def _prepare(self) -> AsyncGenerator[Step, None]:
        """What hosted tools put in front of the first turn."""
        async with aclosing(self._tools.prepare(self._context, self._state)) as preparing:
            async for step in preparing:
                self._open_item.follow(step.events)
                if isinstance(step, Prepared):
                    self._state.output += step.items
                    self._take_in(step.calls)
                yield step
                if isinstance(step, Prepared) and step.failure is not None:
                    yield self._end(failed(step.failure), at=self._now())

    def _take_in(self, calls: list[CallRecord]) -> None:
        state = self._state
        state.pending += [PendingCall(call=c.call, turn=c.turn) for c in calls if c.state == "pending"]
        state.hosted_calls += sum(c.state == "pending" for c in calls)
        state.asides += [aside for c in calls if (aside := admission.aside(c)) is not None]
        state.waiting = state.waiting or any(c.state in {"waiting", "asked"} for c in calls)

    def _end_before_calls(self) -> RunEnded | None:
        if (stuck := self._hosted.stuck()) is None:
            return None
        message = f"The call of '{stuck.name}' was interrupted, and it is not known to be repeatable."
        return self._end(failed(Failure(code="server_error", message=message)), at=self._now())

    def _end_before_turn(self) -> RunEnded | None:
        """Why no model is asked, though the calls that we make are made."""
        if self._state.waiting:
            return self._end(self._completed(self._now()), at=self._now())
        return None

    # -- sampling ------------------------------------------------------------------------------------------------------

    async def _sample(self) -> AsyncGenerator[Emitted, None]:
        self._turn_started = self._now()
        self._stream = self._model.open(self._request())
        async with aclosing(self._stream.events()) as turn:
            async for events in turn:
                if events:
                    yield Emitted(events)

    def _request(self) -> TurnRequest:
        context, state = self._context, self._state
        return TurnRequest(
            model=context.model,
            instructions=context.instructions,
            items=[*context.items, *state.context_items()],
            sampling=self._sampling(),
            first_output_index=state.next_output_index,
            content=context.content,
            seal=context.seal,
        )

    def _sampling(self) -> Sampling:
        sampling = self._context.sampling if self._state.turn == 0 else self._later_sampling()
        if functions := self._tools.functions():
            sampling = replace(sampling, tools=(*sampling.tools, *functions))
        return sampling

    def _later_sampling(self) -> Sampling:
        """Of the turns after the first: with what is left of the tokens, and free to end with words."""
        sampling = self._context.sampling
        if sampling.max_output_tokens is not None:
            left = max(1, sampling.max_output_tokens - self._state.usage.output_tokens)
            sampling = replace(sampling, max_output_tokens=left)
        if sampling.tool_choice not in {None, "none", "auto"}:
            sampling = replace(sampling, tool_choice="auto")
        return sampling

    def _take_result(self) -> TurnResult:
        stream, self._stream = self._stream, None
        if stream is None:
            msg = "a turn was ended that never began"
            raise RuntimeError(msg)
        return stream.result()

    # -- what next -----------------------------------------------------------------------------------------------------

    def _turn_over(self) -> TurnEnded | RunEnded:
        result = self._take_result()
        match self._next(result):
            case GoOn(calls):
                return self._turn_ended(result, calls)
            case Finished() | Incomplete() | Failed() as end:
                return self._run_ended(result, end)
            case never:
                assert_never(never)

    def _next(self, result: TurnResult) -> NextStep:
        if result.failure is not None:
            return Failed(result.failure)
        match result.finish:
            case Finish.LENGTH:
                return Incomplete("max_output_tokens")
            case Finish.CONTENT_FILTER:
                return Incomplete("content_filter")
        calls = admission.sort_out(result, context=self._context, state=self._state, tools=self._tools)
        if not calls.concern_us:
            wrong = structured.defect(result.items, self._context.sampling.response_format)
            return Failed(Failure(code="server_error", message=wrong)) if wrong else Finished()
        return self._bounded(calls) or GoOn(calls)

    def _bounded(self, calls: Sorted) -> Failed | None:
        """Every run ends: so many turns it may take, and so many of them without getting anywhere."""
        self._futile_turns = 0 if calls.admitted else self._futile_turns + 1
        if self._state.turn + 1 >= self._context.max_turns:
            return Failed(
                Failure(code="server_error", message=f"The run was stopped after {self._context.max_turns} turns.")
            )
        if self._futile_turns > _FUTILE_TURNS:
            message = "The model did not stop calling tools that it does not have."
            return Failed(Failure(code="server_error", message=message))
        return None

    # -- endings -------------------------------------------------------------------------------------------------------

    def _turn_ended(self, result: TurnResult, calls: Sorted) -> TurnEnded:
        record, items, events = self._record(result), _output(result), list[Event]()
        self._state.output += items
        for body in calls.asked_for:
            events += whole_item(body, output_index=self._state.next_output_index)
            items = [*items, OutputItem(body=body)]
            self._state.output.append(items[-1])
        records = calls.records(turn=record.number, after=len(self._state.output))
        self._take_in(records)
        return TurnEnded(events=events, turn=record, items=items, calls=records)

    def _run_ended(self, result: TurnResult, end: Finished | Incomplete | Failed) -> RunEnded:
        record = self._record(result)
        match end:
            case Finished():
                ending = self._completed(record.ended_at)
            case Incomplete(reason):
                ending = Ending(status="incomplete", incomplete_reason=reason, service_tier=self._service_tier)
            case Failed(failure):
                ending = failed(failure)
        calls = admission.unmade(result.calls, turn=record.number, tools=self._tools)
        return self._end(ending, at=record.ended_at, items=_output(result), turn=record, calls=calls)

    def _completed(self, at: datetime) -> Ending:
        return Ending(status="completed", completed_at=unix(at), service_tier=self._service_tier)

    def _record(self, result: TurnResult) -> TurnRecord:
        """Close the books of a turn: its tokens are the run's, whatever became of it."""
        usage = result.usage or self._estimate(result)
        record = TurnRecord(
            number=self._state.turn,
            started_at=self._turn_started,
            ended_at=self._now(),
            result=result,
            usage=usage,
        )
        self._state.turn += 1
        self._state.usage += usage
        self._service_tier = result.shown_tier
        return record

    def _estimate(self, result: TurnResult) -> Usage:
        """Four characters a token, for upstreams that do not say; marked as an estimate in the ledger."""
        if result.failure is not None and not result.items:
            return Usage(estimated=True)
        items = [*self._context.items, *self._state.context_items()]
        files = self._context.content.words(items) if self._context.content else ()
        read = [plain_text(item.wire()) for item in items]
        return Usage(
            input_tokens=estimate.tokens(self._context.instructions or "", *read, *files),
            output_tokens=estimate.tokens(*map(plain_text, result.items)),
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
            abandoned=self._state.pending,
        )

    def _close_fragments(self) -> tuple[list[Event], list[OutputItem]]:
        """What a cut turn left: shown, but never read by a model again."""
        items: list[OutputItem] = []
        events: list[Event] = []
        for fragment in self._state.fragments:
            body, closed = close_fragment(fragment)
            items.append(OutputItem(body=body, in_context=False))
            events += closed
        self._state.fragments = []
        return events, items


def _output(result: TurnResult) -> list[OutputItem]:
    """What a turn brought, as output. A call that was cut is shown; a model would stumble over its arguments."""
    return [OutputItem(body=body, in_context=not _is_cut_call(body)) for body in result.items]


def _is_cut_call(body: Body) -> bool:
    return bool(body["type"] == "function_call" and body["status"] == "incomplete")
