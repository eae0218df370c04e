"""Converts items of hosted calls to function calls with outputs, for upstreams.

An item of a hosted call contains its result, so it becomes both a call and an output. A search without results in its
item (the client may have omitted them, or an upstream has searched) is skipped: a model would take it for a search that
found nothing.
"""

from typing import Any

import orjson

from conversations.items import (
    CodeInterpreterCall,
    CodeLogs,
    FileSearchCall,
    FindInPage,
    ImageGenerationCall,
    McpApprovalRequest,
    McpCall,
    McpToolExecutionError,
    OpenPage,
    StoredItem,
    WebSearch,
    WebSearchCall,
)
from responses.engine.calls.client_tools import upstream_name
from responses.engine.citation_markers import mark


def called(item: StoredItem) -> tuple[str, str, str] | None:
    """Return id, function and arguments of a hosted call or approval request; None for any other item."""
    match item:
        case McpCall() | McpApprovalRequest():
            return item.id or "mcp", upstream_name(item.server_label, item.name), item.arguments or "{}"
        case FileSearchCall(results=list()):
            return item.id or "file_search", "file_search", _json({"queries": item.queries})
        case WebSearchCall(results=list()):
            return item.id or "web_search", *_step(item.action)
        case CodeInterpreterCall():
            return item.id or "code_interpreter", "code_interpreter", _json({"code": item.code or ""})
        case ImageGenerationCall():
            return item.id or "image_generation", "image_generation", _json({"prompt": item.revised_prompt or ""})
    return None


def answered(item: StoredItem) -> tuple[str, str] | None:
    """Return id and output of a hosted call; None for any other item."""
    match item:
        case McpCall():
            return item.id or "mcp", item.output or _mcp_error(item)
        case FileSearchCall(results=list()):
            return item.id or "file_search", _passages(item)
        case WebSearchCall(results=list()):
            return item.id or "web_search", _pages(item)
        case CodeInterpreterCall():
            return item.id or "code_interpreter", _written(item)
        case ImageGenerationCall():
            return item.id or "image_generation", _generated_image(item)
    return None


def _mcp_error(item: McpCall) -> str:
    match item.error:
        case McpToolExecutionError(content=content):
            return f"error: {_json(content)}"
        case None:
            return ""
        case error:
            return f"error: {error.message}"


def _step(action: WebSearch | OpenPage | FindInPage) -> tuple[str, str]:
    match action:
        case WebSearch():
            return "web_search", _json({"queries": action.queries or [action.query or ""]})
        case OpenPage():
            return "open_page", _json({"url": action.url})
        case FindInPage():
            return "find_in_page", _json({"url": action.url, "pattern": action.pattern})


def _passages(item: FileSearchCall) -> str:
    if item.status == "failed":
        return "\n".join(["error: the search failed", *(one.text or "" for one in item.results or ())])
    if not item.results:
        return "Nothing was found."
    return "\n\n".join(
        f"{mark(item.id or '', number)} {one.filename or one.file_id}\n{one.text or ''}"
        for number, one in enumerate(item.results, start=1)
    )


def _pages(item: WebSearchCall) -> str:
    if item.status == "failed":
        return "\n".join(["error: the request failed", *(one.text or "" for one in item.results or ())])
    if not item.results:
        return "Nothing was found."
    return "\n\n".join(
        f"{mark(item.id or '', number)} {one.title or ''}\n{one.url}\n{one.text or ''}"
        for number, one in enumerate(item.results, start=1)
    )


def _written(item: CodeInterpreterCall) -> str:
    if item.outputs is None:
        # Clients only get outputs that they ask for with `include`, and may send the item back without them.
        return "The outputs are not available."
    logs = [output.logs for output in item.outputs if isinstance(output, CodeLogs)]
    made = [file.path for file in item.files or () if not file.gone]
    files = [f"Files written: {', '.join(made)}"] if made else []
    return "\n".join([*logs, *files]) or "(no output)"


def _generated_image(item: ImageGenerationCall) -> str:
    if item.result:
        return "The image was generated and shown to the user. It follows in the next message."
    return f"error: {item.error.message if item.error else 'no image was generated'}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
