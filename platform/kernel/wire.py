"""The base class of the JSON objects of the API."""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from typing_extensions import override


def _fail_fast(schema: Any) -> None:
    # pydantic has no setting for this that applies to a whole model.
    entries = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and schema.get("type") in ("list", "dict"):
        schema["fail_fast"] = True
    for entry in entries:
        if isinstance(entry, dict | list | tuple):
            _fail_fast(entry)


class Wire(BaseModel):
    """A JSON object of the public API: strict types, no unknown keys, immutable.

    Validation of its lists and maps stops at the first defect. Only the first is reported, and there may be millions.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema
