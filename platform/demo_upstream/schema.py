"""Generation of a JSON value that is valid for a JSON schema, with values taken from a text.

Supported: type (also a list of types), properties, required, items, prefixItems, minItems, maxItems, uniqueItems,
enum, const, anyOf, oneOf, allOf, $ref into the same document, default, examples, minimum, maximum, exclusiveMinimum,
exclusiveMaximum, multipleOf, minLength, maxLength, common formats. Other keywords that restrict
values are rejected, so every returned value is valid.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from pydantic import JsonValue

from demo_upstream.text_values import PLACES, TextValues

Node = dict[str, JsonValue]
Value = TypeVar("Value")

# Below this depth only required properties are filled, so that recursive schemas terminate.
DEEP = 4
DEEPEST = 32
MOST_NODES = 5_000
LONGEST_STRING = 10_000
LARGEST_NUMBER = 10**15
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
UNSUPPORTED = frozenset(
    {
        "pattern",
        "not",
        "if",
        "contains",
        "minProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "$dynamicRef",
    }
)
FORMATS = {
    "date-time": "2025-01-01T12:00:00Z",
    "date": "2025-01-01",
    "time": "12:00:00Z",
    "duration": "PT1M",
    "email": "demo@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
TRUE_WORDS = frozenset({"true", "yes", "on", "1"})


class UnfillableError(Exception):
    """No value can be generated for this schema. The message names the part of the schema that prevents it."""


class Fill(Enum):
    """Choice of the properties of an object that are filled."""

    ALL = "all"
    """All properties, for documents."""
    NEEDED = "needed"
    """Properties that are required or named in the text, for function arguments. Others are null where allowed."""


def fill(schema: Node, *, values: TextValues, otherwise: str, extent: Fill) -> JsonValue:
    """Return a value that is valid for `schema`. `otherwise` is used for strings for which the text has no value."""
    return _Filler(schema, values=values, otherwise=otherwise, extent=extent).value(schema, name="", depth=0)


class _Filler:
    def __init__(self, root: Node, *, values: TextValues, otherwise: str, extent: Fill) -> None:
        self._root = root
        self._values = values
        self._otherwise = otherwise
        self._extent = extent
        self._nodes = 0

    def value(self, schema: JsonValue, *, name: str, depth: int) -> JsonValue:
        """Return a value for a node of the schema. `name` is the property that has this schema."""
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > DEEPEST:
            raise UnfillableError("the schema never ends")
        node = self._resolved(schema)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self._chosen(node["enum"], name)
        branches = _listed(node.get("anyOf", node.get("oneOf")))
        if branches:
            rest = _without(node, "anyOf", "oneOf")
            return self.value(_merged(rest, self._branch(branches, name, depth)), name=name, depth=depth + 1)
        kinds = _kinds(node)
        if "null" in kinds and len(kinds) > 1:
            kinds = ["null"] if self._prefers_null(name, depth) else [kind for kind in kinds if kind != "null"]
        match kinds[0]:
            case "object":
                return self._object(node, depth)
            case "array":
                return self._array(node, name, depth)
            case "string":
                return self._string(node, name)
            case "integer" | "number" as kind:
                return self._number(node, name, whole=kind == "integer")
            case "boolean":
                named = self._values.named(name)
                return node.get("default") is True if named is None else named.lower() in TRUE_WORDS
            case "null":
                return None
        raise UnfillableError(f"there is no type {kinds[0]!r}")

    def _resolved(self, schema: JsonValue, *, depth: int = 0) -> Node:
        """Return the node with references resolved and `allOf` merged; `true` becomes an empty schema."""
        node = {} if schema is True else schema
        for _ in range(DEEPEST - depth):
            if not isinstance(node, dict):
                raise UnfillableError("a schema must be an object")
            if "$ref" in node:
                node = _merged(_without(node, "$ref"), self._referenced(node["$ref"]))
            elif "allOf" in node:
                parts = _listed(node["allOf"])
                node = _without(node, "allOf")
                for part in parts:
                    node = _merged(node, self._resolved(part, depth=depth + 1))
            else:
                for keyword in UNSUPPORTED.intersection(node):
                    raise UnfillableError(f"it does not know the keyword {keyword!r}")
                return node
        raise UnfillableError("its references run in a circle")

    def _referenced(self, reference: JsonValue) -> JsonValue:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnfillableError(f"the reference {reference!r} leaves the schema")
        found: JsonValue = dict(self._root)
        for step in reference.lstrip("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise UnfillableError(f"the reference {reference!r} leads nowhere")
            found = found[key]
        return found

    def _branch(self, branches: list[JsonValue], name: str, depth: int) -> JsonValue:
        nulls = [branch for branch in branches if self._resolved(branch).get("type") == "null"]
        if nulls and self._prefers_null(name, depth):
            return nulls[0]
        real = [branch for branch in branches if branch not in nulls] or branches
        if depth > DEEP:
            real = [branch for branch in real if not (isinstance(branch, dict) and "$ref" in branch)] or real
        return real[0]

    def _prefers_null(self, name: str, depth: int) -> bool:
        return depth > DEEP or (self._extent is Fill.NEEDED and self._values.named(name) is None)

    def _chosen(self, enum: JsonValue, name: str) -> JsonValue:
        choices = _listed(enum)
        if not choices:
            raise UnfillableError("an enum needs values")
        named = self._values.named(name)
        for choice in choices:
            if named is not None and str(choice).lower() == named.lower():
                return choice
        mentioned = self._values.mentioned([choice for choice in choices if isinstance(choice, str)])
        return choices[0] if mentioned is None else mentioned

    def _object(self, node: Node, depth: int) -> JsonValue:
        properties = node.get("properties", {})
        if not isinstance(properties, dict):
            raise UnfillableError("'properties' must be an object")
        required = [key for key in _listed(node.get("required")) if isinstance(key, str)]
        optional = {
            key for key in properties if self._extent is Fill.ALL or self._values.named(key) is not None
        }  # fmt: skip
        wanted = [key for key in properties if key in required or (depth <= DEEP and key in optional)]
        wanted += [key for key in required if key not in properties]
        return {key: self.value(properties.get(key, True), name=key, depth=depth + 1) for key in wanted}

    def _array(self, node: Node, name: str, depth: int) -> JsonValue:
        leading = _listed(node.get("prefixItems"))
        values = [self.value(part, name=name, depth=depth + 1) for part in leading]
        least, most = _size(node, "minItems", 0), _size(node, "maxItems", math.inf)
        if node.get("items") is not False:
            items = self._resolved(node.get("items", True))
            if depth <= DEEP and not set(items) - {"type", "title", "description"}:
                # An array of plain strings or numbers gets all remaining strings or numbers of the text.
                offered = self._values.remaining(str(items.get("type")))
                values += offered[: int(min(most - len(values), len(offered)))]
            while len(values) < max(least, 0 if depth > DEEP or leading else min(1, most)):
                values.append(self.value(items, name=name, depth=depth + 1))
        if node.get("uniqueItems") is True:
            values = [value for position, value in enumerate(values) if value not in values[:position]]
        if not least <= len(values) <= most:
            raise UnfillableError(f"the array {name!r} cannot have the size that it needs")
        return values

    def _string(self, node: Node, name: str) -> JsonValue:
        text = _first(
            lambda: self._values.named(name),
            lambda: _given(node, str),
            lambda: FORMATS.get(str(node.get("format"))),
            lambda: self._values.place() if name.lower() in PLACES else None,
            self._values.quoted,
            lambda: self._values.subject() if self._extent is Fill.NEEDED else None,
            lambda: self._otherwise,
        )
        least, most = _size(node, "minLength", 0), _size(node, "maxLength", math.inf)
        if text is None or least > min(most, LONGEST_STRING):
            raise UnfillableError(f"the string {name!r} cannot have the length that it needs")
        return text[: int(min(most, len(text)))].ljust(int(least), ".")

    def _number(self, node: Node, name: str, *, whole: bool) -> JsonValue:
        kind = int if whole else float
        wished = _first(
            lambda: _read(kind, self._values.named(name)),
            lambda: _given(node, kind),
            lambda: _given(node, int),
            lambda: self._values.number(int if whole else object),
        )
        number = _nearest(node, wished=wished or 0, whole=whole)
        return int(number) if whole else number


def _nearest(node: Node, *, wished: float, whole: bool) -> float:
    """Return the number nearest to `wished` that the bounds of a schema allow."""
    bounds = {
        keyword: limit
        for keyword in NUMBER_KEYWORDS
        if isinstance(limit := node.get(keyword), int | float) and not isinstance(limit, bool)
        if abs(limit) <= LARGEST_NUMBER
    }
    step = bounds.pop("multipleOf", None) or None
    wished = wished if abs(wished) <= LARGEST_NUMBER else 0
    # The wished number, the limits, the multiples around them, and the mean of the limits.
    candidates = [sum(bounds.values()) / max(len(bounds), 1)]
    for anchor in (wished, *bounds.values()):
        below = math.floor(anchor / (step or 1)) * (step or 1)
        candidates += [anchor, below - (step or 1), below, below + (step or 1)]
    allowed = [
        number
        for number in candidates
        if bounds.get("minimum", -math.inf) <= number <= bounds.get("maximum", math.inf)
        and bounds.get("exclusiveMinimum", -math.inf) < number < bounds.get("exclusiveMaximum", math.inf)
        and (step is None or math.isclose(number / step, round(number / step), abs_tol=1e-9))
        and (not whole or number == int(number))
    ]
    if not allowed:
        raise UnfillableError("no number is within its bounds")
    return min(allowed, key=lambda number: abs(number - wished))


def _kinds(node: Node) -> list[str]:
    """Return the types that a node allows. If it has no `type`, they are derived from its other keywords."""
    declared = node.get("type")
    kinds = [declared] if isinstance(declared, str) else [kind for kind in _listed(declared) if isinstance(kind, str)]
    if kinds:
        return kinds
    if "properties" in node or "required" in node:
        return ["object"]
    if "items" in node or "prefixItems" in node:
        return ["array"]
    return ["number"] if any(keyword in node for keyword in NUMBER_KEYWORDS) else ["string"]


def _merged(first: Node, second: JsonValue) -> Node:
    """Return a schema with the constraints of both; if they conflict, the second wins."""
    if second is True:
        return dict(first)
    if not isinstance(second, dict):
        raise UnfillableError("a schema must be an object")
    merged = {**first, **second}
    for keyword in ("properties", "required"):
        one, two = first.get(keyword), second.get(keyword)
        if isinstance(one, dict) and isinstance(two, dict):
            merged[keyword] = {**one, **two}
        elif isinstance(one, list) and isinstance(two, list):
            merged[keyword] = [*one, *two]
    return merged


def _without(node: Node, *keywords: str) -> Node:
    return {key: value for key, value in node.items() if key not in keywords}


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _size(node: Node, keyword: str, otherwise: float) -> float:
    size = node.get(keyword)
    return size if isinstance(size, int) and size >= 0 else otherwise


def _given(node: Node, kind: type[Value]) -> Value | None:
    """Return the default or example of the schema if it has the right type."""
    for proposed in (node.get("default"), *_listed(node.get("examples"))):
        if isinstance(proposed, kind) and not isinstance(proposed, bool):
            return proposed
    return None


def _read(kind: Callable[[str], float], text: str | None) -> float | None:
    try:
        number = None if text is None else kind(text)
    except ValueError:
        return None
    return number if number is not None and number == number else None


def _first(*sources: Callable[[], Value | None]) -> Value | None:
    """Return the value of the first source that has one."""
    # Later sources are not called, because each call consumes a value of the text.
    return next((value for source in sources if (value := source()) is not None), None)
