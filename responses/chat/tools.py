"""Tools and tool choice of a chat completion. All of the tools run on the client."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import InvalidValue
from kernel.validation import TAG

MAX_TOOLS = 1_000
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class ChatFunctionDefinition(Wire):
    """Name, description and parameters of a function."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Wire):
    """Function tool."""

    type: Literal["function"]
    function: ChatFunctionDefinition


class ChatCustomTextFormat(Wire):
    """Unconstrained text."""

    type: Literal["text"]


class ChatGrammar(Wire):
    """Grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class ChatGrammarFormat(Wire):
    """Text constrained by a grammar."""

    type: Literal["grammar"]
    grammar: ChatGrammar


class ChatCustomDefinition(Wire):
    """Name, description and input format of a custom tool."""

    name: Name
    description: str | None = None
    format: (
        Annotated[
            Annotated[ChatCustomTextFormat, Tag(f"{TAG}text")] | Annotated[ChatGrammarFormat, Tag(f"{TAG}grammar")],
            Discriminator(by_type),
        ]
        | None
    ) = None


class ChatCustomTool(Wire):
    """Custom tool, whose input is text."""

    type: Literal["custom"]
    custom: ChatCustomDefinition


ChatTool = Annotated[
    Annotated[ChatFunctionTool, Tag(f"{TAG}function")] | Annotated[ChatCustomTool, Tag(f"{TAG}custom")],
    Discriminator(by_type),
]


class NamedTool(Wire):
    """Reference to a tool by name."""

    name: str


class ChatFunctionChoice(Wire):
    """Choice that forces a call of one function."""

    type: Literal["function"]
    function: NamedTool


class ChatCustomChoice(Wire):
    """Choice that forces a call of one custom tool."""

    type: Literal["custom"]
    custom: NamedTool


_OneTool = Annotated[
    Annotated[ChatFunctionChoice, Tag(f"{TAG}function")] | Annotated[ChatCustomChoice, Tag(f"{TAG}custom")],
    Discriminator(by_type),
]


class ChatAllowedTools(Wire):
    """Allowed tools, and if one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_OneTool], Field(min_length=1, max_length=MAX_TOOLS)]


class ChatAllowedChoice(Wire):
    """Choice that restricts the model to some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowedTools


def _choice_tag(choice: Any) -> str | None:
    return f"{TAG}mode" if isinstance(choice, str) else by_type(choice)


ChatToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[ChatFunctionChoice, Tag(f"{TAG}function")]
    | Annotated[ChatCustomChoice, Tag(f"{TAG}custom")]
    | Annotated[ChatAllowedChoice, Tag(f"{TAG}allowed_tools")],
    Discriminator(_choice_tag),
]


def _function_choice_tag(choice: Any) -> str:
    return f"{TAG}mode" if isinstance(choice, str) else f"{TAG}named"


LegacyChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag(f"{TAG}mode")] | Annotated[NamedTool, Tag(f"{TAG}named")],
    Discriminator(_function_choice_tag),
]


class LegacyFunction(Wire):
    """Function in the deprecated format without tools."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


def check_tools(tools: Sequence[ChatFunctionTool | ChatCustomTool], choice: ChatToolChoice | None) -> None:
    """Raise `InvalidValue` for duplicate names, or for a choice of tools that are not defined."""
    defined: dict[tuple[str, str], None] = {}
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.function.name if isinstance(tool, ChatFunctionTool) else tool.custom.name

        # Calls refer to a tool by its name, so a name has to be unique across types.
        if name in names:
            message = f"Invalid 'tools': duplicate tool name '{name}'."
            raise InvalidValue(message, param=f"tools[{index}].{tool.type}.name")
        names.add(name)
        defined[tool.type, name] = None
    if choice in {"none", "auto"} if isinstance(choice, str) else choice is None:
        return
    if not tools:
        message = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        raise InvalidValue(message, param="tool_choice")
    # A mode such as `required` is a string and names no tool; the loop ignores it.
    named = choice.allowed_tools.tools if isinstance(choice, ChatAllowedChoice) else [choice]
    for one in named:
        if isinstance(one, ChatFunctionChoice | ChatCustomChoice) and _label(one) not in defined:
            message = f"Tool choice '{_label(one)[1][:64]}' not found in 'tools' parameter."
            raise InvalidValue(message, param="tool_choice")


def _label(choice: ChatFunctionChoice | ChatCustomChoice) -> tuple[str, str]:
    named = choice.function if isinstance(choice, ChatFunctionChoice) else choice.custom
    return choice.type, named.name


def check_functions(functions: Sequence[LegacyFunction] | None, choice: LegacyChoice | None) -> None:
    """Check functions and choice in the deprecated format without tools; raises `InvalidValue`."""
    names = [function.name for function in functions or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"Invalid 'functions': duplicate function name '{name}'."
            raise InvalidValue(message, param=f"functions[{index}].name")
    if choice is None or choice == "none":
        return
    if functions is None:
        message = "Invalid value for 'function_call': 'function_call' is only allowed when 'functions' are specified."
        raise InvalidValue(message, param="function_call")
    if isinstance(choice, NamedTool) and choice.name not in names:
        message = f"Invalid value for 'function_call': no function named '{choice.name[:64]}' is specified."
        raise InvalidValue(message, param="function_call")
