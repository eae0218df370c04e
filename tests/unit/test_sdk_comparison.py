"""Comparison of the SDK's types with the schemas of the API."""

from collections.abc import Iterable
from typing import Any, Literal, Required, TypedDict

import pytest
from openai import Omit

from server.reference.sdk_comparison import Comparison, gaps
from server.reference.sdk_decisions import Decision


class Text(TypedDict, total=False):
    type: Required[Literal["text"]]
    text: Required[str]
    verbosity: Literal["low", "high"] | None


class Image(TypedDict, total=False):
    type: Required[Literal["image"]]
    parts: "Iterable[Text | Image]"


STRING = {"type": "string"}
TEXT = {"type": "object", "properties": {"type": {"const": "text"}, "text": STRING, "verbosity": STRING}}
IMAGE = {
    "type": "object",
    "properties": {
        "type": {"const": "image"},
        "parts": {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "null"}]}},
    },
}


def differences(kind: Any, *schemas: dict[str, Any]) -> list[str]:
    return list(Comparison({"Text": TEXT}).of_value(kind, schemas, "value"))


@pytest.mark.parametrize(
    ("kind", "schemas", "expected"),
    [
        (str | Omit, [STRING], []),
        (Literal["a", "b"] | Omit, [{"enum": ["a"]}], ["value=b"]),
        (Literal["a"], [{"const": "b"}, {"enum": ["a"]}], []),
        (Literal["a"], [STRING], []),
        (Literal[True, False], [{"type": ["boolean", "null"]}], []),
        (Literal[True], [{"const": False}], ["value=true"]),
        (Text | None, [TEXT], []),
        (Text, [{"type": "object", "properties": {"type": {"const": "text"}, "text": STRING}}], ["value.verbosity"]),
        (Text | Image, [TEXT], ["value[image]"]),
        (Text, [STRING], ["value"]),
        (Text, [{"type": "object", "additionalProperties": True}], []),
        (list[Text], [STRING], ["value[]"]),
        (Image | Text, [IMAGE, TEXT], ["value[image].parts[][image]"]),
        (Text, [{}], []),
    ],
)
def test_types_are_compared_with_schemas(kind: Any, schemas: list[dict[str, Any]], expected: list[str]) -> None:
    assert differences(kind, *schemas) == expected


def test_parameters_are_looked_for_in_query_and_body() -> None:
    form = {
        "multipart/form-data": {"schema": {"type": "object", "properties": {"file": STRING, "expires[at]": STRING}}}
    }
    operation = {"parameters": [{"name": "include[]", "schema": STRING}], "requestBody": {"content": form}}
    parameters = {"file": str, "expires": Text, "include": list[str], "purpose": str}
    assert list(Comparison({}).of_call(parameters, operation)) == ["include[]", "purpose"]


@pytest.mark.slow
def test_missing_endpoints_parameters_values_and_beta_features_are_found() -> None:
    found = set(gaps())
    assert {
        "POST /videos",
        "GET /videos",
        "POST /responses: multi_agent",
        "POST /batches: endpoint=/v1/videos",
    } <= found
    assert not any(gap.startswith("GET /responses/{response_id}: include") for gap in found)


def test_a_decision_covers_the_differences_that_its_patterns_describe() -> None:
    decision = Decision(("POST /a: tools[][x]", "* /b/*"), "why")
    assert [decision.covers(gap) for gap in ("POST /a: tools[][x]", "GET /b/c", "POST /a: tools[][xy]", "GET /b")] == [
        True,
        True,
        False,
        False,
    ]
