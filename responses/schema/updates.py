"""What a `configuration_update` among the items may hold. Source: section 3.1c of the API surface specification."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from conversations.items import ConfigurationUpdate, Wire
from kernel.validation import TAG, validate
from responses.schema.formats import JsonSchemaFormat, TextFormat, check_schema
from responses.schema.options import Effort
from responses.schema.tools import type_tag


class ReasoningUpdate(Wire):
    """How hard the model is to think from here on."""

    effort: Effort | None = None


class TextUpdate(Wire):
    """The format of the answers from here on."""

    format: Annotated[
        Annotated[TextFormat, Tag(f"{TAG}text")] | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
        Discriminator(type_tag),
    ]


def check_updates(given: Any, *, param: str = "input") -> None:
    """Refuse an update among items that could never be in force; `param` is where they stand."""
    if isinstance(given, str):
        return
    for index, item in enumerate(given):
        if isinstance(item, ConfigurationUpdate):
            _check(item, f"{param}[{index}]")


def _check(update: ConfigurationUpdate, param: str) -> None:
    if update.reasoning is not None:
        validate(ReasoningUpdate, update.reasoning, prefix=f"{param}.reasoning.")
    if update.text is not None:
        text = validate(TextUpdate, update.text, prefix=f"{param}.text.")
        if isinstance(text.format, JsonSchemaFormat):
            check_schema(text.format, param=f"{param}.text.format.schema")
