"""Schemas of the request bodies of `/v1/conversations`."""

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from conversations.items import MAX_ID, InputItem, Wire
from kernel.nulls import validate_without_nulls
from kernel.validation import Metadata, first_defect, parse_json

# OpenAI's limit for one request.
MAX_ADDED = 20
Schema = TypeVar("Schema", bound=Wire)
_Items = Annotated[list[InputItem], Field(max_length=MAX_ADDED)]


class CreateConversation(Wire):
    """A new conversation."""

    items: _Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(Wire):
    """A change of a conversation's metadata; null removes all of it."""

    metadata: Metadata | None


class CreateItems(Wire):
    """Items to append to a conversation."""

    items: Annotated[_Items, Field(min_length=1)]


class ForkConversation(Wire):
    """The last item that a fork shares with its source; without `after`, the fork shares all items."""

    after: Annotated[str, Field(max_length=MAX_ID)] | None = None


def read(schema: type[Schema], body: bytes) -> Schema:
    """Parse and validate a request body. An empty body is read as `{}`, as all fields of some schemas are optional."""
    values: dict[str, Any] = parse_json(body) if body else {}
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error) from error
