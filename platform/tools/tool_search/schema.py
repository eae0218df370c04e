"""The `tool_search` tool of a request."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from core.errors import InvalidValue
from responses.schema.tools import MAX_TEXT, ToolParam, walk


class ToolSearchParam(ToolParam):
    """Tool search configuration: finds tools with deferred loading, on the server or by the client."""

    type: Literal["tool_search"]
    execution: Literal["server", "client"] | None = None
    description: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    parameters: dict[str, Any] | None = None

    @override
    def shown(self) -> dict[str, Any]:
        return {
            "type": "tool_search",
            "execution": self.execution or "server",
            "description": self.description,
            "parameters": self.parameters,
        }

    @override
    def check(self, tools: Sequence[ToolParam], *, param: str) -> None:
        if self.execution == "client":
            return
        if not any(getattr(tool, "defer_loading", None) for tool, _ in walk(tools, "")):
            raise InvalidValue("A 'tool_search' tool requires at least one tool with 'defer_loading'.", param=param)
        if self.parameters is not None:
            raise InvalidValue("'parameters' can only be set if 'execution' is 'client'.", param=f"{param}.parameters")
