"""Conversion of pydantic's errors into OpenAI's: message, `param` path and `code` of a body's first defect.

Messages and codes are worded like OpenAI's.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from core.errors import (
    ArrayTooLong,
    BadRequest,
    DecimalTooLarge,
    DecimalTooSmall,
    EmptyArray,
    EmptyString,
    IntegerTooLarge,
    IntegerTooSmall,
    InvalidJson,
    InvalidType,
    InvalidValue,
    LimitExceeded,
    MissingParameter,
    ObjectTooLarge,
    StringTooLong,
    UnknownParameter,
)
from core.http.wire import TAG
from core.ids import Prefix, expectation
from core.json import large_json
from core.json.large_work import pause
from core.json.storable_json import MAX_DEPTH, is_too_deep, is_wider, without_nul

# Pydantic reports every unknown key with a copy of its value, which makes a body of very many keys expensive.
MAX_KEYS = 10_000
_COUNTED_BYTES = 64 * 1024
Schema = TypeVar("Schema", bound=BaseModel)
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""Up to 16 key-value pairs that clients attach to an object."""

_MALFORMED_ID = "malformed_id"
ADDITIONAL_FIELD = "additional_field"
"""Type of the validation error of an object that may have additional fields elsewhere. `path` leads to the field."""
# Errors about an object of an unknown type name its field `type`, except for items and their parts, as in OpenAI's
# errors: their short forms have no `type`.
_IN_ITEMS = re.compile(r"(input|items)\[")


def id_with(prefix: Prefix) -> AfterValidator:
    """Return the validator of a field with an id; malformed ids are rejected before any query."""

    def check(text: str) -> str:
        if (expected := expectation(text, prefix)) is not None:
            raise PydanticCustomError(_MALFORMED_ID, "{expected}", {"expected": expected})
        return text

    return AfterValidator(check)


ConversationId = Annotated[str, Field(max_length=64), id_with(Prefix.CONVERSATION)]
ContainerId = Annotated[str, Field(max_length=128), id_with(Prefix.CONTAINER)]
# OpenAI's limit for the ids of items and of files.
FileId = Annotated[str, Field(max_length=255), id_with(Prefix.FILE)]
PromptId = Annotated[str, Field(max_length=64), id_with(Prefix.PROMPT)]
ResponseId = Annotated[str, Field(max_length=64), id_with(Prefix.RESPONSE)]
SkillId = Annotated[str, Field(max_length=64), id_with(Prefix.SKILL)]
UploadPartId = Annotated[str, Field(max_length=64), id_with(Prefix.UPLOAD_PART)]
VectorStoreId = Annotated[str, Field(max_length=64), id_with(Prefix.VECTOR_STORE)]


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}

_UNKNOWN = frozenset({"extra_forbidden", ADDITIONAL_FIELD})
_INTEGER_TYPES = frozenset({"int_type", "int_from_float"})
_LONG_BOUNDS = (-(2**63), 2**63 - 1)


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body; raises `BadRequest` for anything else."""
    try:
        parsed = large_json.loads(body)
    except orjson.JSONDecodeError as broken:
        raise InvalidJson from broken
    if not isinstance(parsed, dict):
        raise InvalidType(None, expected="a JSON object", got=json_type(parsed))
    if is_too_deep(parsed, body):
        raise InvalidValue(f"Invalid body: JSON is nested more than {MAX_DEPTH} levels deep.")
    # Counting colons avoids the walk for most bodies. In 20 MB the count takes longer than the walk.
    if (len(body) > _COUNTED_BYTES or body.count(b":") > MAX_KEYS) and is_wider(parsed, MAX_KEYS):
        raise InvalidValue(f"Invalid body: an object has more than {MAX_KEYS} keys.")
    # PostgreSQL cannot store NUL characters, so they are removed. A backslash is searched for first: base64 contains
    # none, and the search for the longer text would take 30 ms for an image of 20 MB.
    pause()
    has_nul = b"\\" in body and b"\\u0000" in body
    pause()
    return without_nul(parsed) if has_nul else parsed


def validate(schema: type[Schema], values: Mapping[str, Any], *, prefix: str = "") -> Schema:
    """Validate into `schema`; raises the `BadRequest` of the first defect."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise first_defect(error, prefix=prefix) from error


def first_defect(error: ValidationError, *, prefix: str = "") -> BadRequest:
    """Return the first defect of a validation error as an API error."""
    # Unknown keys come last: a misspelled required field is reported as missing, which is the more helpful message.
    details = error.errors(include_url=False)
    detail = next((d for d in details if d["type"] not in _UNKNOWN), details[0])
    return _defect(detail, prefix + path(detail["loc"]))


def path(loc: tuple[str | int, ...]) -> str:
    """Convert a location: `("input", 2, "tag:message", "content", 0)` becomes `input[2].content[0]`."""
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not step.startswith(TAG) and step != "[key]":
            text += f".{step}" if text else step
    return text


def _defect(detail: ErrorDetails, param: str) -> BadRequest:
    kind = detail["type"]
    if kind in _INTEGER_TYPES and (huge := _huge_integer(detail["input"])):
        return LimitExceeded.integer(huge, param, *_LONG_BOUNDS)
    if kind in _EXPECTED:
        return InvalidType(param, expected=_EXPECTED[kind], got=json_type(detail["input"]))
    if (explain := _EXPLAINED.get(kind)) is not None:
        return explain(detail, param)
    # Errors raised by our validators are complete sentences; pydantic's other messages lack the full stop.
    message = detail["msg"].removeprefix("Value error, ").removesuffix(".")
    return InvalidValue(f"Invalid '{param}': {message}.", param=param)


def malformed_id(text: str, param: str, expected: str) -> InvalidValue:
    """Return the error for an id that no object can have."""
    return InvalidValue(f"Invalid '{param}': '{text}'. {expected}", param=param)


def _literal(detail: ErrorDetails, param: str) -> BadRequest:
    expected = detail.get("ctx", {}).get("expected", "")
    supported = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    is_boolean = set(supported) <= {"True", "False"}
    if is_boolean and isinstance(detail["input"], bool):
        known = [name.lower() for name in supported]
        return InvalidValue.unsupported(str(detail["input"]).lower(), known, param=param)
    if not isinstance(detail["input"], str):
        expected = "a boolean" if is_boolean else "a string"
        return InvalidType(param, expected=expected, got=json_type(detail["input"]))
    return InvalidValue.unsupported(detail["input"], supported, param=param)


def _tag(detail: ErrorDetails, param: str) -> BadRequest:
    ctx = detail.get("ctx", {})
    # pydantic lists the tags as Python literals, with the NUL escaped.
    expected = ctx.get("expected_tags", "").replace(repr(TAG)[1:-1], TAG)
    supported = [part.strip(" '").removeprefix(TAG) for part in expected.split(",")]
    given = detail["input"]
    if isinstance(given, dict) and "type" in given and not _IN_ITEMS.match(param):
        param = f"{param}.type"
        if not isinstance(given["type"], str):
            return InvalidType(param, expected="a string", got=json_type(given["type"]))
    return InvalidValue.unsupported(str(ctx.get("tag", "")).removeprefix(TAG), supported, param=param)


def _untagged(detail: ErrorDetails, param: str) -> BadRequest:
    # The discriminator returned None: the value has none of the union's shapes.
    if isinstance(detail["input"], dict):
        if "type" not in detail["input"] and not _IN_ITEMS.match(param):
            return MissingParameter(f"{param}.type")
        return InvalidValue(f"Invalid value for '{param}': the object has no valid 'type'.", param=param)
    expected = "an object" if isinstance(detail["input"], str) else "one of an object or a string"
    return InvalidType(param, expected=expected, got=json_type(detail["input"]))


