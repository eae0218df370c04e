"""`tool_choice`: which tool the model has to call, or may. Source: section 3.3 of the API surface specification."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import InvalidValue
from kernel.validation import TAG
from responses.schema.mcp import McpChoice, McpToolParam
from responses.schema.tools import CustomToolParam, FunctionToolParam, NamespaceToolParam


class FunctionChoice(Wire):
    """Forces one function."""

    type: Literal["function"]
    name: str


class CustomChoice(Wire):
    """Forces one custom tool."""

    type: Literal["custom"]
    name: str


Kind = Literal[
    "apply_patch",
    "shell",
    "local_shell",
    "computer",
    "computer_use",
    "computer_use_preview",
    "tool_search",
    "file_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
    "code_interpreter",
    "programmatic_tool_calling",
]


class KindChoice(Wire):
    """Forces the tool of a kind of which a request has one at most."""

    type: Kind


def _one_tag(choice: Any) -> str | None:
    tag = by_type(choice)
    return tag if tag in {None, f"{TAG}function", f"{TAG}custom", f"{TAG}mcp", f"{TAG}allowed_tools"} else f"{TAG}kind"


OneTool = Annotated[
    Annotated[FunctionChoice, Tag(f"{TAG}function")]
    | Annotated[CustomChoice, Tag(f"{TAG}custom")]
    | Annotated[McpChoice, Tag(f"{TAG}mcp")]
    | Annotated[KindChoice, Tag(f"{TAG}kind")],
    Discriminator(_one_tag),
]


class AllowedTools(Wire):
    """Narrows the choice to some of the tools, without changing the list of tools itself."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[OneTool], Field(min_length=1, max_length=128)]


def _choice_tag(choice: Any) -> str | None:
    return f"{TAG}mode" if isinstance(choice, str) else _one_tag(choice)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[FunctionChoice, Tag(f"{TAG}function")]
    | Annotated[CustomChoice, Tag(f"{TAG}custom")]
    | Annotated[McpChoice, Tag(f"{TAG}mcp")]
    | Annotated[KindChoice, Tag(f"{TAG}kind")]
    | Annotated[AllowedTools, Tag(f"{TAG}allowed_tools")],
    Discriminator(_choice_tag),
]


def check_choice(choice: ToolChoice | None, tools: Sequence[Any]) -> None:
    """A choice names tools that are there."""
    if choice == "required" and not tools:
        raise InvalidValue("Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return
    there = [label for tool in tools for label in _labels(tool)]
    for one in choice.tools if isinstance(choice, AllowedTools) else [choice]:
        label = label_of(one.type, one.server_label if isinstance(one, McpChoice) else getattr(one, "name", None))
        if label not in there:
            message = f"Tool choice '{label[1] or one.type}' not found in 'tools' parameter."
            raise InvalidValue(message, param="tool_choice")
        if label[0] != "mcp" and there.count(label) > 1 and one is choice:
            message = f"Tool choice '{label[1]}' is the name of a tool in more than one namespace."
            raise InvalidValue(message, param="tool_choice")


def label_of(kind: str, name: str | None = None) -> tuple[str, str]:
    """By what choices point at a tool: its kind, and the name where the kind has names; of a server, its label."""
    return ("computer" if kind.startswith("computer") else kind), name or ""


def _labels(tool: Any) -> list[tuple[str, str]]:
    """By what choices point at a tool, or at the tools in a namespace."""
    if isinstance(tool, NamespaceToolParam):
        return [label for inner in tool.tools for label in _labels(inner)]
    if isinstance(tool, McpToolParam):
        return [label_of(tool.type, tool.server_label)]
    named = isinstance(tool, FunctionToolParam | CustomToolParam)
    return [label_of(tool.type, tool.name if named else None)]
