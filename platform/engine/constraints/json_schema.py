"""Validation of answers against the response format, and of JSON schemas themselves.

An upstream without constrained decoding only tries to follow a format. An answer that violates a strict format (not
JSON, or not valid against the schema) is never reported as completed.

Schemas are untrusted input: validation must neither fetch anything (`$ref`) nor run for long. Therefore every keyword
checks a deadline, and no part of a schema may select keywords other than the ones defined here.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import orjson
import regex
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from engine.constraints.ecmascript import readable
from engine.events.types import Body

_MAX_REASON = 200
# Time limit per answer: mutually recursive references or a pathological pattern can make a small schema very slow.
_CHECK_SECONDS = 0.5
# Limits of one schema, which bound the time to check it.
MAX_OBJECTS = 5_000
MAX_PATTERNS = 10_000
_NO_SCHEMA = "it refers to a part that is not a schema"
_TOO_LONG = "it takes too long to check"
_META_SCHEMA = jsonschema_rs.Draft202012Validator(Draft202012Validator.META_SCHEMA)
_deadline: ContextVar[float] = ContextVar("_deadline")


async def defect(items: Sequence[Body], response_format: dict[str, Any] | None) -> str | None:
    """Return how the text of a finished turn violates the response format; None if it does not.

    `response_format` has the shape of chat completions. A refusal need not match it. The turn has no calls.
    """
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    if response_format is None or any(part["type"] == "refusal" for part in parts):
        return None
    if not parts:
        return "The model wrote no answer in the format that was required."
    try:
        document = orjson.loads("".join(part["text"] for part in parts))
    except orjson.JSONDecodeError:
        return "The model's answer is not JSON, as its format requires."
    promised = response_format.get("json_schema", {})
    if not promised.get("strict"):
        return None
    violation = await asyncio.to_thread(mismatch, promised["schema"], document)
    return f"The model's answer does not match the schema of its format: {violation}" if violation else None


def schema_defect(schema: dict[str, Any]) -> str | None:
    """Return the defect of a JSON schema; None if it is acceptable."""
    try:
        if defect := _too_large(schema):
            return defect
        # For 5,000 objects the Python library takes 1 s instead of 2 ms, so it only checks an invalid schema, for its
        # message.
        if not _META_SCHEMA.is_valid(schema):
            Draft202012Validator.check_schema(schema)
        return next((defect for node in _nodes(schema) if (defect := _forbidden(node, schema))), None)
    except SchemaError as error:
        return error.message[:_MAX_REASON]
    except RecursionError:
        return "it is nested too deeply"


def mismatch(schema: dict[str, Any], document: Any) -> str | None:
    """Return how a document violates a schema; None if it is valid."""
    # When a reference leads back to the top, jsonschema would follow `$schema` to a dialect whose keywords have no
    # deadline.
    plain = {key: value for key, value in schema.items() if key != "$schema"}
    validator: Validator = _Checker(plain, registry=Registry())
    _deadline.set(time.monotonic() + _CHECK_SECONDS)
    try:
        error: ValidationError | None = next(validator.iter_errors(document), None)
    except RecursionError:
        return "it is nested too deeply"
    except TimeoutError:
        return _TOO_LONG
    except Unresolvable:
        return "it has a reference that cannot be resolved"
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        # A reference may lead to a part that is not a schema, such as a list of enum values.
        return _NO_SCHEMA
    return error.message[:_MAX_REASON] if error else None


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    # Iterative, because a schema may be nested more deeply than the recursion limit.
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _too_large(schema: dict[str, Any]) -> str | None:
    patterns = 0
    for count, node in enumerate(_nodes(schema), start=1):
        patterns += len(pattern) if isinstance(pattern := node.get("pattern"), str) else 0
        if count > MAX_OBJECTS:
            return f"it has more than {MAX_OBJECTS} objects"
        if patterns > MAX_PATTERNS:
            return f"its patterns have more than {MAX_PATTERNS} characters"
    return None


def _forbidden(node: Mapping[str, Any], schema: dict[str, Any]) -> str | None:
    if "$dynamicRef" in node:
        return "'$dynamicRef' is not permitted"
    if node is not schema and isinstance(node.get("$schema"), str):
        return "'$schema' is only permitted at the top level"
    if isinstance(reference := node.get("$ref"), str) and not _is_resolvable(reference, schema):
        return f"'$ref' must refer to a part of the same schema, and {reference[:60]!r} does not"
    if isinstance(node.get("patternProperties"), dict):
        return "'patternProperties' is not permitted"
    if isinstance(pattern := node.get("pattern"), str):
        try:
            readable(pattern)
        except regex.error:
            return f"{pattern[:60]!r} is not a regular expression"
    return None


def _is_resolvable(reference: str, schema: Any) -> bool:
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    for step in reference.removeprefix("#/").split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema.get(name) if isinstance(schema, dict) else None
    return isinstance(schema, bool) or (isinstance(schema, dict) and "$schema" not in schema)


def _remaining() -> float:
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _pattern(_: Validator, pattern: str, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    if not isinstance(instance, str):
        return
    if not regex.search(readable(pattern), instance, timeout=_remaining(), concurrent=True):
        yield ValidationError(f"{instance[:60]!r} does not match {pattern[:60]!r}")


def _unique(_: Validator, unique: object, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    # The library compares every pair of entries, which takes too long for large lists.
    if unique and isinstance(instance, list):
        distinct = {json.dumps(_whole(entry), sort_keys=True) for entry in instance}
        if len(distinct) < len(instance):
            yield ValidationError("a list has duplicate entries")


def _whole(value: Any) -> Any:
    # JSON schema regards 1.0 and 1 as equal.
    match value:
        case dict():
            return {key: _whole(entry) for key, entry in value.items()}
        case list():
            return [_whole(entry) for entry in value]
        case float() if value.is_integer():
            return int(value)
    return value


_Keyword = Callable[[Validator, Any, Any, Mapping[str, Any]], Iterable[ValidationError] | None]


def _timed(keyword: _Keyword) -> _Keyword:
    def check(validator: Validator, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        _remaining()
        yield from keyword(validator, value, instance, schema) or ()

    return check


_KEYWORDS: dict[str, _Keyword] = {**Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique}
_Checker = extend(  # type: ignore[no-untyped-call]  # in its stubs
    Draft202012Validator, {name: _timed(keyword) for name, keyword in _KEYWORDS.items()}
)
