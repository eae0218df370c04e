"""A scripted model and scripted hosted tools, to run the engine without server or database.

Both fail the test if they are called more often than scripted, or less often (`verify`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from typing_extensions import override

from core.errors import Failure
from engine.calls.outcomes import InputRequired, ToolResult
from engine.calls.toolbox import HostedTool, Toolbox
from engine.converter.chat import ChatConverter
from engine.events.types import Event
from engine.turn import Call, CallForm, FunctionTool, TurnRequest, TurnResult
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


def toolbox(hosted: HostedTool | Toolbox | None) -> Toolbox:
    """Return the toolbox of a run with one hosted tool or none."""
    if isinstance(hosted, Toolbox):
        return hosted
    return Toolbox([hosted] if hosted is not None else [])


class HostedTools(HostedTool):
    """Base class of hosted tools in tests. Every function is theirs, and their calls may be repeated."""

    kind = "scripted"

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return ()

    @override
    def owns(self, name: str) -> bool:
        return True

    @override
    def may_repeat(self, name: str) -> bool:
        return True

    def verify(self) -> None:
        """Assert nothing."""
        return


class ScriptedTools(HostedTools):
    """Hosted tools by name with the results of their calls in order. All other names are client tools."""

    def __init__(self, *, repeatable: bool = True, **results: Sequence[str | ToolResult | InputRequired]) -> None:
        self._results = {name: list(given) for name, given in results.items()}
        self._repeatable = repeatable
        self.calls: list[Call] = []
        self.is_closed = False

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self._results)

    @override
    def owns(self, name: str) -> bool:
        return name in self._results

    @override
    def may_repeat(self, name: str) -> bool:
        return self._repeatable

    @override
    async def call(self, call: Call) -> ToolResult | InputRequired:
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
