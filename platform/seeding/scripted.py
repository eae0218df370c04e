"""A model and hosted tools that follow a script, for the engine of real runs. Their time is simulated."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus

from typing_extensions import override

from conversations.items import project
from core.ids import new_id
from engine.calls.item_events import after_result, before_result
from engine.calls.outcomes import CallDecision, Execute, RequireApproval, ToolResult, request_digest
from engine.calls.toolbox import HostedTool
from engine.compaction.token_estimate import tokens
from engine.converter.chat import ChatConverter, Chunk
from engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from engine.state import OutputItem, RunContext, RunState
from engine.steps import CallRecord, ToolsPrepared
from engine.turn import Attempt, Call, CallForm, FunctionTool, TurnRequest, TurnResult
from responses.runs.run_usage import PRICE_KEYS
from seeding.scenarios import LISTED_TOOLS, ScriptedCall, ScriptedTurn

_MOST_PIECES = 90


@dataclass
class Clock:
    """The time of a run, which its model and its tools advance. All calls of a turn start at `calls_at`."""

    at: datetime
    calls_at: datetime

    def __call__(self) -> datetime:
        return self.at

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self.at += timedelta(seconds=seconds)


class ScriptedModel:
    """Answers with one turn of the script after the other, at a constant pace of characters."""

    def __init__(self, turns: Sequence[ScriptedTurn], *, clock: Clock, pace: float) -> None:
        self._turns, self._clock, self._pace = iter(turns), clock, pace

    def open(self, request: TurnRequest) -> "_Stream":
        """Start the next turn."""
        return _Stream(next(self._turns), request, clock=self._clock, pace=self._pace)


class _Stream:
    """A turn in progress, converted by the converter of real upstreams."""

    def __init__(self, turn: ScriptedTurn, request: TurnRequest, *, clock: Clock, pace: float) -> None:
        self._turn, self._clock, self._pace = turn, clock, pace
        self._converter = ChatConverter(first_output_index=request.first_output_index, sampling=request.sampling)
        request_id = new_id("chatcmpl").replace("_", "-")
        self._attempt = Attempt(began=clock.at, status=HTTPStatus.OK, request_id=request_id)
        self._first_token_at: datetime | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        self._clock.wait(self._turn.wait)
        for chunk, characters in _chunks(self._turn):
            yield self._converter.feed([chunk])
            self._first_token_at = self._first_token_at or self._clock.at
            self._clock.wait(characters / self._pace)
        if self._turn.failure is not None:
            self._converter.fail(self._turn.failure)
        yield self._converter.end(done=True)

    def result(self, *, interrupted: bool = False) -> TurnResult:
        result = self._converter.result(interrupted=interrupted, attempts=[self._attempt])
        return replace(result, first_token_at=self._first_token_at)

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        return self._converter.interrupt(), self.result(interrupted=True)


def _chunks(turn: ScriptedTurn) -> Iterator[tuple[Chunk, int]]:
    """Yield the chunks of the upstream with the number of characters that each took to generate."""
    pieces: list[tuple[Chunk, str]] = []
    for field, text in (("reasoning_content", turn.reasoning), ("content", turn.text), ("refusal", turn.refusal)):
        size = max(14, -(-len(text) // _MOST_PIECES))
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        pieces += [({field: part}, part) for part in parts]
    for index, call in enumerate(turn.calls):
        function = {"name": call.name, "arguments": call.arguments}
        called = {"index": index, "id": call.call_id, "type": "function", "function": function}
        pieces.append(({"tool_calls": [called]}, str(function)))
    for delta, text in pieces:
        yield {"choices": [{"index": 0, "delta": delta}]}, len(text)
    if turn.failure is not None:
        return
    yield {"choices": [{"delta": {}, "finish_reason": "tool_calls" if turn.calls else turn.finish}]}, 0
    usage = {
        "prompt_tokens": turn.read,
        "completion_tokens": tokens(*(text for _, text in pieces)),
        "prompt_tokens_details": {"cached_tokens": turn.cached},
        "completion_tokens_details": {"reasoning_tokens": tokens(turn.reasoning)},
    }
    yield {"choices": [], "usage": usage}, 0


class ScriptedTools(HostedTool):
    """The scripted calls that have the same kind of item."""

    def __init__(self, kind: str, calls: Sequence[ScriptedCall], *, clock: Clock) -> None:
        self.kind = kind
        self.names = [call.name for call in calls]
        self._calls, self._clock = {call.call_id: call for call in calls}, clock
        # Decisions for which the run has waited: the approval response, and the call if it was approved.
        self._decisions: list[Body] = []
        self._approved: list[CallRecord] = []

    def settle(self, request: Body, call_id: str, *, approve: bool, reason: str) -> None:
        """Continue with the decision about a call. `request` is its approval request."""
        answer = {"approval_request_id": request["id"], "approve": approve, "reason": reason or None}
        self._decisions.append({"id": new_id("mcpa"), "type": "mcp_approval_response", **answer})
        if approve:
            scripted = self._calls[call_id]
            item = {**scripted.item, "approval_request_id": request["id"]}
            # As in real runs, the id of the call is now that of its request.
            self._calls[request["id"]] = replace(scripted, call_id=request["id"], item=item, asks=False)
            call = Call(item_id="", call_id=request["id"], name=scripted.name, arguments=scripted.arguments)
            self._approved.append(CallRecord(call=call, turn=0, kind=self.kind, state="pending"))

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[ToolsPrepared, None]:
        if self._decisions:
            items = [OutputItem(body=body) for body in self._decisions]
            yield ToolsPrepared(events=[], items=items, calls=self._approved)
        elif self.kind == "mcp":
            self._clock.wait(0.35)
            body, index = {"id": new_id("mcpl"), **LISTED_TOOLS}, state.next_output_index
            opened = OutputItemAdded(output_index=index, item={**body, "tools": []})
            within = [*before_result(body, output_index=index), *after_result(body, output_index=index)]
            closed = OutputItemDone(output_index=index, item=project(body, frozenset()))
            yield ToolsPrepared(events=[opened, *within, closed], items=[OutputItem(body=body)])

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self.names)

    @override
    def decide(self, call: Call) -> CallDecision:
        scripted = self._calls[call.call_id]
        if not scripted.asks:
            return Execute()
        shown = {name: scripted.item[name] for name in ("server_label", "name", "arguments")}
        item = {"id": new_id("mcpr"), "type": "mcp_approval_request", **shown}
        return RequireApproval(item, definition=request_digest(item))

    @override
    def open_item(self, call: Call) -> Body:
        return {"status": "in_progress", **self._calls[call.call_id].item}

    @override
    async def call(self, call: Call) -> ToolResult:
        scripted = self._calls[call.call_id]
        self._clock.at = self._clock.calls_at + timedelta(seconds=scripted.seconds)
        error = "failed" if "error" in scripted.done else None
        return ToolResult(output=scripted.output, error=error, cost=PRICE_KEYS.get(call.name))

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        return [{**body, "status": result.error or "completed", **self._calls[call.call_id].done}]
