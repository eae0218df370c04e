"""A model and hosted tools that do exactly what a test has written down: the engine without a server or a database.

Both fail their test when they are asked more often than it foresaw, or less often (`verify`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from typing_extensions import override

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult
from responses.engine.chat.converter import ChatConverter
from responses.engine.events.mcp import McpCallArgumentsDone, McpCallCompleted, McpCallFailed, McpCallInProgress
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool, TurnRequest, TurnResult
from tests.support.chunks import Chunk

Piece = Chunk | Failure | asyncio.Event
"""A chunk is a read of its own; a failure ends the turn; at an event the upstream waits until it is set."""


class ScriptedModel:
    """Plays one list of pieces for each turn and keeps every request."""

    def __init__(self, *turns: Sequence[Piece]) -> None:
        self._turns = list(turns)
        self.requests: list[TurnRequest] = []
        self.opened: list[ScriptedTurn] = []

    def open(self, request: TurnRequest) -> "ScriptedTurn":
        """The next turn of the script."""
        assert self._turns, "the model was asked for a turn that the test did not foresee"
        self.requests.append(request)
        self.opened.append(ScriptedTurn(request, self._turns.pop(0)))
        return self.opened[-1]

    def verify(self) -> None:
        """Every turn of the script was asked for."""
        assert not self._turns, f"{len(self._turns)} turns were never asked for"


class ScriptedTurn:
    """One turn, converted by the real converter; `is_closed` once nobody reads it any more."""

    def __init__(self, request: TurnRequest, pieces: Sequence[Piece]) -> None:
        sampling = request.sampling
        self._pieces = pieces
        self._converter = ChatConverter(
            first_output_index=request.first_output_index,
            logprobs=sampling.logprobs,
            top_logprobs=sampling.top_logprobs,
            tools=sampling.tools,
        )
        self.is_closed = False

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """The events of each piece, then those of the end, which `[DONE]` announced."""
        try:
            for piece in self._pieces:
                match piece:
                    case Failure():
                        self._converter.fail(piece)
                        break
                    case asyncio.Event():
                        await piece.wait()
                    case _:
                        yield self._converter.feed([piece])
            yield self._converter.end(done=True)
        finally:
            self.is_closed = True

    def result(self) -> TurnResult:
        """What the turn brought."""
        return self._converter.result()

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close what is open."""
        return self._converter.interrupt(), self._converter.result(interrupted=True)


class HostedTools(ABC):
    """What every hosted tool of the tests is like: a tool of some MCP server, without the events of one."""

    concurrency = 4

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Nothing comes first."""
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """None beside those that `kind` knows."""
        return ()

    def kind(self, name: str) -> str | None:
        """All of them are hosted."""
        return "scripted"

    def may_repeat(self, name: str) -> bool:
        """All of them."""
        return True

    def limits(self, name: str) -> ToolLimits:
        """The usual ones."""
        return ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """Every call is made."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """A call of a tool of a server."""
        return {
            "id": new_id("mcp"),
            "type": "mcp_call",
            "status": "in_progress",
            "server_label": "scripted",
            "name": call.name,
            "arguments": call.arguments,
            "approval_request_id": None,
            "output": None,
            "error": None,
        }

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The events of a call that is under way."""
        place = {"item_id": body["id"], "output_index": output_index}
        return [McpCallInProgress(**place), McpCallArgumentsDone(**place, arguments=call.arguments)]

    @abstractmethod
    async def call(self, call: Call) -> ToolResult:
        """As the test has it."""

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The call with its output."""
        place = {"item_id": body["id"], "output_index": output_index}
        if result.error is None:
            return ClosedItem(
                item={**body, "status": "completed", "output": result.output}, events=[McpCallCompleted(**place)]
            )
        error = {"type": "mcp_tool_execution_error", "content": result.output}
        return ClosedItem(item={**body, "status": "failed", "error": error}, events=[McpCallFailed(**place)])

    async def close(self) -> None:
        """Nothing is open."""
        return

    def verify(self) -> None:
        """Nothing was foreseen."""
        return


class ScriptedTools(HostedTools):
    """Hosted tools by name, each with the results of its calls in order; every other name is the client's."""

    def __init__(self, *, repeatable: bool = True, **results: Sequence[str | ToolResult]) -> None:
        self._results = {name: list(given) for name, given in results.items()}
        self._repeatable = repeatable
        self.calls: list[Call] = []
        self.is_closed = False

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self._results)

    @override
    def kind(self, name: str) -> str | None:
        return "scripted" if name in self._results else None

    @override
    def may_repeat(self, name: str) -> bool:
        return self._repeatable

    @override
    async def call(self, call: Call) -> ToolResult:
        """The next result of this tool."""
        assert self._results[call.name], f"{call.name} was called more often than the test foresaw"
        self.calls.append(call)
        result = self._results[call.name].pop(0)
        return ToolResult(output=result) if isinstance(result, str) else result

    @override
    async def close(self) -> None:
        self.is_closed = True

    @override
    def verify(self) -> None:
        """Every result was asked for, and nothing was left open."""
        left = {name: results for name, results in self._results.items() if results}
        assert not left, f"never called: {left}"
        assert self.is_closed