def _huge_integer(value: Any) -> int | None:
    """Return an integer of more than 64 bits, which the JSON parser has read as a number with a fraction; or None."""
    is_huge = isinstance(value, float) and value.is_integer() and not _LONG_BOUNDS[0] <= value <= _LONG_BOUNDS[1]
    return int(value) if is_huge else None


def _too_small(sign: str, detail: ErrorDetails, param: str) -> BadRequest:
    number = _number(detail)
    kind = IntegerTooSmall if number == "integer" else DecimalTooSmall
    return kind(
        f"Invalid '{param}': {number} below minimum value. "
        f"Expected a value {sign} {_limit(detail)}, but got {detail['input']} instead.",
        param=param,
    )


def _too_large(sign: str, detail: ErrorDetails, param: str) -> BadRequest:
    number = _number(detail)
    kind = IntegerTooLarge if number == "integer" else DecimalTooLarge
    return kind(
        f"Invalid '{param}': {number} above maximum value. "
        f"Expected a value {sign} {_limit(detail)}, but got {detail['input']} instead.",
        param=param,
    )


def _limit(detail: ErrorDetails) -> Any:
    # The only or first entry of the context, for all of these errors.
    return next(iter(detail.get("ctx", {}).values()), None)


def _number(detail: ErrorDetails) -> str:
    return "integer" if isinstance(detail["input"], int) and isinstance(_limit(detail), int) else "decimal"


def _too_many(detail: ErrorDetails, param: str) -> BadRequest:
    # pydantic's `actual_length` stops counting after the first entry too many, so the input is counted.
    limit, actual = detail.get("ctx", {}).get("max_length"), len(detail["input"])
    if isinstance(detail["input"], dict):
        return ObjectTooLarge(
            f"Invalid '{param}': too many properties. Expected an object with at most {limit} properties, "
            f"but got an object with {actual} properties instead.",
            param=param,
        )
    return ArrayTooLong(
        f"Invalid '{param}': array too long. Expected an array with maximum length {limit}, "
        f"but got an array with length {actual} instead.",
        param=param,
    )


_EXPLAINED: dict[str, Callable[[ErrorDetails, str], BadRequest]] = {
    _MALFORMED_ID: lambda detail, param: malformed_id(detail["input"], param, detail["msg"]),
    "missing": lambda _, param: MissingParameter(param),
    "extra_forbidden": lambda _, param: UnknownParameter(param),
    ADDITIONAL_FIELD: lambda detail, param: UnknownParameter(param + detail["ctx"]["path"]),
    "literal_error": _literal,
    "union_tag_invalid": _tag,
    "union_tag_not_found": _untagged,
    "greater_than_equal": partial(_too_small, ">="),
    "greater_than": partial(_too_small, ">"),
    "less_than_equal": partial(_too_large, "<="),
    "less_than": partial(_too_large, "<"),
    "string_too_long": lambda detail, param: StringTooLong(
        f"Invalid '{param}': string too long. Expected a string with maximum length {_limit(detail)}, "
        f"but got a string with length {len(detail['input'])} instead.",
        param=param,
    ),
    "string_too_short": lambda _, param: EmptyString(f"Invalid '{param}': empty string.", param=param),
    "string_pattern_mismatch": lambda detail, param: InvalidValue(
        f"Invalid '{param}': string does not match pattern. "
        f"Expected a string that matches the pattern '{_limit(detail)}'.",
        param=param,
    ),
    "too_long": _too_many,
    "too_short": lambda detail, param: EmptyArray(
        f"Invalid '{param}': empty array. Expected an array with minimum length "
        f"{detail.get('ctx', {}).get('min_length')}, but got an empty array instead.",
        param=param,
    ),
}


def json_type(value: object) -> str:
    """Return the JSON type of a value with its article, as in OpenAI's messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"
