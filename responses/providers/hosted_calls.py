"""Calls that the server ran → the function that stands for each, and what it answered.

An item of such a call has its own result, so that later turns read both from it. A search whose results are not there
(a client may have left them out, an upstream may have searched) is not told of: a model would take it for a vain one.
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
    """Id, function and arguments of a call that the server ran or was to run; None for any other item."""
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
    """Id and answer of a call that the server ran; None for any other item."""
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
            return item.id or "image_generation", _drawn(item)
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
    """What a search in files found, each passage behind its mark."""
    if item.status == "failed":
        return "\n".join(["error: the search failed", *(one.text or "" for one in item.results or ())])
    if not item.results:
        return "Nothing was found."
    return "\n\n".join(
        f"{mark(item.id or '', number)} {one.filename or one.file_id}\n{one.text or ''}"
        for number, one in enumerate(item.results, start=1)
    )


def _pages(item: WebSearchCall) -> str:
    """What a step in the web brought, each page behind its mark."""
    if item.status == "failed":
        return "\n".join(["error: this did not work", *(one.text or "" for one in item.results or ())])
    if not item.results:
        return "Nothing was found."
    return "\n\n".join(
        f"{mark(item.id or '', number)} {one.title or ''}\n{one.url}\n{one.text or ''}"
        for number, one in enumerate(item.results, start=1)
    )


def _written(item: CodeInterpreterCall) -> str:
    """What a program wrote and made; a client may have left it out."""
    if item.outputs is None:
        return "The outputs were not kept."
    logs = [output.logs for output in item.outputs if isinstance(output, CodeLogs)]
    made = [file.path for file in item.files or () if not file.gone]
    files = [f"Files written: {', '.join(made)}"] if made else []
    return "\n".join([*logs, *files]) or "(no output)"


def _drawn(item: ImageGenerationCall) -> str:
    if item.result:
        return "The image was made, and shown to the user. It is shown next."
    return f"error: {item.error.message if item.error else 'there is no image'}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
