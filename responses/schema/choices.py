"""`tool_choice`: which tool the model has to call, or may. Source: section 3.3 of the API surface specification."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire
from kernel.errors import InvalidValue
from kernel.validation import TAG
from responses.schema.tools import type_tag


class FunctionChoice(Wire):
    """Forces one function."""

    type: Literal["function"]
    name: str


class AllowedTools(Wire):
    """Narrows the choice to some of the tools, without changing the list of tools itself."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=128)]


def _choice_tag(choice: Any) -> str | None:
    if isinstance(choice, str):
        return f"{TAG}mode"
    return type_tag(choice)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[FunctionChoice, Tag(f"{TAG}function")]
    | Annotated[AllowedTools, Tag(f"{TAG}allowed_tools")],
    Discriminator(_choice_tag),
]


def check_choice(choice: ToolChoice | None, names: Sequence[str]) -> None:
    """A choice names tools that are there."""
    match choice:
        case FunctionChoice():
            chosen = [choice]
        case AllowedTools():
            chosen = choice.tools
        case _:
            chosen = []
    for one in chosen:
        if one.name not in names:
            raise InvalidValue(f"Tool choice '{one.name}' not found in 'tools' parameter.", param="tool_choice")
    if choice == "required" and not names:
        raise InvalidValue("Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")
