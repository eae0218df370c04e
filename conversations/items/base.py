"""Building blocks of items and parts: closed JSON objects, ids, statuses and callers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from core.http.validation import ADDITIONAL_FIELD
from core.http.wire import BY_TYPE, OpenWire, Wire
from core.ids import new_id

Status = Literal["in_progress", "completed", "incomplete"]
MAX_ID = 255
MAX_CALL_ID = 64
# Limit of one list: other requests have to wait while it is validated.
MAX_ITEMS = 10_000
MAX_TEXT = 10_485_760


class ItemBase(OpenWire):
    """Base of all stored items. They keep the additional fields of other servers' items."""

    prefix: ClassVar[str]
    # True if clients write such items themselves. In an item without an id, additional fields are then mistakes of the
    # client.
    from_clients: ClassVar[bool] = False
    # Keys that the API shows as null when they have no value; all other keys without a value are left out.
    nulls: ClassVar[frozenset[str]] = frozenset()

    id: Annotated[str, Field(max_length=MAX_ID)] | None = None
    # Codex adds it to every item if its provider is OpenAI: metadata for OpenAI's own services. It is neither stored
    # nor shown, and not part of the schema, because OpenAI's reference does not contain it.
    internal_chat_message_metadata_passthrough: SkipJsonSchema[dict[str, Any] | None] = Field(
        default=None, exclude=True, repr=False
    )

    def wire(self) -> dict[str, Any]:
        """Return the item in public form, with its id and status, and without keys that were not set."""
        known = self.model_dump(by_alias=True, exclude_none=True)
        body: dict[str, Any] = {"id": self.id, "type": known["type"]}
        for name, field in type(self).model_fields.items():
            key = field.alias or name
            if key in known:
                body[key] = known[key]
            # Items that clients send without a status are complete.
            elif key == "status":
                body[key] = "completed"
            elif key in self.nulls:
                body[key] = None
        return {**body, **self.additional}

    def with_id(self) -> dict[str, Any]:
        """Return `wire()`, with a new id if the client sent none."""
        body = self.wire()
        if not body.get("id"):
            body["id"] = new_id(self.prefix)
        return body


def additional_field(value: Any) -> str | None:
    """Return the path of the first additional field of a validated object, or None."""
    if isinstance(value, list):
        paths = ((f"[{position}]", additional_field(entry)) for position, entry in enumerate(value))
        return next((f"{step}{path}" for step, path in paths if path is not None), None)
    if not isinstance(value, OpenWire):
        return None
    if value.additional:
        return f".{next(iter(value.additional))}"
    fields = ((field.alias or name, getattr(value, name)) for name, field in type(value).model_fields.items())
    paths = ((f".{key}", additional_field(entry)) for key, entry in fields if isinstance(entry, OpenWire | list))
    return next((f"{step}{path}" for step, path in paths if path is not None), None)


def reject_additional_fields(value: Any) -> Any:
    """Validate that an object has no additional fields."""
    if (path := additional_field(value)) is not None:
        raise PydanticCustomError(ADDITIONAL_FIELD, "Unknown parameter: '{path}'", {"path": path})
    return value


def known_fields(value: Any) -> Any:
    """Return a validated object as JSON, without nulls and additional fields."""
    if isinstance(value, list):
        return [known_fields(entry) for entry in value]
    if not isinstance(value, OpenWire):
        return value
    fields = ((field.alias or name, getattr(value, name)) for name, field in type(value).model_fields.items())
    return {key: known_fields(entry) for key, entry in fields if entry is not None}


class DirectCaller(OpenWire):
    """The model made the call itself."""

    type: Literal["direct"] = "direct"


class ProgramCaller(OpenWire):
    """A program that the model wrote made the call."""

    type: Literal["program"] = "program"
    caller_id: str


Caller = Annotated[DirectCaller | ProgramCaller, BY_TYPE]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)]


class WrittenFile(Wire):
    """A file that a program or command in a container created or removed."""

    container_id: str
    file_id: str
    path: str
    gone: bool = False
