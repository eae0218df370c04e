"""What tests of MCP ask, and what they pick out of answers."""

from typing import Any

from tests.support.chunks import chunk, usage
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Answer, stream

Body = dict[str, Any]


def tool(running: McpServer, label: str = "box", **fields: Any) -> Body:
    """The server in a request; its tools run without approval unless `fields` say otherwise."""
    return {"type": "mcp", "server_label": label, "server_url": running.url, "require_approval": "never", **fields}


def asking(running: McpServer, **fields: Any) -> Body:
    """The server in a request that wants approval for everything."""
    return tool(running, require_approval="always", **fields)


def calling(*calls: tuple[str, str]) -> Answer:
    """An answer that calls these functions, each with an id of its own."""
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
    """The items of this type in the output."""
    return [item for item in response["output"] if item["type"] == kind]


def word(request: Body, *, approve: bool, **fields: Any) -> Body:
    """The client's answer to a request for approval."""
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}
