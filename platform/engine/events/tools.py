"""Events of hosted tool calls, MCP servers and compactions."""

from dataclasses import dataclass
from typing import Any, Literal

from engine.events.base import ItemEvent


@dataclass(slots=True)
class WebSearchCallInProgress(ItemEvent):
    """A web search starts."""

    type: Literal["response.web_search_call.in_progress"] = "response.web_search_call.in_progress"


@dataclass(slots=True)
class WebSearchCallSearching(ItemEvent):
    """The web is being searched."""

    type: Literal["response.web_search_call.searching"] = "response.web_search_call.searching"


@dataclass(slots=True)
class WebSearchCallCompleted(ItemEvent):
    """The search has its results."""

    type: Literal["response.web_search_call.completed"] = "response.web_search_call.completed"


@dataclass(slots=True)
class FileSearchCallInProgress(ItemEvent):
    """A file search starts."""

    type: Literal["response.file_search_call.in_progress"] = "response.file_search_call.in_progress"


@dataclass(slots=True)
class FileSearchCallSearching(ItemEvent):
    """The files are being searched."""

    type: Literal["response.file_search_call.searching"] = "response.file_search_call.searching"


@dataclass(slots=True)
class FileSearchCallCompleted(ItemEvent):
    """The search has its results."""

    type: Literal["response.file_search_call.completed"] = "response.file_search_call.completed"


@dataclass(slots=True)
class CodeInterpreterCallInProgress(ItemEvent):
    """A code interpreter call starts."""

    type: Literal["response.code_interpreter_call.in_progress"] = "response.code_interpreter_call.in_progress"


@dataclass(slots=True)
class CodeInterpreterCallInterpreting(ItemEvent):
    """The code is running."""

    type: Literal["response.code_interpreter_call.interpreting"] = "response.code_interpreter_call.interpreting"


@dataclass(slots=True)
class CodeInterpreterCallCompleted(ItemEvent):
    """The code has finished."""

    type: Literal["response.code_interpreter_call.completed"] = "response.code_interpreter_call.completed"


@dataclass(slots=True)
class CodeInterpreterCallCodeDelta(ItemEvent):
    """Next piece of the code."""

    delta: str
    type: Literal["response.code_interpreter_call_code.delta"] = "response.code_interpreter_call_code.delta"


@dataclass(slots=True)
class CodeInterpreterCallCodeDone(ItemEvent):
    """Complete code."""

    code: str
    type: Literal["response.code_interpreter_call_code.done"] = "response.code_interpreter_call_code.done"


@dataclass(slots=True)
class ImageGenerationCallInProgress(ItemEvent):
    """An image generation call starts."""

    type: Literal["response.image_generation_call.in_progress"] = "response.image_generation_call.in_progress"


@dataclass(slots=True)
class ImageGenerationCallGenerating(ItemEvent):
    """The image is being generated."""

    type: Literal["response.image_generation_call.generating"] = "response.image_generation_call.generating"


@dataclass(slots=True)
class ImageGenerationCallCompleted(ItemEvent):
    """The image is complete."""

    type: Literal["response.image_generation_call.completed"] = "response.image_generation_call.completed"


@dataclass(slots=True)
class ImageGenerationCallPartialImage(ItemEvent):
    """Partial image."""

    partial_image_index: int
    partial_image_b64: str
    background: str | None = None
    output_format: str | None = None
    quality: str | None = None
    size: str | None = None
    type: Literal["response.image_generation_call.partial_image"] = "response.image_generation_call.partial_image"


@dataclass(slots=True)
class CompactionCompacting(ItemEvent):
    """The conversation is being compacted."""

    type: Literal["response.compaction.compacting"] = "response.compaction.compacting"


@dataclass(slots=True)
class ShellCallOutputContentDelta(ItemEvent):
    """Next piece of a shell command's output."""

    command_index: int
    delta: dict[str, str]
    type: Literal["response.shell_call_output_content.delta"] = "response.shell_call_output_content.delta"


@dataclass(slots=True)
class ShellCallOutputContentDone(ItemEvent):
    """Complete output of a shell command, and its outcome."""

    command_index: int
    output: list[dict[str, Any]]
    type: Literal["response.shell_call_output_content.done"] = "response.shell_call_output_content.done"


@dataclass(slots=True)
class McpListToolsInProgress(ItemEvent):
    """The server is asked for its tools."""

    type: Literal["response.mcp_list_tools.in_progress"] = "response.mcp_list_tools.in_progress"


@dataclass(slots=True)
class McpListToolsCompleted(ItemEvent):
    """The server returned its tools."""

    type: Literal["response.mcp_list_tools.completed"] = "response.mcp_list_tools.completed"


@dataclass(slots=True)
class McpListToolsFailed(ItemEvent):
    """The server did not return its tools; the item contains the reason."""

    type: Literal["response.mcp_list_tools.failed"] = "response.mcp_list_tools.failed"


@dataclass(slots=True)
class McpCallInProgress(ItemEvent):
    """A tool of the server is called."""

    type: Literal["response.mcp_call.in_progress"] = "response.mcp_call.in_progress"


@dataclass(slots=True)
class McpCallArgumentsDelta(ItemEvent):
    """Next piece of a call's arguments."""

    delta: str
    type: Literal["response.mcp_call_arguments.delta"] = "response.mcp_call_arguments.delta"


@dataclass(slots=True)
class McpCallArgumentsDone(ItemEvent):
    """Complete arguments of a call."""

    arguments: str
    type: Literal["response.mcp_call_arguments.done"] = "response.mcp_call_arguments.done"


@dataclass(slots=True)
class McpCallCompleted(ItemEvent):
    """The tool returned."""

    type: Literal["response.mcp_call.completed"] = "response.mcp_call.completed"


@dataclass(slots=True)
class McpCallFailed(ItemEvent):
    """The tool or its server failed; the item contains the error."""

    type: Literal["response.mcp_call.failed"] = "response.mcp_call.failed"


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
