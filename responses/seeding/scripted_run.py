"""Test doubles for the replay of seeded runs: a clock, a scripted model and scripted hosted tools."""

import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson
from typing_extensions import override

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine import citation_markers
from responses.engine.calls.item_events import after_result, before_result
from responses.engine.calls.outcomes import CallDecision, Execute, RequireApproval, ToolResult
from responses.engine.calls.toolbox import HostedTool
from responses.engine.converter.chat import ChatConverter, Chunk
from responses.engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from responses.engine.state import OutputItem, RunContext, RunState
from responses.engine.steps import CallRecord, Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool, Sampling, TurnRequest, TurnResult

_MOST_PIECES = 90
_PREFIXES = {"web_search_call": "ws", "file_search_call": "fs", "code_interpreter_call": "ci", "mcp_call": "mcp"}
_SEARCHES = {"web_search_call", "file_search_call"}


class Clock:
    """A clock under the control of the replay."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """Return the simulated time."""
        return self.at

    def pass_by(self, seconds: float) -> None:
        """Advance the clock."""
        self.at += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class SeedStep:
    """A tool call of the model.

    With `kind` "function" the client runs it. For hosted tools, `item` and `done` are the fields of its output item at
    the beginning and at the end, and `output` is what the model reads.
    """

    name: str
    arguments: Mapping[str, Any]
    kind: str = "function"
    item: Mapping[str, Any] = field(default_factory=dict)
    done: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    seconds: float = 0.4
    error: str | None = None
    cost: str | None = None
    asks: bool = False
    call_id: str = field(default_factory=lambda: new_id("call"))


@dataclass(frozen=True, kw_only=True)
class TurnScript:
    """One turn of the model. `{1}` in the text cites the first result of the last search."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    steps: Sequence[SeedStep] = ()
    finish: str = "stop"
    failure: Failure | None = None
    wait: float = 0.6
    pace: float = 90.0
    read: int = 400
    cached: int = 0


class ScriptedModel:
    """Plays one turn script per turn."""

    def __init__(self, clock: Clock, turns: Sequence[TurnScript]) -> None:
        self._clock = clock
        self._turns = list(turns)

    def open(self, request: TurnRequest) -> "ScriptedTurn":
        """Open the next turn."""
        return ScriptedTurn(self._clock, request, self._turns.pop(0))


class ScriptedTurn:
    """A turn script, converted to events by the converter for upstream streams."""

    def __init__(self, clock: Clock, request: TurnRequest, turn: TurnScript) -> None:
        self._clock = clock
        self._script = replace(turn, text=_cited(turn.text, request))
        self._first: datetime | None = None
        self._converter = ChatConverter(
            first_output_index=request.first_output_index, sampling=Sampling(tools=request.sampling.tools)
        )

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each chunk, advancing the clock."""
        turn = self._script
        self._clock.pass_by(turn.wait)
        for chunk, characters in _chunks(turn):
            events = self._converter.feed([chunk])
            if events and self._first is None:
                self._first = self._clock.at
            yield events
            self._clock.pass_by(characters / 4 / turn.pace)
        if turn.failure is not None:
            self._converter.fail(turn.failure)
        yield self._converter.end(done=True)

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._dated(self._converter.result(upstream_request_id=new_id("chatcmpl").replace("_", "-")))

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close open items and return their events with the result."""
        return self._converter.interrupt(), self._dated(self._converter.result(interrupted=True))

    def _dated(self, result: TurnResult) -> TurnResult:
        return replace(result, first_token_at=self._first)


def _cited(text: str, request: TurnRequest) -> str:
    """Replace `{1}` and the like by citation markers of the last search."""
    found = [item for item in (one.with_id() for one in request.items) if item["type"] in _SEARCHES]
    for number in range(1, 6):
        text = text.replace(f"{{{number}}}", citation_markers.mark(found[-1]["id"], number) if found else "")
    return text


