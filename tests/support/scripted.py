"""A scripted model and scripted hosted tools, to run the engine without server or database.

Both fail the test if they are called more often than scripted, or less often (`verify`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from typing_extensions import override

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult
from responses.engine.converter.chat import ChatConverter
from responses.engine.events.mcp import McpCallArgumentsDone, McpCallCompleted, McpCallFailed, McpCallInProgress
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool, TurnRequest, TurnResult
from tests.support.chunks import Chunk

Piece = Chunk | Failure | asyncio.Event
"""A chunk is read separately, a failure ends the turn, and an event pauses the stream until it is set."""


class ScriptedModel:
    """Plays one list of pieces per turn and records the requests."""

    def __init__(self, *turns: Sequence[Piece]) -> None:
        self._turns = list(turns)
        self.requests: list[TurnRequest] = []
        self.opened: list[ScriptedTurn] = []

    def open(self, request: TurnRequest) -> "ScriptedTurn":
        """Open the next turn of the script."""
        assert self._turns, "the model was asked for a turn that the test did not foresee"
        self.requests.append(request)
        self.opened.append(ScriptedTurn(request, self._turns.pop(0)))
        return self.opened[-1]

    def verify(self) -> None:
        """Assert that every turn of the script was used."""
        assert not self._turns, f"{len(self._turns)} turns were never asked for"


class ScriptedTurn:
    """One turn, converted by the real converter. `is_closed` is True after its events were closed."""

    def __init__(self, request: TurnRequest, pieces: Sequence[Piece]) -> None:
        sampling = request.sampling
        self._pieces = pieces
        self._converter = ChatConverter(
            first_output_index=request.first_output_index,
            # Scripts may ignore the limits on calls, as some upstreams do.
            sampling=replace(sampling, tool_choice=None, parallel_tool_calls=None),
        )
        self.is_closed = False

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each piece and of the end of the stream."""
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
        """Return the result of the turn."""
        return self._converter.result()

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close open items."""
        return self._converter.interrupt(), self._converter.result(interrupted=True)


class HostedTools(ABC):
    """Base class of hosted tools in tests, which behave like MCP tools without their events."""

    concurrency = 4

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Yield nothing."""
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """Return no functions; `kind` accepts the names."""
        return ()

    def kind(self, name: str) -> str | None:
        """Return the kind of every tool."""
        return "scripted"

    def may_repeat(self, name: str) -> bool:
        """Return True for every tool."""
        return True

    def limits(self, name: str) -> ToolLimits:
        """Return the default limits."""
        return ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """Every call is made."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """Return the item of an MCP call."""
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
        """Return the events at the start of a call."""
        place = {"item_id": body["id"], "output_index": output_index}
        return [McpCallInProgress(**place), McpCallArgumentsDone(**place, arguments=call.arguments)]

    @abstractmethod
    async def call(self, call: Call) -> ToolResult:
        """Return the result of a call."""

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """Return the item with its output."""
        place = {"item_id": body["id"], "output_index": output_index}
        if result.error is None:
            return ClosedItem(
                item={**body, "status": "completed", "output": result.output}, events=[McpCallCompleted(**place)]
            )
        error = {"type": "mcp_tool_execution_error", "content": result.output}
        return ClosedItem(item={**body, "status": "failed", "error": error}, events=[McpCallFailed(**place)])

    async def close(self) -> None:
        """Do nothing."""
        return

    def verify(self) -> None:
        """Assert nothing."""
        return


class ScriptedTools(HostedTools):
    """Hosted tools by name with the results of their calls in order. All other names are client tools."""

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
        """Return the next result of the tool."""
        assert self._results[call.name], f"{call.name} was called more often than the test foresaw"
        self.calls.append(call)
        result = self._results[call.name].pop(0)
        return ToolResult(output=result) if isinstance(result, str) else result

    @override
    async def close(self) -> None:
        self.is_closed = True

    @override
    def verify(self) -> None:
        """Assert that every result was used and the tools were closed."""
        left = {name: results for name, results in self._results.items() if results}
        assert not left, f"never called: {left}"
        assert self.is_closed
