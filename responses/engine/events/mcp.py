"""Events of MCP servers: listing their tools and calling them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class McpListToolsInProgress:
    """The server is asked for its tools."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.in_progress"] = "response.mcp_list_tools.in_progress"


@dataclass(slots=True)
class McpListToolsCompleted:
    """The server returned its tools."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.completed"] = "response.mcp_list_tools.completed"


@dataclass(slots=True)
class McpListToolsFailed:
    """The server did not return its tools; the item contains the reason."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.failed"] = "response.mcp_list_tools.failed"


@dataclass(slots=True)
class McpCallInProgress:
    """A tool of the server is called."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_call.in_progress"] = "response.mcp_call.in_progress"


@dataclass(slots=True)
class McpCallArgumentsDelta:
    """Next piece of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.mcp_call_arguments.delta"] = "response.mcp_call_arguments.delta"


@dataclass(slots=True)
class McpCallArgumentsDone:
    """Complete arguments of a call."""

    item_id: str
    output_index: int
    arguments: str
    type: Literal["response.mcp_call_arguments.done"] = "response.mcp_call_arguments.done"


@dataclass(slots=True)
class McpCallCompleted:
    """The tool returned."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_call.completed"] = "response.mcp_call.completed"


@dataclass(slots=True)
class McpCallFailed:
    """The tool or its server failed; the item contains the error."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_call.failed"] = "response.mcp_call.failed"


McpEvent = (
    McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
)
