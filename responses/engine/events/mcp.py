"""The events of MCP servers: listing their tools, and calling them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class McpListToolsInProgress:
    """A server is asked for its tools."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.in_progress"] = "response.mcp_list_tools.in_progress"


@dataclass(slots=True)
class McpListToolsCompleted:
    """The server has named its tools."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.completed"] = "response.mcp_list_tools.completed"


@dataclass(slots=True)
class McpListToolsFailed:
    """The server has not named its tools; the item says why."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_list_tools.failed"] = "response.mcp_list_tools.failed"


@dataclass(slots=True)
class McpCallInProgress:
    """A tool of a server is called."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_call.in_progress"] = "response.mcp_call.in_progress"


@dataclass(slots=True)
class McpCallArgumentsDelta:
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.mcp_call_arguments.delta"] = "response.mcp_call_arguments.delta"


@dataclass(slots=True)
class McpCallArgumentsDone:
    """All of a call's arguments."""

    item_id: str
    output_index: int
    arguments: str
    type: Literal["response.mcp_call_arguments.done"] = "response.mcp_call_arguments.done"


@dataclass(slots=True)
class McpCallCompleted:
    """The tool has answered."""

    item_id: str
    output_index: int
    type: Literal["response.mcp_call.completed"] = "response.mcp_call.completed"


@dataclass(slots=True)
class McpCallFailed:
    """The tool, or its server, has failed; the item says how."""

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
