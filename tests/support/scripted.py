"""A model and hosted tools that do exactly what a test has written down: the engine without a server or a database.

Both fail their test when they are asked more often than it foresaw, or less often (`verify`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from kernel.errors import Failure
from responses.engine.converter import ChatConverter
from responses.engine.events import Event
from responses.engine.tools import ToolResult
from responses.engine.turns import Call, TurnRequest, TurnResult
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


class ScriptedTools:
    """Hosted tools by name, each with the results of its calls in order; every other name is the client's."""

    def __init__(self, *, repeatable: bool = True, **results: Sequence[str | ToolResult]) -> None:
        self._results = {name: list(given) for name, given in results.items()}
        self._repeatable = repeatable
        self.calls: list[Call] = []

    def kind(self, name: str) -> str | None:
        """All hosted ones are of one kind."""
        return "scripted" if name in self._results else None

    def may_repeat(self, name: str) -> bool:
        """As the test says."""
        return self._repeatable

    async def call(self, call: Call) -> ToolResult:
        """The next result of this tool."""
        assert self._results[call.name], f"{call.name} was called more often than the test foresaw"
        self.calls.append(call)
        result = self._results[call.name].pop(0)
        return ToolResult(output=result) if isinstance(result, str) else result

    def verify(self) -> None:
        """Every result was asked for."""
        left = {name: results for name, results in self._results.items() if results}
        assert not left, f"never called: {left}"
