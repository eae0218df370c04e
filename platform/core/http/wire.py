"""The base class of the JSON objects of the API, and the bounds of their integers."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from typing_extensions import override

MAX_INTEGER = 2**31 - 1
"""The largest integer in a request, unless a field declares more: columns and the counts in Redis have room for it."""

LongInteger = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""An integer that is only stored as JSON or forwarded, and may be as large as JSON parsers read exactly."""


def _restrict(schema: Any) -> None:
    """Let lists and maps of a schema fail fast, and give its integers the bounds that they do not declare."""
    # pydantic has no settings for this that apply to a whole model.
    entries = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and schema.get("type") in ("list", "dict"):
        schema["fail_fast"] = True
    if isinstance(schema, dict) and schema.get("type") == "int":
        if "gt" not in schema:
            schema.setdefault("ge", -MAX_INTEGER)
        if "lt" not in schema:
            schema.setdefault("le", MAX_INTEGER)
    for entry in entries:
        if isinstance(entry, dict | list | tuple):
            _restrict(entry)


class Wire(BaseModel):
    """A JSON object of the public API: strict types, no unknown keys, immutable, with bounds of all integers.

    Validation of its lists and maps stops at the first defect. Only the first is reported, and there may be millions.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _restrict(schema)
        return schema


class OpenWire(Wire):
    """A JSON object that keeps additional fields, which are not part of its schema."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    @property
    def additional(self) -> dict[str, Any]:
        """The additional fields that have a value."""
        extra = self.model_extra
        return {name: value for name, value in extra.items() if value is not None} if extra else {}
