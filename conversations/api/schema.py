"""The bodies of requests to `/v1/conversations`: JSON in, typed and closed values out."""

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from conversations.items import MAX_ID, InputItem, Wire
from kernel.nulls import validate_without_nulls
from kernel.validation import Metadata, first_defect, parse_json

MAX_ADDED = 20
Schema = TypeVar("Schema", bound=Wire)
_Items = Annotated[list[InputItem], Field(max_length=MAX_ADDED)]


class CreateConversation(Wire):
    """A new conversation."""

    items: _Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(Wire):
    """What a conversation can be changed in; null takes all of it away."""

    metadata: Metadata | None


class CreateItems(Wire):
    """Items to be added."""

    items: Annotated[_Items, Field(min_length=1)]


class ForkConversation(Wire):
    """Where another conversation is to part from this one; without `after`, at its end."""

    after: Annotated[str, Field(max_length=MAX_ID)] | None = None


def read(schema: type[Schema], body: bytes) -> Schema:
    """Validate a body, which may be missing where nothing in it has to be given."""
    values: dict[str, Any] = parse_json(body) if body else {}
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error) from error
