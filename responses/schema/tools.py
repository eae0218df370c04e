"""The closed union of what `tools` may hold. Source: section 3.2 of the API surface specification."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire
from kernel.validation import TAG

NAME = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")


class FunctionToolParam(Wire):
    """A function of the client's, in the flat shape."""

    type: Literal["function"]
    name: Annotated[str, NAME]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def type_tag(tool: Any) -> str | None:
    """The branch of a union that `type` tells apart."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return None if kind is None else f"{TAG}{kind}"


ToolParam = Annotated[Annotated[FunctionToolParam, Tag(f"{TAG}function")], Discriminator(type_tag)]
