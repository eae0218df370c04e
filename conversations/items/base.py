"""What all items and parts are made of: closed JSON objects, ids, statuses, and who made a call."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema
from typing_extensions import override

from kernel.ids import new_id
from kernel.validation import TAG

Status = Literal["in_progress", "completed", "incomplete"]
MAX_ID = 255
MAX_CALL_ID = 64
# Of one list: validating takes time that everybody else waits for.
MAX_ITEMS = 10_000
MAX_TEXT = 10_485_760


def _fail_fast(schema: Any) -> None:
    """Set in a schema what pydantic can be told list by list alone."""
    entries = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and schema.get("type") in ("list", "dict"):
        schema["fail_fast"] = True
    for entry in entries:
        if isinstance(entry, dict | list | tuple):
            _fail_fast(entry)


class Wire(BaseModel):
    """A JSON object of the wire: strict types, no unknown keys, immutable.

    Its lists and maps are read up to their first defect: nobody hears of the others, and there may be millions.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


def by_type(value: Any) -> str | None:
    """The branch of a union of objects that are told apart by `type`."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return None if kind is None else f"{TAG}{kind}"


class ItemBase(Wire):
    """What all stored items share."""

    prefix: ClassVar[str]
    # What the API shows as null where nothing is known; every other key without a value is left out.
    nulls: ClassVar[frozenset[str]] = frozenset()

    id: Annotated[str, Field(max_length=MAX_ID)] | None = None

    def wire(self) -> dict[str, Any]:
        """The item as the API shows it: with an id and a status, without keys that nobody set."""
        known = self.model_dump(by_alias=True, exclude_none=True)
        body: dict[str, Any] = {"id": self.id, "type": known["type"]}
        for name, field in type(self).model_fields.items():
            key = field.alias or name
            if key in known:
                body[key] = known[key]
            elif key == "status":
                body[key] = "completed"
            elif key in self.nulls:
                body[key] = None
        return body

    def with_id(self) -> dict[str, Any]:
        """`wire()` with a fresh id where the client gave none."""
        body = self.wire()
        if not body.get("id"):
            body["id"] = new_id(self.prefix)
        return body


class DirectCaller(Wire):
    """The model made the call itself."""

    type: Literal["direct"] = "direct"


class ProgramCaller(Wire):
    """A program of the model made the call."""

    type: Literal["program"] = "program"
    caller_id: str


Caller = Annotated[
    Annotated[DirectCaller, Tag(f"{TAG}direct")] | Annotated[ProgramCaller, Tag(f"{TAG}program")],
    Discriminator(by_type),
]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)]


class WrittenFile(Wire):
    """A file that a program or a command in a container has made, or removed."""

    container_id: str
    file_id: str
    path: str
    gone: bool = False
