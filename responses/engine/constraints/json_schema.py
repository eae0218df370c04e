"""Whether an answer keeps to the format that was asked for.

An upstream that cannot constrain its model only tries. What it tried is never called completed when it is not what a
strict format promised: not JSON, or not of the schema. Source: section 3.4 of the API surface specification.

Schemas come from callers, so checking them must neither fetch anything (`$ref`) nor take for ever: every keyword looks
at the clock, and nothing in a schema may lead away from the keywords of here.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from responses.engine.events.types import Body

_MAX_REASON = 200
# For one answer: references that refer to one another can make a small schema endless, and so can a pattern.
_CHECK_SECONDS = 0.5
# Of one schema, which is checked while others wait.
MAX_OBJECTS = 5_000
MAX_PATTERNS = 10_000
_NO_SCHEMA = "it points at a part that is no schema"
_TOO_LONG = "it takes too long to check"
_deadline: ContextVar[float] = ContextVar("_deadline")


async def defect(items: Sequence[Body], response_format: dict[str, Any] | None) -> str | None:
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
    if not promised.get("strict"):
        return None
    wrong = await asyncio.to_thread(mismatch, promised["schema"], document)
    return f"The model's answer does not match the schema of its format: {wrong}" if wrong else None


def schema_defect(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema itself, in a sentence; None where nothing is."""
    try:
        if wrong := _too_large(schema):
            return wrong
        Draft202012Validator.check_schema(schema)
        return next((wrong for node in _nodes(schema) if (wrong := _refused(node, schema))), None)
    except SchemaError as wrong:
        return wrong.message[:_MAX_REASON]
    except RecursionError:
        return "it is nested too deeply"


def mismatch(schema: dict[str, Any], document: Any) -> str | None:
    """How a document differs from a schema, in a sentence; None where it does not."""
    # A `$schema` would be obeyed wherever a reference leads back to the top: with keywords that know no deadline.
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
        return "it points at something that it does not contain"
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        # A reference may lead to a part that is no schema, though it looks like one.
        return _NO_SCHEMA
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


def _too_large(schema: dict[str, Any]) -> str | None:
    patterns = 0
    for count, node in enumerate(_nodes(schema), start=1):
        patterns += len(pattern) if isinstance(pattern := node.get("pattern"), str) else 0
        if count > MAX_OBJECTS:
            return f"it has more than {MAX_OBJECTS} objects"
        if patterns > MAX_PATTERNS:
            return f"its patterns have more than {MAX_PATTERNS} characters"
    return None


def _refused(node: Mapping[str, Any], schema: dict[str, Any]) -> str | None:
    if "$dynamicRef" in node:
        return "'$dynamicRef' is not permitted"
    if node is not schema and isinstance(node.get("$schema"), str):
        return "'$schema' is permitted at the top only"
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
    return isinstance(schema, bool) or (isinstance(schema, dict) and "$schema" not in schema)


def _remaining() -> float:
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _pattern(_: Validator, pattern: str, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not regex.search(pattern, instance, timeout=_remaining(), concurrent=True):
        yield ValidationError(f"{instance[:60]!r} does not match {pattern[:60]!r}")


def _unique(_: Validator, unique: object, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    """Without comparing each with each."""
    if unique and isinstance(instance, list) and len({_canonical(entry) for entry in instance}) < len(instance):
        yield ValidationError("a list has an entry twice")


def _canonical(value: Any) -> str:
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    """With 1.0 as 1, which it equals."""
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
