"""Unknown nulls in request bodies mean "not sent": SDKs send a null for every field that their newer types have."""

from functools import cache, partial
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaValidator

from core.http.validation import Schema, first_defect


def read(schema: type[Schema], values: dict[str, Any], *, prefix: str = "") -> Schema:
    """Validate into `schema`, removing nulls of unknown fields; raises the `BadRequest` of the first defect."""
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error, prefix=prefix) from error


def validate_without_nulls(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Validate into `schema`, removing nulls of unknown fields from `body`; raises `ValidationError`."""
    try:
        return schema.model_validate(body)
    except ValidationError:
        validated: Schema = lenient_validator(schema).validate_python(body)
        return validated


@cache
def lenient_validator(schema: type[BaseModel]) -> SchemaValidator:
    """Return a validator of `schema` that removes unknown nulls from each object before it validates its fields."""
    # A second validator, because calling Python for each object would slow down the validation of all other bodies.
    # It must not use the prebuilt validators of nested classes, which remove nothing.
    return SchemaValidator(_lenient(schema.__pydantic_core_schema__), _use_prebuilt=False)


def _lenient(schema: Any, *, forbids: bool = False) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_lenient(entry, forbids=forbids) for entry in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model":
        forbids = schema["config"].get("extra_fields_behavior") == "forbid"
    copy = {key: _lenient(entry, forbids=forbids) for key, entry in schema.items()}
    if schema.get("type") != "model-fields" or not forbids:
        return copy
    function = {"type": "no-info", "function": partial(_remove_unknown, _known_keys(schema["fields"]))}
    return {"type": "function-before", "function": function, "schema": copy}


def _known_keys(fields: dict[str, Any]) -> dict[str, str | None]:
    """Return the keys that an object may have. The value of a field's second alias is its first alias, which wins."""
    known: dict[str, str | None] = {}
    for name, field in fields.items():
        match field.get("validation_alias", name):
            case str(key):
                known[key] = None
            case [[first], [second]]:
                known |= {first: None, second: first}
    return known


def _remove_unknown(known: dict[str, str | None], value: Any) -> Any:
    if isinstance(value, dict):
        for key in [k for k, entry in value.items() if entry is None and (k not in known or known[k] in value)]:
            del value[key]
    return value
