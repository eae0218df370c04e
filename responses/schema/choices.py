"""The `tool_choice` parameter: the tool that the model must or may call."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from core.errors import InvalidValue
from core.http.wire import TAG, Wire, by_type
from responses.schema.tools import TOOLS, Label, ToolParam, label_of


class FunctionChoice(Wire):
    """Forces the model to call a specific function."""

    type: Literal["function"]
    name: str


class CustomChoice(Wire):
    """Forces the model to call a specific custom tool."""

    type: Literal["custom"]
    name: str


class _Kind:
    """Annotation for the type of a tool without a name. It is read whenever the schema of the model is built."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = [kind for kind, tool in TOOLS.items() if not tool.has_name]
        # OpenAI's API also has these types. A request without such a tool is rejected later.
        return core_schema.literal_schema([*kinds, "computer_use", "programmatic_tool_calling"])


class KindChoice(Wire):
    """Forces the model to call a built-in tool of this type."""

    type: Annotated[str, _Kind()]


class McpChoice(Wire):
    """Forces the model to call a tool on a remote MCP server. Without a name, any of its tools."""

    type: Literal["mcp"]
    server_label: str
    name: str | None = None


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


def check_choice(choice: ToolChoice | None, tools: Sequence[ToolParam]) -> None:
    """Raise `InvalidValue` if the choice names a tool that is not in `tools`, or if the name is ambiguous."""
    # A model without tools could never satisfy this choice.
    if choice == "required" and not tools:
        raise InvalidValue("Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return
    available = [label for tool in tools for label in tool.labels()]
    for tool in choice.tools if isinstance(choice, AllowedTools) else [choice]:
        label = _label(tool)
        if label not in available:
            raise InvalidValue(
                f"Tool choice '{label[1] or tool.type}' not found in 'tools' parameter.", param="tool_choice"
            )
        # A name may occur in several namespaces. If the name is allowed, all these tools are allowed. But a forced call
        # needs an unambiguous name.
        if label[0] != "mcp" and available.count(label) > 1 and tool is choice:
            raise InvalidValue(
                f"Tool choice '{label[1]}' is ambiguous: more than one namespace has a tool with this name.",
                param="tool_choice",
            )


def is_forced(choice: ToolChoice | None, tools: Sequence[ToolParam]) -> bool:
    """Return true if the choice requires a call and none of these tools can satisfy the choice."""
    available = {label for tool in tools for label in tool.labels()}
    match choice:
        case "required":
            return not available
        case AllowedTools(mode="required", tools=allowed):
            wanted = allowed
        case None | str() | AllowedTools():
            return False
        case forced:
            wanted = [forced]
    return available.isdisjoint(_label(tool) for tool in wanted)


def _label(tool: Any) -> Label:
    return label_of(tool.type, tool.server_label if isinstance(tool, McpChoice) else getattr(tool, "name", None))
