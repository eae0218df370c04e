"""The `tool_choice` parameter: the tool that the model must or may call."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import InvalidValue
from kernel.validation import TAG
from responses.schema.mcp import McpChoice, McpToolParam
from responses.schema.tools import CustomToolParam, FunctionToolParam, NamespaceToolParam


class FunctionChoice(Wire):
    """Forces the model to call a specific function."""

    type: Literal["function"]
    name: str


class CustomChoice(Wire):
    """Forces the model to call a specific custom tool."""

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
    """Forces the model to call a built-in tool of this type."""

    type: Kind


def _one_tag(choice: Any) -> str | None:
    tag = by_type(choice)
    # All other types are built-in tools, which have no name and share one schema.
    return tag if tag in {None, f"{TAG}function", f"{TAG}custom", f"{TAG}mcp", f"{TAG}allowed_tools"} else f"{TAG}kind"


OneTool = Annotated[
    Annotated[FunctionChoice, Tag(f"{TAG}function")]
    | Annotated[CustomChoice, Tag(f"{TAG}custom")]
    | Annotated[McpChoice, Tag(f"{TAG}mcp")]
    | Annotated[KindChoice, Tag(f"{TAG}kind")],
    Discriminator(_one_tag),
]


class AllowedTools(Wire):
    """Constrains the tools available to the model to a subset of `tools`."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[OneTool], Field(min_length=1, max_length=128)]


def _choice_tag(choice: Any) -> str | None:
    # A string is a mode; objects name tools.
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
    """Raise InvalidValue if the choice names a tool that is not in `tools`, or an ambiguous one."""
    # A model without tools could never satisfy this choice.
    if choice == "required" and not tools:
        raise InvalidValue("Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return
    available = [label for tool in tools for label in _labels(tool)]
    for one in choice.tools if isinstance(choice, AllowedTools) else [choice]:
        label = label_of(one.type, one.server_label if isinstance(one, McpChoice) else getattr(one, "name", None))
        if label not in available:
            message = f"Tool choice '{label[1] or one.type}' not found in 'tools' parameter."
            raise InvalidValue(message, param="tool_choice")
        # A name may occur in several namespaces. An allowed name then allows all of them, but a forced call needs one.
        if label[0] != "mcp" and available.count(label) > 1 and one is choice:
            message = f"Tool choice '{label[1]}' is ambiguous: more than one namespace has a tool with this name."
            raise InvalidValue(message, param="tool_choice")


def label_of(kind: str, name: str | None = None) -> tuple[str, str]:
    """Return what a choice identifies a tool by: its type, and its name or the label of its server."""
    # The computer tool has several types, which clients mix.
    return ("computer" if kind.startswith("computer") else kind), name or ""


def _labels(tool: Any) -> list[tuple[str, str]]:
    if isinstance(tool, NamespaceToolParam):
        return [label for inner in tool.tools for label in _labels(inner)]
    if isinstance(tool, McpToolParam):
        return [label_of(tool.type, tool.server_label)]
    # Built-in tools are identified by their type alone.
    named = isinstance(tool, FunctionToolParam | CustomToolParam)
    return [label_of(tool.type, tool.name if named else None)]
