"""JSON schemas of clients: limits on time, dialects and references."""

import time
from typing import Any

import pytest

from engine.constraints.json_schema import MAX_OBJECTS, MAX_PATTERNS, mismatch, schema_defect

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SLOW = "^(a+)+$"
_SECONDS = 3.0


def listed(number: int) -> list[dict[str, int]]:
    return [{"a": entry} for entry in range(number)]


def test_a_nested_schema_cannot_select_a_dialect_without_deadlines() -> None:
    part = {"$schema": DRAFT, "type": "string", "pattern": SLOW}
    assert "'$schema'" in (schema_defect({"properties": {"a": part}}) or "")


def test_a_reference_to_the_top_does_not_select_its_dialect() -> None:
    schema = {"$schema": DRAFT, "pattern": SLOW, "items": {"$ref": "#"}}
    assert schema_defect(schema) is None
    started = time.process_time()
    assert mismatch(schema, ["a" * 40 + "!"])
    assert time.process_time() - started < _SECONDS


def test_a_property_may_be_named_dollar_schema() -> None:
    schema = {"properties": {"$schema": {"type": "string"}}}
    assert schema_defect(schema) is None
    assert mismatch(schema, {"$schema": 1}) == "1 is not of type 'string'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"uniqueItems": True}, listed(20_000)),
        ({"items": {"anyOf": [{"required": [f"x{number}"]} for number in range(2_000)] + [{}]}}, listed(20_000)),
        ({"allOf": [{"items": {"not": {"const": f"x{number}"}}} for number in range(2_000)]}, ["a"] * 20_000),
    ],
)
def test_validation_of_a_large_answer_is_limited_in_time(schema: dict[str, Any], document: object) -> None:
    started = time.process_time()
    mismatch(schema, document)
    assert time.process_time() - started < _SECONDS


@pytest.mark.parametrize("unique", [[1, True], ["1", 1], [[1], [2]], [{"a": 1}, {"b": 1}]])
def test_different_entries_are_unique(unique: list[object]) -> None:
    assert mismatch({"uniqueItems": True}, unique) is None


@pytest.mark.parametrize("twice", [[1, 1.0], ["a", "a"], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], [1e300, 1e300]])
def test_equal_entries_are_not_unique(twice: list[object]) -> None:
    assert mismatch({"uniqueItems": True}, twice) == "a list has duplicate entries"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{number}": {"type": "string"} for number in range(MAX_OBJECTS)}},
        {"items": {"anyOf": [{"pattern": "a|b" * (MAX_PATTERNS // 3)}, {"pattern": "c" * 3}]}},
    ],
)
def test_a_schema_that_takes_too_long_to_check_is_refused(schema: dict[str, Any]) -> None:
    assert "has more than" in (schema_defect(schema) or "") or "have more than" in (schema_defect(schema) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"minLength": {}, "a": {"$ref": "#/properties"}}},
        {"properties": {"multipleOf": {}, "a": {"$ref": "#/properties"}}},
        {"properties": {"required": {}, "properties": {"items": False}, "a": {"$ref": "#/properties"}}},
    ],
)
def test_a_reference_to_something_other_than_a_schema_is_reported(schema: dict[str, Any]) -> None:
    assert schema_defect(schema) is None
    for document in ({"a": "text"}, {"a": 1.5}, {"a": {"b": 1}}):
        mismatch(schema, document)
