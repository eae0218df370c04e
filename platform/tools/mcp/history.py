"""Calls of MCP tools, and of other tools whose items are MCP calls, as the model reads them in later turns."""

from typing import Any

import orjson

from conversations.items import McpApprovalRequest, McpCall, McpToolExecutionError
from engine.calls.client_tools import upstream_name
from providers.hosted_calls import PastCall


def past_call(item: McpCall | McpApprovalRequest) -> PastCall:
    """Return the call of an item."""
    output = None if isinstance(item, McpApprovalRequest) else item.output or _error(item)
    name = upstream_name(item.server_label, item.name)
    return PastCall(id=item.id or "mcp", name=name, arguments=item.arguments or "{}", output=output)


def _error(item: McpCall) -> str:
    match item.error:
        case McpToolExecutionError(content=content):
            return _marked(_text(content))
        case None:
            return ""
        case error:
            return _marked(error.message)


def _text(content: Any) -> str:
    """Return the text of an MCP result, or JSON of a content without text."""
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if texts and len(texts) == len(parts):
        return "\n".join(texts)
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _marked(message: str) -> str:
    # Many servers already begin their messages with "error".
    return message if message[:5].lower() == "error" else f"error: {message}"
