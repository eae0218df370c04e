"""Several toolboxes as one, for runs with hosted tools of more than one kind."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from responses.engine.calls import Admission, Closed, ToolLimits, ToolResult
from responses.engine.events import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, Prepared
from responses.engine.tools import NoTools, Toolbox
from responses.engine.turns import Call, FunctionTool

_NONE = NoTools()


def together(boxes: Sequence[Toolbox]) -> Toolbox:
    """One toolbox for all of these. Of two that know a name the first one has it."""
    match boxes:
        case []:
            return _NONE
        case [box]:
            return box
    return _Together(boxes)


class _Together:
    """Asks the box that knows the name."""

    def __init__(self, boxes: Sequence[Toolbox]) -> None:
        self._boxes = boxes

    @property
    def concurrency(self) -> int:
        return max(box.concurrency for box in self._boxes)

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | Prepared, None]:
        for box in self._boxes:
            async with aclosing(box.prepare(context, state)) as preparing:
                async for step in preparing:
                    yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(function for box in self._boxes for function in box.functions())

    def kind(self, name: str) -> str | None:
        return self._of(name).kind(name)

    def may_repeat(self, name: str) -> bool:
        return self._of(name).may_repeat(name)

    def limits(self, name: str) -> ToolLimits:
        return self._of(name).limits(name)

    def admit(self, call: Call) -> Admission:
        return self._of(call.name).admit(call)

    def opened(self, call: Call) -> Body:
        return self._of(call.name).opened(call)

    def begun(self, body: Body, call: Call, output_index: int) -> list[Event]:
        return self._of(call.name).begun(body, call, output_index)

    async def call(self, call: Call) -> ToolResult:
        return await self._of(call.name).call(call)

    def closed(self, body: Body, call: Call, result: ToolResult, output_index: int) -> Closed:
        return self._of(call.name).closed(body, call, result, output_index)

    async def close(self) -> None:
        for box in self._boxes:
            await box.close()

    def _of(self, name: str) -> Toolbox:
        return next((box for box in self._boxes if box.kind(name) is not None), _NONE)
