"""`text`: the format and the verbosity of the answer. Source: section 3.4 of the API surface specification."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from conversations.items import Wire
from kernel.errors import BadRequest
from kernel.validation import TAG
from responses.engine.structured import schema_defect
from responses.schema.tools import NAME, type_tag


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Some JSON object (legacy)."""

    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    """JSON of a schema."""

    # The wire name is `schema`, which pydantic's own method of that name does not mind being shadowed by an alias.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["json_schema"]
    name: Annotated[str, NAME]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


Format = Annotated[
    Annotated[TextFormat, Tag(f"{TAG}text")]
    | Annotated[JsonObjectFormat, Tag(f"{TAG}json_object")]
    | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
    Discriminator(type_tag),
]


class TextParam(Wire):
    """How the text is to look."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def check_schema(given: JsonSchemaFormat, *, param: str = "text.format.schema") -> None:
    """A schema that is none could never be kept to."""
    if (wrong := schema_defect(given.json_schema)) is not None:
        message = f"Invalid schema for response_format '{given.name}': {wrong}."
        raise BadRequest(message, param=param, code="invalid_json_schema")
