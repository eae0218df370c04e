"""What stands in for the world while a seeded response is played: a clock, a model and hosted tools with a script."""

import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine import citation_markers
from responses.engine.calls.item_events import after_result, before_result
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, RequireApproval, ToolLimits, ToolResult
from responses.engine.chat.converter import ChatConverter, Chunk
from responses.engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from responses.engine.state import OutputItem, RunContext, RunState
from responses.engine.steps import CallRecord, Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool, TurnRequest, TurnResult

_MOST_PIECES = 90
_PREFIXES = {"web_search_call": "ws", "file_search_call": "fs", "code_interpreter_call": "ci", "mcp_call": "mcp"}
_SEARCHES = {"web_search_call", "file_search_call"}


class Clock:
    """The time of a run that never happened."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """What time it is there."""
        return self.at

    def pass_by(self, seconds: float) -> None:
        """Let some time go by."""
        self.at += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class SeedStep:
    """A call that the model makes. `kind` "function": the client runs it; else `item` and `done` are the fields with
    which its item opens and ends, and `output` is what the model reads."""

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
    """Says one speech for each turn."""

    def __init__(self, clock: Clock, turns: Sequence[TurnScript]) -> None:
        self._clock = clock
        self._turns = list(turns)

    def open(self, request: TurnRequest) -> "ScriptedTurn":
        """The next speech."""
        return ScriptedTurn(self._clock, request, self._turns.pop(0))


class ScriptedTurn:
    """A speech, made into events by the converter that upstreams' streams go through."""

    def __init__(self, clock: Clock, request: TurnRequest, turn: TurnScript) -> None:
        self._clock = clock
        self._script = replace(turn, text=_cited(turn.text, request))
        self._first: datetime | None = None
        self._converter = ChatConverter(
            first_output_index=request.first_output_index, tools=request.sampling.tools, max_calls=None
        )

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Chunk after chunk, each at its time."""
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
        """What the turn brought."""
        return self._dated(self._converter.result(upstream_request_id=new_id("chatcmpl").replace("_", "-")))

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close what is open."""
        return self._converter.interrupt(), self._dated(self._converter.result(interrupted=True))

    def _dated(self, result: TurnResult) -> TurnResult:
        return replace(result, first_token_at=self._first)


def _cited(text: str, request: TurnRequest) -> str:
    """The text with the marks of the search before it."""
    found = [item for item in (one.with_id() for one in request.items) if item["type"] in _SEARCHES]
    for number in range(1, 6):
        text = text.replace(f"{{{number}}}", citation_markers.mark(found[-1]["id"], number) if found else "")
    return text


def _chunks(turn: TurnScript) -> Iterator[tuple[Chunk, int]]:
    """What an upstream sends, and of how many characters the model thought for each."""
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
    """Some letters at a time; more of them where there is much to say."""
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


class ScriptedTools:
    """The hosted tools of one exchange. `before` is what a server lists first; `approved` may be made."""

    concurrency = 4

    def __init__(
        self, clock: Clock, steps: Sequence[SeedStep], *, before: Sequence[Body] = (), approved: Mapping[str, str]
    ) -> None:
        self._clock = clock
        self._steps = {step.call_id: step for step in steps if step.kind != "function"}
        self._kinds = {step.name: step.kind for step in self._steps.values()}
        self._before = before
        self._approved = approved
        self.began = clock.at
        self.latest = clock.at

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Lists of servers, and calls that somebody has approved of."""
        for body in self._before:
            index = state.next_output_index
            opened = OutputItemAdded(output_index=index, item={**body, "tools": []})
            yield Emitted([opened, *before_result(body, output_index=index)])
            self._clock.pass_by(0.35)
            closed = [*after_result(body, output_index=index), OutputItemDone(output_index=index, item=body)]
            yield ToolsPrepared(events=closed, items=[OutputItem(body=body)])
        approved = [self._steps[call_id] for call_id in self._approved]
        if approved:
            calls = [CallRecord(call=_call(step), turn=0, kind=step.kind, state="pending") for step in approved]
            yield ToolsPrepared(events=[], calls=calls)

    def functions(self) -> tuple[FunctionTool, ...]:
        """All that will be called."""
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self._kinds)

    def kind(self, name: str) -> str | None:
        """Of which kind a hosted tool is."""
        return self._kinds.get(name)

    def may_repeat(self, name: str) -> bool:
        """Nothing happens twice here."""
        return True

    def limits(self, name: str) -> ToolLimits:
        """The usual ones."""
        return ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """Some ask first."""
        step = self._steps[call.call_id]
        if not step.asks:
            return Execute()
        names = {"server_label": step.item["server_label"], "name": step.item["name"]}
        item = {"id": new_id("mcpr"), "type": "mcp_approval_request", **names, "arguments": call.arguments}
        return RequireApproval(item, definition=hashlib.sha256(step.name.encode()).hexdigest())

    def open_item(self, call: Call) -> Body:
        """The item as its step opens it."""
        step = self._steps[call.call_id]
        given = {**step.item, "approval_request_id": self._approved[call.call_id]} if self._approved else step.item
        return {"id": new_id(_PREFIXES[step.item["type"]]), "status": "in_progress", **given}

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The events of a call that is under way."""
        told = {"arguments": call.arguments} if body["type"] == "mcp_call" else {}
        code = {"code": self._steps[call.call_id].arguments.get("code")} if "code" in body else {}
        return before_result({**body, **told, **code}, output_index=output_index)

    async def call(self, call: Call) -> ToolResult:
        """As the step has it, after its time; calls of one turn begin at the same moment."""
        step = self._steps[call.call_id]
        self._clock.at = self.began + timedelta(seconds=step.seconds)
        self.latest = max(self.latest, self._clock.at)
        return ToolResult(output=step.output, error=step.error, cost=step.cost)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The item as its step ends it."""
        step = self._steps[call.call_id]
        item = {**body, "status": "failed" if result.error else "completed", **step.done}
        if item["type"] == "mcp_call":
            item["arguments"] = call.arguments
        return ClosedItem(item=item, events=after_result(item, output_index=output_index))

    async def close(self) -> None:
        """Nothing is open."""


def _call(step: SeedStep) -> Call:
    return Call(
        item_id=step.call_id, call_id=step.call_id, name=step.name, arguments=orjson.dumps(step.arguments).decode()
    )
