"""Results of MCP calls, as the model reads them and as the item shows them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from core.json.storable_json import without_nul
from engine.calls.outcomes import ToolResult
from tools.mcp.servers import RemoteServer
from tools.mcp.sessions import ServerFailed

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

# About 25,000 tokens; the result is part of every later turn.
MAX_CHARACTERS = 100_000
# Images are part of every later turn, too.
MAX_IMAGES = 8
MAX_IMAGE_CHARACTERS = 10 * 1024 * 1024
_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})


def from_result(result: "CallToolResult", server: RemoteServer) -> ToolResult:
    """Return the result of a call that reached the tool.

    The text mentions each image, because the model may be unable to see images.
    """
    structured = orjson.dumps(result.structured_content).decode() if result.structured_content is not None else ""
    text = truncate(server.redact("\n".join(map(_words, result.content)) or structured))
    if result.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        return ToolResult(output=text, error="mcp_tool_execution_error", fields={"error": error})
    return ToolResult(output=text, parts=_images(result.content))


def from_failure(failure: ServerFailed) -> ToolResult:
    """Return the result of a call that the server did not execute."""
    failure = ServerFailed(truncate(failure.message), code=failure.code, kind=failure.kind)
    return ToolResult(output=f"error: {failure.message}", error=failure.kind, fields={"error": failure.shown()})


def truncate(text: str) -> str:
    """Return the text without NUL, cut to MAX_CHARACTERS and marked as truncated if it was longer."""
    text = without_nul(text)
    if len(text) <= MAX_CHARACTERS:
        return text
    note = f"[Truncated: the output has {len(text)} characters; the first {MAX_CHARACTERS} are shown.]"
    return f"{text[:MAX_CHARACTERS]}\n{note}"


def _words(block: "ContentBlock") -> str:
    from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

    match block:
        case TextContent(text=text):
            return text
        case ImageContent() | AudioContent():
            # Four characters of base64 hold three bytes.
            size = len(block.data.rstrip("=")) * 3 // 4
            return f"[{block.type}: {block.mime_type}, {size} bytes]"
        case ResourceLink():
            return f"[{block.name}]({block.uri})"
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case EmbeddedResource(resource=resource):
            return f"[resource: {resource.uri}]"
    return f"[{block.type}]"


def _images(blocks: "Sequence[ContentBlock]") -> tuple[dict[str, Any], ...]:
    from mcp_types import ImageContent

    found = [block for block in blocks if isinstance(block, ImageContent)]
    usable = [image for image in found if image.mime_type in _IMAGES and len(image.data) <= MAX_IMAGE_CHARACTERS]
    return tuple(
        {"type": "input_image", "image_url": f"data:{image.mime_type};base64,{image.data}", "detail": "auto"}
        for image in usable[:MAX_IMAGES]
    )