def _chunks(turn: TurnScript) -> Iterator[tuple[Chunk, int]]:
    """Yield the chunks of a turn with the number of characters that each took to generate."""
    for piece in _pieces(turn.reasoning):
        yield _chunk(reasoning_content=piece), len(piece)
    for piece in _pieces(turn.text):
        yield _chunk(content=piece), len(piece)
    for piece in _pieces(turn.refusal):
        yield _chunk(refusal=piece), len(piece)
    for index, step in enumerate(turn.steps):
        arguments = orjson.dumps(step.arguments).decode()
        opening = {"index": index, "id": step.call_id, "type": "function"}
        yield _chunk(tool_calls=[{**opening, "function": {"name": step.name, "arguments": ""}}]), 8
        for piece in _pieces(arguments):
            yield _chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}]), len(piece)
    if turn.failure is None:
        reason = "tool_calls" if turn.steps and turn.finish == "stop" else turn.finish
        yield {**_chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}, 0
        yield {**_chunk(), "choices": [], "usage": _usage(turn)}, 0


def _pieces(text: str) -> Iterator[str]:
    """Split a text into at most 90 pieces."""
    size = max(14, -(-len(text) // _MOST_PIECES))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _chunk(**delta: Any) -> Chunk:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _usage(turn: TurnScript) -> dict[str, Any]:
    called = sum(len(orjson.dumps(step.arguments)) + len(step.name) for step in turn.steps)
    thought = len(turn.reasoning) // 4
    written = thought + max(1, (len(turn.text) + len(turn.refusal) + called) // 4)
    return {
        "prompt_tokens": turn.read,
        "completion_tokens": written,
        "total_tokens": turn.read + written,
        "prompt_tokens_details": {"cached_tokens": turn.cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


@dataclass
class CallTimes:
    """Times of the hosted calls of a turn, which start together at `began`. `latest` is the end of the longest."""

    clock: Clock
    began: datetime
    latest: datetime

    def restart(self) -> None:
        """Let the next calls start now."""
        self.began = self.latest = self.clock.at


class ScriptedTool(HostedTool):
    """The hosted tools of one kind. `before` are items of the preparation, `approved` the ids of approved calls."""

    def __init__(
        self,
        kind: str,
        steps: Sequence[SeedStep],
        times: CallTimes,
        *,
        before: Sequence[Body] = (),
        approved: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._steps = {step.call_id: step for step in steps if step.kind == kind}
        self.names = tuple(dict.fromkeys(step.name for step in self._steps.values()))
        self._times = times
        self._before = before
        self._approved = approved or {}

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        for body in self._before:
            index = state.next_output_index
            opened = OutputItemAdded(output_index=index, item={**body, "tools": []})
            yield Emitted([opened, *before_result(body, output_index=index)])
            self._times.clock.pass_by(0.35)
            closed = [*after_result(body, output_index=index), OutputItemDone(output_index=index, item=body)]
            yield ToolsPrepared(events=closed, items=[OutputItem(body=body)])
        approved = [self._steps[call_id] for call_id in self._approved]
        if approved:
            calls = [CallRecord(call=_call(step), turn=0, kind=step.kind, state="pending") for step in approved]
            yield ToolsPrepared(events=[], calls=calls)

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self.names)

    @override
    def may_repeat(self, name: str) -> bool:
        return True

    @override
    def decide(self, call: Call) -> CallDecision:
        step = self._steps[call.call_id]
        if not step.asks:
            return Execute()
        names = {"server_label": step.item["server_label"], "name": step.item["name"]}
        item = {"id": new_id("mcpr"), "type": "mcp_approval_request", **names, "arguments": call.arguments}
        return RequireApproval(item, definition=hashlib.sha256(step.name.encode()).hexdigest())

    @override
    def open_item(self, call: Call) -> Body:
        step = self._steps[call.call_id]
        given = {**step.item, "approval_request_id": self._approved[call.call_id]} if self._approved else step.item
        body = {"id": new_id(_PREFIXES[step.item["type"]]), "status": "in_progress", **given}
        if "arguments" in body:
            body["arguments"] = call.arguments
        if "code" in body:
            body["code"] = step.arguments.get("code")
        return body

    @override
    async def call(self, call: Call) -> ToolResult:
        """Return the scripted result, advancing the clock."""
        step, times = self._steps[call.call_id], self._times
        times.clock.at = times.began + timedelta(seconds=step.seconds)
        times.latest = max(times.latest, times.clock.at)
        return ToolResult(output=step.output, error=step.error, cost=step.cost)

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        step = self._steps[call.call_id]
        return [{**body, "status": "failed" if result.error else "completed", **step.done}]


def _call(step: SeedStep) -> Call:
    return Call(
        item_id=step.call_id, call_id=step.call_id, name=step.name, arguments=orjson.dumps(step.arguments).decode()
    )
