"""The port to hosted tools: what the loop asks of them. The tools themselves stand in `responses.tools`."""

from dataclasses import dataclass
from typing import Protocol

from responses.engine.turns import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a hosted call gave. A failure is a result, too: the model reads `output` and may try otherwise."""

    output: str
    error: str | None = None


class Toolbox(Protocol):
    """The hosted tools of one run."""

    def kind(self, name: str) -> str | None:
        """The kind of the hosted tool of this name; None: the client runs it."""
        ...

    def may_repeat(self, name: str) -> bool:
        """Whether a call that may already have taken effect can be made again."""
        ...

    async def call(self, call: Call) -> ToolResult:
        """Make the call. Only bugs raise."""
        ...


class NoTools:
    """A run without hosted tools: every call goes to the client."""

    def kind(self, name: str) -> str | None:
        return None

    def may_repeat(self, name: str) -> bool:
        return False

    async def call(self, call: Call) -> ToolResult:
        message = f"No hosted tool is called {call.name!r}."
        raise LookupError(message)
