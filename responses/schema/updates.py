"""What a `configuration_update` among the items may hold. Source: section 3.1c of the API surface specification."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag, ValidationError

from conversations.items import ConfigurationUpdate, Wire, by_type
from kernel.nulls import validate_without_nulls
from kernel.validation import TAG, Schema, first_defect
from responses.schema.formats import JsonSchemaFormat, TextFormat, check_schema
from responses.schema.options import Effort


class ReasoningUpdate(Wire):
    """How hard the model is to think from here on."""

    effort: Effort | None = None


class TextUpdate(Wire):
    """The format of the answers from here on."""

    format: Annotated[
        Annotated[TextFormat, Tag(f"{TAG}text")] | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
        Discriminator(by_type),
    ]


def check_updates(given: Any, *, param: str = "input") -> None:
    """Refuse an update among items that could never be in force; `param` is where they stand."""
    if isinstance(given, str):
        return
    for index, item in enumerate(given):
        if isinstance(item, ConfigurationUpdate):
            _check(item, f"{param}[{index}]")


def _check(update: ConfigurationUpdate, param: str) -> None:
    """What clients of the SDK dump without meaning it is taken out of the item: nulls, and a name of Python's."""
    if update.reasoning is not None:
        _validated(ReasoningUpdate, update.reasoning, f"{param}.reasoning.")
    if update.text is not None:
        text = _validated(TextUpdate, update.text, f"{param}.text.")
        if isinstance(text.format, JsonSchemaFormat):
            check_schema(text.format, param=f"{param}.text.format.schema")
            told = update.text["format"]
            if "schema_" in told:
                told["schema"] = told.pop("schema_")


def _validated(schema: type[Schema], values: dict[str, Any], prefix: str) -> Schema:
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error, prefix=prefix) from error
