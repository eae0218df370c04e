"""Base class of hosted tools, and the toolbox that finds a run's tool by function name.

The tools themselves are in `responses.tools`. Later turns and responses restore a call and its output only from the
item that the tool creates.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from core.ids import new_id
from engine import spans
from engine.calls.outcomes import CallDecision, Execute, InputRequired, Refuse, ToolLimits, ToolResult
from engine.events.types import Body, Event
from engine.state import RunContext, RunState
from engine.steps import Emitted, ToolsPrepared
from engine.turn import Call, CallForm, FunctionTool

ProgressEvent = Callable[[Body, int], Event]
"""Function that creates a progress event from the call's item and its output index.

A function is needed, because a call may report progress before its item has an output index.
"""


class HostedTool(ABC):
    """A hosted tool in one run, with one function or several related functions.

    Subclasses override the defaults. The default item is an `mcp_call`, because OpenAI's client libraries accept it for
    tools of any name. Its `server_label` is the kind of the tool, and the functions are then named `<kind>__<name>`.
    """

    kind: str
    """Kind of the calls in the tool call's row."""
    names: Sequence[str] = ()
    """Names of the functions, as the upstream sees them."""
    concurrency: int = 4
    """Maximum number of calls running at the same time."""
    report: Callable[[str, ProgressEvent], None] | None = None
    """Function that reports progress such as partial images, from the call id and the event. None: not reported."""

    async def start(self, context: RunContext, state: RunState) -> None:  # noqa: B027 - optional
        """Read the context of the run before its first turn; called again when the run is resumed."""

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Yield the steps before the first turn: items such as `mcp_list_tools`, and calls that the client approved.

        Called again when a run is resumed. Items start at `state.next_output_index`, which the loop advances with each
        `ToolsPrepared`.
        """
        with spans.span(spans.Activity.PREPARE, self.kind):
            await self.start(context, state)
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    @abstractmethod
    def functions(self) -> tuple[FunctionTool, ...]:
        """Return the functions to offer in addition to the client's tools. Called before every turn."""

    def owns(self, name: str) -> bool:
        """Return True if the tool has a function of this name."""
        return name in self.names

    def may_repeat(self, name: str) -> bool:
        """Return True if a call that may already have taken effect can be repeated."""
        return False

    def price_key(self, name: str) -> str | None:
        """Return the price key of a function's calls; None if they cost nothing."""
        return None

    def limits(self) -> ToolLimits:
        """Return the limits of a call."""
        return ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """Decide whether a call is run. Called once per call, when its turn has ended."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """Return the initial item of a call, with a new id, its whole input and no output."""
        return {
            "id": new_id("mcp"),
            "type": "mcp_call",
            "status": "in_progress",
            "server_label": self.kind,
            # Later turns read it as a call of the function `<label>__<name>`.
            "name": call.name.removeprefix(f"{self.kind}__"),
            "arguments": call.arguments,
            "approval_request_id": None,
            "output": None,
            "error": None,
        }

    @abstractmethod
    async def call(self, call: Call) -> ToolResult | InputRequired:
        """Run the call, whose arguments are a JSON object. Failures are results; only bugs raise."""

    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        """Return the final item of a call that was opened as `body`, and the items that follow it.

        After a timeout, or if the arguments are not a JSON object, the loop makes the result instead of the tool.
        """
        if result.error is None:
            return [{**body, "status": "completed", "output": result.output}]
        error = result.fields.get("error") or {"type": "mcp_tool_execution_error", "content": result.output}
        return [{**body, "status": "failed", "error": error}]

    async def close(self) -> None:  # noqa: B027 - optional
        """Close connections: the run ended or continues in another process."""


class CallBudget(Protocol):
    """Port to the budgets that hosted calls are charged to."""

    async def reserve_call(self, call: Call, price_key: str, *, waits: bool) -> Execute | Refuse | None:
        """Reserve the maximum cost of a call. Return None if reservations of calls in progress leave too little for it.

        With `waits`, wait for these calls instead.
        """
        ...


def _ignore(_: str) -> None:
    return


def _unobserved(_kind: str, _name: str, _call_id: str) -> AbstractContextManager[Callable[[str], None]]:
    return nullcontext(_ignore)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The hosted tools of one run; without any, every call goes to the client.

    `budget` limits the calls that cost something; None: no limit. `observe` takes the tool's kind, the function's name
    and the call's id, and returns a context manager for the call. Its value is a function that records the type of an
    error.
    """

    tools: Sequence[HostedTool] = ()
    budget: CallBudget | None = None
    observe: Callable[[str, str, str], AbstractContextManager[Callable[[str], None]]] = _unobserved

    @property
    def concurrency(self) -> int:
        """Maximum number of calls running at the same time."""
        # The loop needs one number for the whole run. A smaller limit would slow down tools that allow more.
        return max((tool.concurrency for tool in self.tools), default=1)

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Yield the preparation steps of one tool after the other, because their items must not be interleaved."""
        for tool in self.tools:
            async with aclosing(tool.prepare(context, state)) as steps:
                async for step in steps:
                    yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """Return the functions of all tools."""
        return tuple(function for tool in self.tools for function in tool.functions())

    def find(self, name: str) -> HostedTool | None:
        """Return the first tool that has a function of this name; None if there is none."""
        return next((tool for tool in self.tools if tool.owns(name)), None)

    def kind(self, name: str) -> str | None:
        """Return the kind of the tool that has a function of this name; None if there is none."""
        tool = self.find(name)
        return tool.kind if tool is not None else None

    def __getitem__(self, name: str) -> HostedTool:
        tool = self.find(name)
        if tool is None:
            raise LookupError(f"There is no hosted tool named {name!r}.")
        return tool

    async def close(self) -> None:
        """Close the connections of all tools."""
        for tool in self.tools:
            await tool.close()


def hosted_function(name: str, description: str, **properties: Any) -> FunctionTool:
    """Return a function whose parameters are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return FunctionTool(name=name, description=description, parameters=parameters, form=CallForm.HOSTED)
