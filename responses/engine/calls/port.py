"""The port to hosted tools: what the loop asks of them. The tools themselves stand in `responses.tools`.

A hosted tool makes its own items (`mcp_call`, `web_search_call`, …). The next turn, and every later response, reads the
call and its output from that item alone.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, runtime_checkable

from responses.engine.calls.outcomes import CallDecision, ClosedItem, Refuse, ToolLimits, ToolResult
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, FunctionTool

_LIMITS = ToolLimits()
ProgressEvent = Callable[[Body, int], Event]
"""Makes an event of what a call has to tell: of its item, and of the index of that."""


class Toolbox(Protocol):
    """The hosted tools of one run. Names are those that the upstream knows the tools by."""

    @property
    def concurrency(self) -> int:
        """How many calls may be under way at once."""
        ...

    def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """What comes before the first turn, again after a run was taken over: items that stand first, calls that were
        approved of. The items begin at `state.next_output_index`, which the loop advances with each `ToolsPrepared`."""
        ...

    def functions(self) -> tuple[FunctionTool, ...]:
        """What the next turn is offered beside the client's tools; asked before every turn."""
        ...

    def kind(self, name: str) -> str | None:
        """The kind of the hosted tool of this name; None: it is none of ours."""
        ...

    def may_repeat(self, name: str) -> bool:
        """Whether a call that may already have taken effect can be made again."""
        ...

    def limits(self, name: str) -> ToolLimits:
        """What a call of this tool may take."""
        ...

    def decide(self, call: Call) -> CallDecision:
        """Whether a call is made; asked once, when its turn is over."""
        ...

    def open_item(self, call: Call) -> Body:
        """The item of a call as it opens: with a fresh id, and zero values."""
        ...

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The events that follow `output_item.added`, before there is a result."""
        ...

    async def call(self, call: Call) -> ToolResult:
        """Make the call, whose arguments are a JSON object. Only bugs raise."""
        ...

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """How the item that was opened as `body` ends. The result may be the loop's own: arguments that are no JSON
        object, a call that took too long."""
        ...

    async def close(self) -> None:
        """The run is over, or goes on elsewhere: let go of connections."""
        ...


@runtime_checkable
class ProgressReporter(Protocol):
    """A toolbox whose calls have something to tell before they are over."""

    def report_progress_to(self, tell: Callable[[str, ProgressEvent], None]) -> None:
        """Tell it from now on, by the id of the call. Who is not asked says nothing."""
        ...


class NoTools:
    """A run without hosted tools: every call goes to the client."""

    concurrency = 1

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        return ()

    def kind(self, name: str) -> str | None:
        return None

    def may_repeat(self, name: str) -> bool:
        return False

    def limits(self, name: str) -> ToolLimits:
        return _LIMITS

    def decide(self, call: Call) -> CallDecision:
        return Refuse(f"There is no tool {call.name!r}.")

    def open_item(self, call: Call) -> Body:
        raise _none(call.name)

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        raise _none(call.name)

    async def call(self, call: Call) -> ToolResult:
        raise _none(call.name)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        raise _none(call.name)

    async def close(self) -> None:
        return


def _none(name: str) -> LookupError:
    return LookupError(f"No hosted tool is called {name!r}.")
