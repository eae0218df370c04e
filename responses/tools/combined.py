"""Several kinds of hosted tools as one toolbox."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from responses.engine.calls.outcomes import CallDecision, ClosedItem, Refuse, ToolLimits, ToolResult
from responses.engine.calls.port import NoTools, ProgressEvent, ProgressReporter, Toolbox
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, FunctionTool


def combined(boxes: Sequence[Toolbox]) -> Toolbox:
    """One toolbox with the tools of all of these."""
    match boxes:
        case []:
            return NoTools()
        case [one]:
            return one
    return _Combined(boxes)


class _Combined:
    """Asks that toolbox which has the tool; of several the first."""

    def __init__(self, boxes: Sequence[Toolbox]) -> None:
        self._boxes = boxes

    @property
    def concurrency(self) -> int:
        """What the most patient of them allows."""
        return max(box.concurrency for box in self._boxes)

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """One after the other: items are not interleaved."""
        for box in self._boxes:
            async with aclosing(box.prepare(context, state)) as preparing:
                async for step in preparing:
                    yield step

    def report_progress_to(self, tell: Callable[[str, ProgressEvent], None]) -> None:
        """Let those tell that have something to tell."""
        for box in self._boxes:
            if isinstance(box, ProgressReporter):
                box.report_progress_to(tell)

    def functions(self) -> tuple[FunctionTool, ...]:
        """Everything that any of them offers."""
        return tuple(function for box in self._boxes for function in box.functions())

    def kind(self, name: str) -> str | None:
        """The kind that its own toolbox names."""
        return next((kind for box in self._boxes if (kind := box.kind(name)) is not None), None)

    def may_repeat(self, name: str) -> bool:
        """What its own toolbox says."""
        box = self._owner(name)
        return box is not None and box.may_repeat(name)

    def limits(self, name: str) -> ToolLimits:
        """What its own toolbox says."""
        box = self._owner(name)
        return box.limits(name) if box is not None else ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """What its own toolbox says."""
        box = self._owner(call.name)
        return box.decide(call) if box is not None else Refuse(f"error: there is no tool named {call.name!r}")

    def open_item(self, call: Call) -> Body:
        """The item that its own toolbox makes."""
        return self._known(call.name).open_item(call)

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The events that its own toolbox makes."""
        return self._known(call.name).opening_events(body, call, output_index)

    async def call(self, call: Call) -> ToolResult:
        """Let its own toolbox make the call."""
        return await self._known(call.name).call(call)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The final item that its own toolbox makes."""
        return self._known(call.name).close_item(body, call, result, output_index)

    async def close(self) -> None:
        """Close all of them."""
        for box in self._boxes:
            await box.close()

    def _owner(self, name: str) -> Toolbox | None:
        return next((box for box in self._boxes if box.kind(name) is not None), None)

    def _known(self, name: str) -> Toolbox:
        box = self._owner(name)
        if box is None:
            message = f"No hosted tool is called {name!r}."
            raise LookupError(message)
        return box
