"""Validation of `configuration_update` items in the input."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag, ValidationError

from conversations.items import ConfigurationUpdate, Wire, by_type
from kernel.nulls import validate_without_nulls
from kernel.validation import TAG, Schema, first_defect
from responses.schema.formats import JsonSchemaFormat, TextFormat, check_schema
from responses.schema.options import Effort


class ReasoningUpdate(Wire):
    """Reasoning options from this item on."""

    effort: Effort | None = None


class TextUpdate(Wire):
    """Text format of the output from this item on."""

    format: Annotated[
        Annotated[TextFormat, Tag(f"{TAG}text")] | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
        Discriminator(by_type),
    ]


def check_updates(given: Any, *, param: str = "input") -> None:
    """Raise the API error of an invalid update among the items; `param` is the path of the items."""
    if isinstance(given, str):
        return
    for index, item in enumerate(given):
        if isinstance(item, ConfigurationUpdate):
            _check(item, f"{param}[{index}]")


def _check(update: ConfigurationUpdate, param: str) -> None:
    if update.reasoning is not None:
        _validated(ReasoningUpdate, update.reasoning, f"{param}.reasoning.")
    if update.text is not None:
        # Validation also removes nulls that SDK clients send for unset fields.
        text = _validated(TextUpdate, update.text, f"{param}.text.")
        if isinstance(text.format, JsonSchemaFormat):
            check_schema(text.format, param=f"{param}.text.format.schema")
            format_values = update.text["format"]
            # Clients that dump the SDK's objects send pydantic's alias of the field.
            if "schema_" in format_values:
                format_values["schema"] = format_values.pop("schema_")


def _validated(schema: type[Schema], values: dict[str, Any], prefix: str) -> Schema:
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error, prefix=prefix) from error
