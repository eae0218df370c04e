"""The `text` parameter: format and verbosity of the model's text output."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import BadRequest
from kernel.validation import TAG
from responses.engine.constraints.json_schema import schema_defect
from responses.schema.tools import NAME


class TextFormat(Wire):
    """Default response format. Used to generate text responses."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """JSON object response format. An older method of generating JSON responses; `json_schema` is recommended."""

    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    """JSON Schema response format. Used to generate structured JSON responses."""

    type: Literal["json_schema"]
    name: Annotated[str, NAME]
    # The SDK dumps `schema` as `schema_`, because pydantic reserves the name.
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
    """Configuration options for a text response from the model."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def check_schema(given: JsonSchemaFormat, *, param: str = "text.format.schema") -> None:
    """Raise BadRequest for an invalid JSON Schema, which no output could match."""
    # Checked here: otherwise an upstream would reject it later, with its own message.
    if (wrong := schema_defect(given.json_schema)) is not None:
        message = f"Invalid schema for response_format '{given.name}': {wrong}."
        raise BadRequest(message, param=param, code="invalid_json_schema")
