"""Integers of requests: every one has bounds, in the declarations of all endpoints, also those of forms and lines."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import QueryDict
from pydantic import BaseModel

from core.errors import LimitExceeded
from core.http.query import integer, row_number
from core.http.validation import validate
from core.http.wire import MAX_INTEGER, Wire
from gateway.audio.schema import CreateTranscription, CreateTranslation
from gateway.batches.requests import CreateBatch
from responses.schema.images import EditImage
from server.api_urls import ENDPOINTS


def subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def integers(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the integers of a core schema with their places."""
    if isinstance(schema, dict):
        if schema.get("type") == "int":
            yield path, schema
        for key, entry in schema.items():
            yield from integers(entry, f"{path}.{key}")
    elif isinstance(schema, list | tuple):
        for index, entry in enumerate(schema):
            yield from integers(entry, f"{path}[{index}]")


def bodies() -> set[type[BaseModel]]:
    declared = {one.body for one in ENDPOINTS if isinstance(one.body, type)}
    return {*declared, CreateBatch, CreateTranscription, CreateTranslation, EditImage, *subclasses(Wire)}


def test_every_integer_of_a_request_has_bounds() -> None:
    found = 0
    for body in bodies():
        for path, schema in integers(body.__pydantic_core_schema__, body.__name__):
            found += 1
            assert schema.get("ge", schema.get("gt")) is not None, path
            assert schema.get("le", schema.get("lt")) is not None, path
            assert schema.get("le", 0) < 2**63, path
    assert found > 100


def test_every_body_of_an_endpoint_is_a_wire_object() -> None:
    assert [one.path for one in ENDPOINTS if isinstance(one.body, type) and not issubclass(one.body, Wire)] == []


class Sample(Wire):
    number: int | None = None
    numbers: dict[str, list[int]] = {}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (MAX_INTEGER + 1, "integer_above_max_value"),
        (10**15, "integer_above_max_value"),
        (2**64 - 1, "integer_above_max_value"),
        # Numbers of more than 64 bits, as the JSON parser reads them.
        (1e30, "integer_above_max_value"),
        (-1e30, "integer_below_min_value"),
        (-MAX_INTEGER - 1, "integer_below_min_value"),
    ],
)
def test_a_large_integer_is_refused_with_the_code_of_its_side(number: float, code: str) -> None:
    with pytest.raises(LimitExceeded) as refused:
        validate(Sample, {"number": number})
    assert (refused.value.code, refused.value.param) == (code, "number")
    with pytest.raises(LimitExceeded) as refused:
        validate(Sample, {"numbers": {"a": [1, number]}})
    assert (refused.value.code, refused.value.param) == (code, "numbers.a[1]")


def test_the_largest_integers_are_accepted() -> None:
    assert validate(Sample, {"number": MAX_INTEGER}).number == MAX_INTEGER
    assert validate(Sample, {"number": -MAX_INTEGER}).number == -MAX_INTEGER


@pytest.mark.parametrize("digits", [10, 19, 30, 5000])
def test_a_query_parameter_of_many_digits_is_above_its_maximum(digits: int) -> None:
    with pytest.raises(LimitExceeded) as refused:
        integer(QueryDict(f"limit={'9' * digits}"), "limit", least=1, most=100)
    assert refused.value.code == "integer_above_max_value"
    with pytest.raises(LimitExceeded) as refused:
        integer(QueryDict(f"limit=-{'9' * digits}"), "limit", least=1, most=100)
    assert refused.value.code == "integer_below_min_value"


def test_no_row_has_a_number_of_many_digits() -> None:
    assert [row_number(text) for text in ("12", "9" * 30, "9" * 5000, "x", "", "²")] == [
        12,
        None,
        None,
        None,
        None,
        None,
    ]
