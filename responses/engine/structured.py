"""Whether an answer keeps to the format that was asked for.

An upstream that cannot constrain its model only tries. What it tried is never called completed when it is not what a
strict format promised: not JSON, or not of the schema. Source: section 3.4 of the API surface specification.

Schemas come from callers, so checking them must neither fetch anything (`$ref`) nor take for ever (`pattern`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import orjson
import regex
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from responses.engine.events import Body

_MAX_REASON = 200
# For one answer: references that refer to one another can make a small schema endless, and so can a pattern.
_CHECK_SECONDS = 0.5
_TOO_LONG = "it takes too long to check"
_deadline: ContextVar[float] = ContextVar("_deadline")


def defect(items: Sequence[Body], response_format: dict[str, Any] | None) -> str | None:
    """What is wrong with the text of a finished turn, in a sentence; None where nothing was promised or it was kept.

    `response_format` has the shape of chat completions. A refusal, or a turn of calls only, promises no document.
    """
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    if response_format is None or not parts or any(part["type"] == "refusal" for part in parts):
        return None
    try:
        document = orjson.loads("".join(part["text"] for part in parts))
    except orjson.JSONDecodeError:
        return "The model's answer is not JSON, which its format promised."
    promised = response_format.get("json_schema", {})
    wrong = mismatch(promised["schema"], document) if promised.get("strict") else None
    return f"The model's answer does not match the schema of its format: {wrong}" if wrong else None


def schema_defect(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema itself, in a sentence; None where nothing is."""
    try:
        Draft202012Validator.check_schema(schema)
        return next((wrong for node in _nodes(schema) if (wrong := _refused(node, schema))), None)
    except SchemaError as wrong:
        return wrong.message[:_MAX_REASON]
    except RecursionError:
        return "it is nested too deeply"


def mismatch(schema: dict[str, Any], document: Any) -> str | None:
    """How a document differs from a schema, in a sentence; None where it does not."""
    validator: Validator = _Checker(schema, registry=Registry())
    _deadline.set(time.monotonic() + _CHECK_SECONDS)
    try:
        error: ValidationError | None = next(validator.iter_errors(document), None)
    except RecursionError:
        return "it is nested too deeply"
    except TimeoutError:
        return _TOO_LONG
    except Unresolvable:
        return "it points at something that it does not contain"
    return error.message[:_MAX_REASON] if error else None


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a schema."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _refused(node: Mapping[str, Any], schema: dict[str, Any]) -> str | None:
    if "$dynamicRef" in node:
        return "'$dynamicRef' is not permitted"
    if isinstance(reference := node.get("$ref"), str) and not _leads_somewhere(reference, schema):
        return f"'$ref' must point at a part of the schema itself, and {reference[:60]!r} does not"
    if isinstance(node.get("patternProperties"), dict):
        return "'patternProperties' is not permitted"
    if isinstance(pattern := node.get("pattern"), str):
        try:
            regex.compile(pattern)
        except regex.error:
            return f"{pattern[:60]!r} is not a regular expression"
    return None


def _leads_somewhere(reference: str, schema: Any) -> bool:
    """Whether a JSON pointer leads to a schema in the document."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    for step in reference.removeprefix("#/").split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema.get(name) if isinstance(schema, dict) else None
    return isinstance(schema, dict | bool)


def _remaining() -> float:
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _pattern(_: Validator, pattern: str, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    if isinstance(instance, str) and regex.search(pattern, instance, timeout=_remaining()) is None:
        yield ValidationError(f"{instance[:60]!r} does not match {pattern[:60]!r}")


def _reference(
    validator: Validator, reference: str, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    _remaining()
    yield from Draft202012Validator.VALIDATORS["$ref"](validator, reference, instance, schema)


_Checker = extend(Draft202012Validator, {"pattern": _pattern, "$ref": _reference})  # type: ignore[no-untyped-call]  # in its stubs
