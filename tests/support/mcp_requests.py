"""Requests with MCP tools, and their items in responses."""

from typing import Any

from tests.support.chunks import chunk, usage
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Answer, stream

Body = dict[str, Any]


def tool(running: McpServer, label: str = "box", **fields: Any) -> Body:
    """Return the MCP tool of a server, by default without approval."""
    return {"type": "mcp", "server_label": label, "server_url": running.url, "require_approval": "never", **fields}


def asking(running: McpServer, **fields: Any) -> Body:
    """Return the MCP tool of a server that requires approval for every call."""
    return tool(running, require_approval="always", **fields)


def calling(*calls: tuple[str, str]) -> Answer:
    """Return an answer with calls of these functions, with ids `call_<index>`."""
    return stream(
        chunk(role="assistant", content=None),
        *(chunk(tool_calls=[_call(index, name, given)]) for index, (name, given) in enumerate(calls)),
        chunk(finish="tool_calls"),
        usage(),
    )


def _call(index: int, name: str, arguments: str) -> Body:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


def of(response: Body, kind: str) -> list[Body]:
    """Return the output items of a type."""
    return [item for item in response["output"] if item["type"] == kind]


def word(request: Body, *, approve: bool, **fields: Any) -> Body:
    """Return the client's response to an approval request."""
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}
