"""Combines the toolboxes of several kinds of tools into one."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from responses.engine.calls.outcomes import CallDecision, ClosedItem, Refuse, ToolLimits, ToolResult
from responses.engine.calls.toolbox import NoTools, ProgressEvent, ProgressReporter, Toolbox
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, FunctionTool


def combine(toolboxes: Sequence[Toolbox]) -> Toolbox:
    """Return a toolbox that offers the tools of all given toolboxes."""
    match toolboxes:
        case []:
            return NoTools()
        case [one]:
            return one
    return _CombinedToolbox(toolboxes)


class _CombinedToolbox:
    """Toolbox that passes each call to the toolbox that owns the tool; the first one wins."""

    def __init__(self, toolboxes: Sequence[Toolbox]) -> None:
        self._toolboxes = toolboxes

    @property
    def concurrency(self) -> int:
        # The loop needs one number for the whole run. A smaller limit would slow down tools that allow more.
        return max(toolbox.concurrency for toolbox in self._toolboxes)

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        for toolbox in self._toolboxes:
            # One toolbox after the other: items in the output must not be interleaved.
            async with aclosing(toolbox.prepare(context, state)) as steps:
                async for step in steps:
                    yield step

    def report_progress_to(self, report: Callable[[str, ProgressEvent], None]) -> None:
        for toolbox in self._toolboxes:
            if isinstance(toolbox, ProgressReporter):
                toolbox.report_progress_to(report)

    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(function for toolbox in self._toolboxes for function in toolbox.functions())

    def kind(self, name: str) -> str | None:
        return next((kind for toolbox in self._toolboxes if (kind := toolbox.kind(name)) is not None), None)

    def may_repeat(self, name: str) -> bool:
        toolbox = self._owner(name)
        return toolbox is not None and toolbox.may_repeat(name)

    def limits(self, name: str) -> ToolLimits:
        toolbox = self._owner(name)
        return toolbox.limits(name) if toolbox is not None else ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        toolbox = self._owner(call.name)
        return toolbox.decide(call) if toolbox is not None else Refuse(f"error: there is no tool named {call.name!r}")

    def open_item(self, call: Call) -> Body:
        return self._known(call.name).open_item(call)

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        return self._known(call.name).opening_events(body, call, output_index)

    async def call(self, call: Call) -> ToolResult:
        return await self._known(call.name).call(call)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        return self._known(call.name).close_item(body, call, result, output_index)

    async def close(self) -> None:
        for toolbox in self._toolboxes:
            await toolbox.close()

    def _owner(self, name: str) -> Toolbox | None:
        return next((toolbox for toolbox in self._toolboxes if toolbox.kind(name) is not None), None)

    def _known(self, name: str) -> Toolbox:
        toolbox = self._owner(name)
        if toolbox is None:
            message = f"no hosted tool is named {name!r}"
            raise LookupError(message)
        return toolbox
