"""Calls of MCP tools, and of other tools whose items are MCP calls, as the model reads them in later turns."""

import orjson

from conversations.items import McpApprovalRequest, McpCall, McpToolExecutionError
from responses.engine.calls.client_tools import upstream_name
from responses.providers.hosted_calls import PastCall


def past_call(item: McpCall | McpApprovalRequest) -> PastCall:
    """Return the call of an item."""
    output = None if isinstance(item, McpApprovalRequest) else item.output or _error(item)
    name = upstream_name(item.server_label, item.name)
    return PastCall(id=item.id or "mcp", name=name, arguments=item.arguments or "{}", output=output)


def _error(item: McpCall) -> str:
    match item.error:
        case McpToolExecutionError(content=content):
            return f"error: {orjson.dumps(content).decode()}"
        case None:
            return ""
        case error:
            return f"error: {error.message}"
