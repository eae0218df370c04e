"""The tools of a chat completion, and which of them the model has to call. They are the client's, all of them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import InvalidValue
from kernel.validation import TAG

MAX_TOOLS = 1_000
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class FunctionDefinition(Wire):
    """What a function is called, and what it takes."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Wire):
    """A function of the client's."""

    type: Literal["function"]
    function: FunctionDefinition


class TextFormat(Wire):
    """Any text."""

    type: Literal["text"]


class Grammar(Wire):
    """The language that a text keeps to."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class GrammarFormat(Wire):
    """Text that keeps to a grammar."""

    type: Literal["grammar"]
    grammar: Grammar


class CustomDefinition(Wire):
    """What a custom tool is called, and what text it takes."""

    name: Name
    description: str | None = None
    format: (
        Annotated[
            Annotated[TextFormat, Tag(f"{TAG}text")] | Annotated[GrammarFormat, Tag(f"{TAG}grammar")],
            Discriminator(by_type),
        ]
        | None
    ) = None


class CustomTool(Wire):
    """A tool of the client's that takes text."""

    type: Literal["custom"]
    custom: CustomDefinition


Tool = Annotated[
    Annotated[FunctionTool, Tag(f"{TAG}function")] | Annotated[CustomTool, Tag(f"{TAG}custom")],
    Discriminator(by_type),
]


class Named(Wire):
    """A tool by its name."""

    name: str


class FunctionChoice(Wire):
    """Forces one function."""

    type: Literal["function"]
    function: Named


class CustomChoice(Wire):
    """Forces one custom tool."""

    type: Literal["custom"]
    custom: Named


_OneTool = Annotated[
    Annotated[FunctionChoice, Tag(f"{TAG}function")] | Annotated[CustomChoice, Tag(f"{TAG}custom")],
    Discriminator(by_type),
]


class AllowedTools(Wire):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_OneTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Wire):
    """Narrows the choice to some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_tag(choice: Any) -> str | None:
    return f"{TAG}mode" if isinstance(choice, str) else by_type(choice)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[FunctionChoice, Tag(f"{TAG}function")]
    | Annotated[CustomChoice, Tag(f"{TAG}custom")]
    | Annotated[AllowedChoice, Tag(f"{TAG}allowed_tools")],
    Discriminator(_choice_tag),
]


def _function_choice_tag(choice: Any) -> str:
    return f"{TAG}mode" if isinstance(choice, str) else f"{TAG}named"


LegacyChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag(f"{TAG}mode")] | Annotated[Named, Tag(f"{TAG}named")],
    Discriminator(_function_choice_tag),
]


class LegacyFunction(Wire):
    """A function, in the shape that came before tools."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


def check_tools(tools: Sequence[FunctionTool | CustomTool], choice: ToolChoice | None) -> None:
    """No name stands twice, and a choice names tools that are there."""
    there: dict[tuple[str, str], None] = {}
    taken: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.function.name if isinstance(tool, FunctionTool) else tool.custom.name
        if name in taken:
            message = f"Invalid 'tools': the name '{name}' stands in it twice."
            raise InvalidValue(message, param=f"tools[{index}].{tool.type}.name")
        taken.add(name)
        there[tool.type, name] = None
    if choice in {"none", "auto"} if isinstance(choice, str) else choice is None:
        return
    if not tools:
        message = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        raise InvalidValue(message, param="tool_choice")
    named = choice.allowed_tools.tools if isinstance(choice, AllowedChoice) else [choice]
    for one in named:
        if isinstance(one, FunctionChoice | CustomChoice) and _label(one) not in there:
            message = f"Tool choice '{_label(one)[1][:64]}' not found in 'tools' parameter."
            raise InvalidValue(message, param="tool_choice")


def _label(choice: FunctionChoice | CustomChoice) -> tuple[str, str]:
    named = choice.function if isinstance(choice, FunctionChoice) else choice.custom
    return choice.type, named.name


def check_functions(functions: Sequence[LegacyFunction] | None, choice: LegacyChoice | None) -> None:
    """The same of the shape that came before tools."""
    names = [function.name for function in functions or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"Invalid 'functions': the name '{name}' stands in it twice."
            raise InvalidValue(message, param=f"functions[{index}].name")
    if choice is None or choice == "none":
        return
    if functions is None:
        message = "Invalid value for 'function_call': 'function_call' is only allowed when 'functions' are specified."
        raise InvalidValue(message, param="function_call")
    if isinstance(choice, Named) and choice.name not in names:
        message = f"Invalid value for 'function_call': no function named '{choice.name[:64]}' is specified."
        raise InvalidValue(message, param="function_call")
