"""The events by which the calls of hosted tools, and compactions, say how far they are."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(slots=True)
class WebSearchCallInProgress:
    """A search of the web begins."""

    item_id: str
    output_index: int
    type: Literal["response.web_search_call.in_progress"] = "response.web_search_call.in_progress"


@dataclass(slots=True)
class WebSearchCallSearching:
    """The web is searched."""

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
    """A search of files begins."""

    item_id: str
    output_index: int
    type: Literal["response.file_search_call.in_progress"] = "response.file_search_call.in_progress"


@dataclass(slots=True)
class FileSearchCallSearching:
    """The files are searched."""

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
    """A program is being written."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.in_progress"] = "response.code_interpreter_call.in_progress"


@dataclass(slots=True)
class CodeInterpreterCallInterpreting:
    """The program runs."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.interpreting"] = "response.code_interpreter_call.interpreting"


@dataclass(slots=True)
class CodeInterpreterCallCompleted:
    """The program has ended."""

    item_id: str
    output_index: int
    type: Literal["response.code_interpreter_call.completed"] = "response.code_interpreter_call.completed"


@dataclass(slots=True)
class CodeInterpreterCallCodeDelta:
    """Some more of a program."""

    item_id: str
    output_index: int
    delta: str
    type: Literal["response.code_interpreter_call_code.delta"] = "response.code_interpreter_call_code.delta"


@dataclass(slots=True)
class CodeInterpreterCallCodeDone:
    """The whole program."""

    item_id: str
    output_index: int
    code: str
    type: Literal["response.code_interpreter_call_code.done"] = "response.code_interpreter_call_code.done"


@dataclass(slots=True)
class ImageGenerationCallInProgress:
    """A picture is asked for."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.in_progress"] = "response.image_generation_call.in_progress"


@dataclass(slots=True)
class ImageGenerationCallGenerating:
    """The picture is being drawn."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.generating"] = "response.image_generation_call.generating"


@dataclass(slots=True)
class ImageGenerationCallCompleted:
    """The picture is there."""

    item_id: str
    output_index: int
    type: Literal["response.image_generation_call.completed"] = "response.image_generation_call.completed"


@dataclass(slots=True)
class ImageGenerationCallPartialImage:
    """The picture as far as it is drawn."""

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
    """What was said is being made short."""

    item_id: str
    output_index: int
    type: Literal["response.compaction.compacting"] = "response.compaction.compacting"


@dataclass(slots=True)
class ShellCallOutputContentDelta:
    """What a command of a shell has written."""

    item_id: str
    output_index: int
    command_index: int
    delta: dict[str, str]
    type: Literal["response.shell_call_output_content.delta"] = "response.shell_call_output_content.delta"


@dataclass(slots=True)
class ShellCallOutputContentDone:
    """All that a command of a shell has written, and how it ended."""

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
