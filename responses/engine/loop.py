"""The loop: sample a turn, look at what it asked for, run tools or end. The same for JSON, streams and workers."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never

from conversations.items import FunctionCall, FunctionCallOutput, plain_text
from kernel.clock import unix
from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine import estimate, structured
from responses.engine.body import Ending, response_body
from responses.engine.events import (
    Body,
    ContentPartDone,
    CustomToolCallInputDone,
    ErrorEvent,
    Event,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDone,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDone,
    ReasoningTextDone,
    RefusalDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from responses.engine.state import Fragment, OutputItem, PendingCall, RunContext, RunState
from responses.engine.steps import (
    CallRecord,
    Emitted,
    FragmentsClosed,
    RunEnded,
    Step,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnRecord,
)
from responses.engine.tools import Toolbox
from responses.engine.turns import Call, Finish, Model, Sampling, TurnRequest, TurnResult, TurnStream, Usage


@dataclass(frozen=True, slots=True)
class RunTools:
    """The turn asked for hosted tools."""

    calls: list[Call]


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


NextStep = RunTools | Finished | Incomplete | Failed


def opening(parameters: dict[str, Any]) -> list[Event]:
    """The events that a run begins with. They are committed with the response itself, before the upstream is asked."""
    return [
        ResponseCreated(response=response_body(parameters, status="in_progress")),
        ResponseInProgress(response=response_body(parameters, status="in_progress")),
    ]


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
        self._stream: TurnStream | None = None
        self._turn_started = now()
        self._service_tier = "default"

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Run to the end. Stopping the iteration early is allowed at any point; then ask `interrupt`."""
        if self._state.fragments:
            events, items = self._close_fragments()
            self._state.output += items
            yield FragmentsClosed(events=events, items=items)
        while True:
            async with aclosing(self._run_pending()) as calls:
                async for step in calls:
                    yield step
                    if isinstance(step, RunEnded):
                        return
            if self._waits_for_client():
                yield self._end(self._completed(self._now()), at=self._now())
                return
            async with aclosing(self._sample()) as sampling:
                async for emitted in sampling:
                    yield emitted
            result = self._take_result()
            match self._next(result):
                case RunTools(hosted):
                    yield self._turn_ended(result, hosted)
                case Finished() | Incomplete() | Failed() as end:
                    yield self._run_ended(result, end)
                    return
                case never:
                    assert_never(never)

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
        events, items = self._close_fragments()
        return self._end(ending, at=self._now(), events=events, items=items)

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
        sampling = context.sampling if state.turn == 0 else self._later_sampling()
        return TurnRequest(
            model=context.model,
            instructions=context.instructions,
            items=[*context.items, *state.context_items()],
            sampling=sampling,
            first_output_index=state.next_output_index,
            content=context.content,
            seal=context.seal,
        )

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

    def _next(self, result: TurnResult) -> NextStep:
        if result.failure is not None:
            return Failed(result.failure)
        match result.finish:
            case Finish.LENGTH:
                return Incomplete("max_output_tokens")
            case Finish.CONTENT_FILTER:
                return Incomplete("content_filter")
        hosted = [call for call in result.calls if self._tools.kind(call.name) is not None]
        if not hosted:
            wrong = structured.defect(result.items, self._context.sampling.response_format)
            return Failed(Failure(code="server_error", message=wrong)) if wrong else Finished()
        if self._state.turn + 1 >= self._context.max_turns:
            message = f"The run was stopped after {self._context.max_turns} turns."
            return Failed(Failure(code="server_error", message=message))
        return RunTools(hosted)

    def _waits_for_client(self) -> bool:
        """Whether a turn called functions of the client beside hosted ones: their outputs come before the next turn."""
        items = self._state.context_items()
        answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
        return any(isinstance(item, FunctionCall) and item.call_id not in answered for item in items)

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def _run_pending(self) -> AsyncGenerator[Step, None]:
        """Make the hosted calls that have no stored output; one that has is never made again."""
        for pending in list(self._state.pending):
            if pending.started and not self._tools.may_repeat(pending.call.name):
                message = f"The call of '{pending.call.name}' was interrupted, and it is not known to be repeatable."
                yield self._end(failed(Failure(code="server_error", message=message)), at=self._now())
                return
            yield ToolStarted(call=pending.call, turn=pending.turn, started_at=self._now())
            result = await self._tools.call(pending.call)
            yield self._tool_finished(pending, result.output, result=result)

    def _tool_finished(self, pending: PendingCall, output: str, *, result: Any) -> ToolFinished:
        body = {
            "id": new_id("fco"),
            "type": "function_call_output",
            "status": "completed",
            "call_id": pending.call.call_id,
            "output": output,
        }
        index = self._state.next_output_index
        opened = {**body, "status": "in_progress", "output": ""}
        item = OutputItem(body=body)
        self._state.output.append(item)
        self._state.pending = [other for other in self._state.pending if other.call != pending.call]
        return ToolFinished(
            call=pending.call,
            turn=pending.turn,
            result=result,
            ended_at=self._now(),
            item=item,
            events=[OutputItemAdded(output_index=index, item=opened), OutputItemDone(output_index=index, item=body)],
        )

    # -- endings -------------------------------------------------------------------------------------------------------

    def _turn_ended(self, result: TurnResult, hosted: list[Call]) -> TurnEnded:
        record = self._record(result)
        items = _output(result)
        self._state.output += items
        self._state.pending = [PendingCall(call=call, turn=record.number) for call in hosted]
        return TurnEnded(events=[], turn=record, items=items, calls=self._calls(result, record.number))

    def _run_ended(self, result: TurnResult, end: Finished | Incomplete | Failed) -> RunEnded:
        record = self._record(result)
        match end:
            case Finished():
                ending = self._completed(record.ended_at)
            case Incomplete(reason):
                ending = Ending(status="incomplete", incomplete_reason=reason, service_tier=self._service_tier)
            case Failed(failure):
                ending = failed(failure)
        calls = self._calls(result, record.number)
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
        self._state.tool_calls += len(result.calls)
        self._service_tier = result.shown_tier
        return record

    def _calls(self, result: TurnResult, turn: int) -> list[CallRecord]:
        return [
            CallRecord(call=call, turn=turn, kind=self._tools.kind(call.name) or "function") for call in result.calls
        ]

    def _estimate(self, result: TurnResult) -> Usage:
        """Four characters a token, for upstreams that do not say; marked as an estimate in the ledger."""
        if result.failure is not None and not result.items:
            return Usage(estimated=True)
        read = [item.wire() for item in (*self._context.items, *self._state.context_items())]
        return Usage(
            input_tokens=estimate.tokens(self._context.instructions or "", *map(plain_text, read)),
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


_UNKNOWN = Failure(code="server_error", message="The server had an error while processing your request.")


def failed(failure: Failure) -> Ending:
    """The ending of a run that cannot go on."""
    return Ending(status="failed", error={"code": failure.code, "message": failure.message}, failure=failure)


def closing(ending: Ending, body: Body) -> list[Event]:
    """The events that a run ends with. A cancelled one just ends: there is no event for it."""
    match ending.status:
        case "completed":
            return [ResponseCompleted(response=body)]
        case "incomplete":
            return [ResponseIncomplete(response=body)]
        case "failed":
            failure = ending.failure or _UNKNOWN
            return [ErrorEvent(error={**failure.as_api_error().detail()}), ResponseFailed(response=body)]
    return []


def close_fragment(fragment: Fragment) -> tuple[Body, list[Event]]:
    """The final body of an item that was cut, and the events that close it."""
    if not fragment.is_open:
        return fragment.body, []
    body = {**fragment.body, "status": "incomplete"}
    events: list[Event] = []
    index = fragment.output_index
    if body["type"] == "function_call":
        events.append(
            FunctionCallArgumentsDone(
                item_id=body["id"], output_index=index, name=body["name"], arguments=body["arguments"]
            )
        )
    elif body["type"] == "custom_tool_call":
        events.append(CustomToolCallInputDone(item_id=body["id"], output_index=index, input=body["input"]))
    elif fragment.open_part is not None:
        events += _close_part(body, index, fragment.open_part)
    elif fragment.open_summary is not None:
        events += _close_summary(body, index, fragment.open_summary)
    return body, [*events, OutputItemDone(output_index=index, item=body)]


def _close_part(body: Body, output_index: int, content_index: int) -> list[Event]:
    part = body["content"][content_index]
    place = {"item_id": body["id"], "output_index": output_index, "content_index": content_index}
    done: Event
    match part["type"]:
        case "refusal":
            done = RefusalDone(**place, refusal=part["refusal"])
        case "reasoning_text":
            done = ReasoningTextDone(**place, text=part["text"])
        case _:
            done = OutputTextDone(**place, text=part["text"], logprobs=part["logprobs"])
    return [done, ContentPartDone(**place, part=part)]


def _close_summary(body: Body, output_index: int, summary_index: int) -> list[Event]:
    part = body["summary"][summary_index]
    place = {"item_id": body["id"], "output_index": output_index, "summary_index": summary_index}
    return [ReasoningSummaryTextDone(**place, text=part["text"]), ReasoningSummaryPartDone(**place, part=part)]
