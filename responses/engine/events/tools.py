"""Progress events of hosted tool calls and compactions."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(slots=True)
class WebSearchCallInProgress:
    """A web search starts."""

    item_id: str
    output_index: int
    type: Literal["response.web_search_call.in_progress"] = "response.web_search_call.in_progress"


@dataclass(slots=True)
class WebSearchCallSearching:
    """The web is being searched."""

    item_id: str
    output_index: int
    type: Literal["response.web_search_call.searching"] = "response.web_search_call.searching"


@dataclass(slots=True)
class WebSearchCallCompleted:
    """The search has its results."""

    item_id: str
    output_index: int
    type: Literal["response.web_search_call.completed"] = "response.web_search_call.completed"


@dataclass(slots=True)
class FileSearchCallInProgress:
    """A file search starts."""

    item_id: str
    output_index: int
    type: Literal["response.file_search_call.in_progress"] = "response.file_search_call.in_progress"


@dataclass(slots=True)
class FileSearchCallSearching:
    """The files are being searched."""

    item_id: str
    output_index: int
    type: Literal["response.file_search_call.searching"] = "response.file_search_call.searching"


@dataclass(slots=True)
class FileSearchCallCompleted:
    """The search has its results."""

    item_id: str
    output_index: int
    type: Literal["response.file_search_call.completed"] = "response.file_search_call.completed"


@dataclass(slots=True)
class CodeInterpreterCallInProgress:
    """A code interpreter call starts."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.in_progress"] = "response.code_interpreter_call.in_progress"


@dataclass(slots=True)
class CodeInterpreterCallInterpreting:
    """The code is running."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.interpreting"] = "response.code_interpreter_call.interpreting"


@dataclass(slots=True)
class CodeInterpreterCallCompleted:
    """The code has finished."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.completed"] = "response.code_interpreter_call.completed"


@dataclass(slots=True)
class CodeInterpreterCallCodeDelta:
    """Next piece of the code."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.code_interpreter_call_code.delta"] = "response.code_interpreter_call_code.delta"


@dataclass(slots=True)
class CodeInterpreterCallCodeDone:
    """Complete code."""

    item_id: str
    output_index: int
    code: str
    type: Literal["response.code_interpreter_call_code.done"] = "response.code_interpreter_call_code.done"


@dataclass(slots=True)
class ImageGenerationCallInProgress:
    """An image generation call starts."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.in_progress"] = "response.image_generation_call.in_progress"


@dataclass(slots=True)
class ImageGenerationCallGenerating:
    """The image is being generated."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.generating"] = "response.image_generation_call.generating"


@dataclass(slots=True)
class ImageGenerationCallCompleted:
    """The image is complete."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.completed"] = "response.image_generation_call.completed"


@dataclass(slots=True)
class ImageGenerationCallPartialImage:
    """Partial image."""

    item_id: str
    output_index: int
    partial_image_index: int
    partial_image_b64: str
    background: str | None = None
    output_format: str | None = None
    quality: str | None = None
    size: str | None = None
    type: Literal["response.image_generation_call.partial_image"] = "response.image_generation_call.partial_image"


@dataclass(slots=True)
class CompactionCompacting:
    """The conversation is being compacted."""

    item_id: str
    output_index: int
    type: Literal["response.compaction.compacting"] = "response.compaction.compacting"


@dataclass(slots=True)
class ShellCallOutputContentDelta:
    """Next piece of a shell command's output."""

    item_id: str
    output_index: int
    command_index: int
    delta: dict[str, str]
    type: Literal["response.shell_call_output_content.delta"] = "response.shell_call_output_content.delta"


@dataclass(slots=True)
class ShellCallOutputContentDone:
    """Complete output of a shell command, and its outcome."""

    item_id: str
    output_index: int
    command_index: int
    output: list[dict[str, Any]]
    type: Literal["response.shell_call_output_content.done"] = "response.shell_call_output_content.done"


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
)
