"""Port to the hosted tools, which are implemented in `responses.tools`.

A hosted tool creates its own items (`mcp_call`, `web_search_call`, …). The next turn, and every later response, reads
the call and its output from that item alone.
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
"""Creates the event of some progress, given the item of the call and its output index.

A function, because a call may report progress before its item has an output index.
"""


class Toolbox(Protocol):
    """Hosted tools of one run. Tool names are the upstream's names."""

    @property
    def concurrency(self) -> int:
        """Maximum number of calls running at the same time."""
        ...

    def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Yield what precedes the first turn: items such as `mcp_list_tools`, and calls that the client approved.

        Called again when a run is resumed. Items start at `state.next_output_index`, which the loop advances with each
        `ToolsPrepared`.
        """
        ...

    def functions(self) -> tuple[FunctionTool, ...]:
        """Return the functions to offer in addition to the client's tools. Called before every turn."""
        ...

    def kind(self, name: str) -> str | None:
        """Return the kind of the hosted tool with this name; None if no hosted tool has it."""
        ...

    def may_repeat(self, name: str) -> bool:
        """Return True if a call that may already have taken effect can be repeated."""
        ...

    def limits(self, name: str) -> ToolLimits:
        """Return the limits of a call of this tool."""
        ...

    def decide(self, call: Call) -> CallDecision:
        """Decide whether a call is run. Called once per call, when its turn has ended."""
        ...

    def open_item(self, call: Call) -> Body:
        """Return the item of a call as in `output_item.added`: with a new id and empty values."""
        ...

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """Return the events that follow `output_item.added` before there is a result."""
        ...

    async def call(self, call: Call) -> ToolResult:
        """Run the call, whose arguments are a JSON object. Failures are results; only bugs raise."""
        ...

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """Return the final item of a call whose item was opened as `body`.

        The result may be the loop's own: for arguments that are not a JSON object, or after a timeout.
        """
        ...

    async def close(self) -> None:
        """Close connections: the run ended or continues in another process."""
        ...


@runtime_checkable
class ProgressReporter(Protocol):
    """Toolbox whose calls report progress while they run, e.g. partial images."""

    def report_progress_to(self, report: Callable[[str, ProgressEvent], None]) -> None:
        """Call `report` with the call id and the event for all progress from now on. Without it nothing is reported."""
        ...


class NoTools:
    """Toolbox of a run without hosted tools: every call goes to the client."""

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
        return Refuse(f"There is no tool named {call.name!r}.")

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
    return LookupError(f"There is no hosted tool named {name!r}.")
