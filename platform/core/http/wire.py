"""The base class of the JSON objects of the API, the bounds of their integers, and the members of their unions.

A function of the value chooses the member of a union. Without it, pydantic would report the defects of every member,
among which the relevant one cannot be recognised.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema
from typing_extensions import override

# Separates tags, which are part of pydantic's error locations, from the names of fields. Begins with a NUL, so that no
# key of a body can look like a tag: `parse_json` removes NULs.
TAG = "\x00tag:"

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


def by_type(value: Any) -> str | None:
    """Return the tag of a union's member, derived from the object's `type`."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return None if kind is None else f"{TAG}{kind}"


def tagged(members: Mapping[str, Any], choose: Callable[[Any], str | None]) -> Any:
    """Return the union of `members`, which are named by their tags without `TAG`. `choose` returns a value's tag."""
    branches = tuple(Annotated[member, Tag(f"{TAG}{name}")] for name, member in members.items())
    return Annotated[Union[branches], Discriminator(choose)]  # noqa: UP007 - a tuple


class _ByType:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models = get_args(source) or (source,)
        kinds = {kind: model for model in models for kind in get_args(model.model_fields["type"].annotation)}
        return handler.generate_schema(tagged(kinds, by_type))


class _StringOr:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        string, other = get_args(source)
        return handler.generate_schema(tagged({"string": string, "other": other}, _string_tag))


def _string_tag(value: Any) -> str:
    return f"{TAG}{'string' if isinstance(value, str) else 'other'}"


BY_TYPE = _ByType()
"""Annotation of a union of objects: a value is validated as the member with the same `type`."""
STRING_OR = _StringOr()
"""Annotation of a union of a string and something else, in this order."""
