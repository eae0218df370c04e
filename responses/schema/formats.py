"""`text`: the format and the verbosity of the answer. Source: section 3.4 of the API surface specification."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import BadRequest
from kernel.validation import TAG
from responses.engine.constraints.json_schema import schema_defect
from responses.schema.tools import NAME


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Some JSON object (legacy)."""

    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    """JSON of a schema. The SDK dumps `schema`, a word of pydantic's, as `schema_`."""

    type: Literal["json_schema"]
    name: Annotated[str, NAME]
    json_schema: dict[str, Any] = Field(
        validation_alias=AliasChoices("schema", "schema_"), serialization_alias="schema"
    )
    description: str | None = None
    strict: bool | None = None


Format = Annotated[
    Annotated[TextFormat, Tag(f"{TAG}text")]
    | Annotated[JsonObjectFormat, Tag(f"{TAG}json_object")]
    | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
    Discriminator(by_type),
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
