"""Events of hosted tool calls, MCP servers and compactions."""

from typing import Any

from engine.events.base import ItemEvent, event_type


@event_type("response.web_search_call.in_progress")
class WebSearchCallInProgress(ItemEvent):
    """A web search starts."""


@event_type("response.web_search_call.searching")
class WebSearchCallSearching(ItemEvent):
    """The web is being searched."""


@event_type("response.web_search_call.completed")
class WebSearchCallCompleted(ItemEvent):
    """The search has its results."""


@event_type("response.file_search_call.in_progress")
class FileSearchCallInProgress(ItemEvent):
    """A file search starts."""


@event_type("response.file_search_call.searching")
class FileSearchCallSearching(ItemEvent):
    """The files are being searched."""


@event_type("response.file_search_call.completed")
class FileSearchCallCompleted(ItemEvent):
    """The search has its results."""


@event_type("response.code_interpreter_call.in_progress")
class CodeInterpreterCallInProgress(ItemEvent):
    """A code interpreter call starts."""


@event_type("response.code_interpreter_call.interpreting")
class CodeInterpreterCallInterpreting(ItemEvent):
    """The code is running."""


@event_type("response.code_interpreter_call.completed")
class CodeInterpreterCallCompleted(ItemEvent):
    """The code has finished."""


@event_type("response.code_interpreter_call_code.delta")
class CodeInterpreterCallCodeDelta(ItemEvent):
    """Next piece of the code."""

    delta: str


@event_type("response.code_interpreter_call_code.done")
class CodeInterpreterCallCodeDone(ItemEvent):
    """Complete code."""

    code: str


@event_type("response.image_generation_call.in_progress")
class ImageGenerationCallInProgress(ItemEvent):
    """An image generation call starts."""


@event_type("response.image_generation_call.generating")
class ImageGenerationCallGenerating(ItemEvent):
    """The image is being generated."""


@event_type("response.image_generation_call.completed")
class ImageGenerationCallCompleted(ItemEvent):
    """The image is complete."""


@event_type("response.image_generation_call.partial_image")
class ImageGenerationCallPartialImage(ItemEvent):
    """Partial image."""

    partial_image_index: int
    partial_image_b64: str
    background: str | None = None
    output_format: str | None = None
    quality: str | None = None
    size: str | None = None


@event_type("response.compaction.compacting")
class CompactionCompacting(ItemEvent):
    """The conversation is being compacted."""


@event_type("response.shell_call_output_content.delta")
class ShellCallOutputContentDelta(ItemEvent):
    """Next piece of a shell command's output."""

    command_index: int
    delta: dict[str, str]


@event_type("response.shell_call_output_content.done")
class ShellCallOutputContentDone(ItemEvent):
    """Complete output of a shell command, and its outcome."""

    command_index: int
    output: list[dict[str, Any]]


@event_type("response.mcp_list_tools.in_progress")
class McpListToolsInProgress(ItemEvent):
    """The server is asked for its tools."""


@event_type("response.mcp_list_tools.completed")
class McpListToolsCompleted(ItemEvent):
    """The server returned its tools."""


@event_type("response.mcp_list_tools.failed")
class McpListToolsFailed(ItemEvent):
    """The server did not return its tools; the item contains the reason."""


@event_type("response.mcp_call.in_progress")
class McpCallInProgress(ItemEvent):
    """A tool of the server is called."""


@event_type("response.mcp_call_arguments.delta")
class McpCallArgumentsDelta(ItemEvent):
    """Next piece of a call's arguments."""

    delta: str


@event_type("response.mcp_call_arguments.done")
class McpCallArgumentsDone(ItemEvent):
    """Complete arguments of a call."""

    arguments: str


@event_type("response.mcp_call.completed")
class McpCallCompleted(ItemEvent):
    """The tool returned."""


@event_type("response.mcp_call.failed")
class McpCallFailed(ItemEvent):
    """The tool or its server failed; the item contains the error."""


HostedToolEvent = (
    ShellCallOutputContentDelta
    | ShellCallOutputContentDone
    | WebSearchCallInProgress
    | WebSearchCallSearching
    | WebSearchCallCompleted
    | FileSearchCallInProgress
    | FileSearchCallSearching
    | FileSearchCallCompleted
    | CodeInterpreterCallInProgress
    | CodeInterpreterCallInterpreting
    | CodeInterpreterCallCompleted
    | ImageGenerationCallInProgress
    | ImageGenerationCallGenerating
    | ImageGenerationCallPartialImage
    | ImageGenerationCallCompleted
    | CompactionCompacting
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
)
