"""Types of the objects that several endpoints return. The OpenAPI document is derived from these types.

The docstring of a type is its description in the document. `server.reference.descriptions` describes its fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from typing_extensions import TypedDict  # pydantic rejects the one of `typing` before Python 3.12

Entry = TypeVar("Entry", bound=Mapping[str, Any])
Kind = TypeVar("Kind", bound=str)
UnixTime = Annotated[int, Field(description="Unix seconds.")]


class ListPage(TypedDict, Generic[Entry]):
    """A page of a list."""

    object: Literal["list"]
    data: list[Entry]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(TypedDict, Generic[Entry, Kind]):
    """Confirmation of a deletion."""

    id: str
    object: Kind
    deleted: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """Annotation of a JSON object that is stored or built as a dictionary. It names the type with its fields."""

    of: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the type with the fields."""
        return handler.generate_schema(self.of)


def one_of(*values: str) -> Any:
    """Return the annotation of a string that comes from a column with these values."""
    return Field(json_schema_extra={"enum": list(values)})
