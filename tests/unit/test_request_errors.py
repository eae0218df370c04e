"""Messages for defects of a request that path and code do not fully describe."""

from typing import Any

import pytest

from core.errors import BadRequest
from responses.schema import parse_create

NO_OBJECT = "schema must be a JSON Schema of 'type: \"object\"', got 'type: "


def defect(**fields: Any) -> BadRequest:
    """Return the error for a request with these fields."""
    with pytest.raises(BadRequest) as caught:
        parse_create({"model": "m", "input": "Hi", **fields})
    return caught.value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metadata": {str(n): "" for n in range(18)}}, "but got an object with 18 properties instead."),
        ({"input": [{"role": "user", "content": "Hi"}] * 10_002}, "but got an array with length 10002 instead."),
    ],
)
def test_an_excess_is_reported_with_its_count(fields: dict[str, Any], words: str) -> None:
    assert defect(**fields).message.endswith(words)


def test_an_invalid_name_is_reported_with_the_pattern() -> None:
    error = defect(tools=[{"type": "function", "name": "a b"}])
    assert error.message == (
        "Invalid 'tools[0].name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    )


def test_a_string_is_not_an_item() -> None:
    expected = "Invalid type for 'input[0]': expected an object, but got a string instead."
    assert defect(input=["Hi"]).message == expected


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nope"}, f'{NO_OBJECT}"nope"\'.'),
        ({"type": "string"}, f'{NO_OBJECT}"string"\'.'),
        ({"type": None}, f"{NO_OBJECT}null'."),
        ({"type": "object", "properties": ["a"]}, "'properties' must be an object."),
        ({"type": "object", "required": "a"}, "'required' must be an array of strings."),
        ({"type": "object", "required": [1]}, "'required' must be an array of strings."),
    ],
)
def test_arguments_are_described_by_the_schema_of_an_object(schema: dict[str, Any], words: str) -> None:
    function = {"type": "function", "name": "f", "parameters": schema}
    error = defect(tools=[function])
    assert (error.param, error.code) == ("tools[0].parameters", "invalid_function_parameters")
    assert error.message == f"Invalid schema for function 'f': {words}"
    space = {"type": "namespace", "name": "n", "description": "d", "tools": [function]}
    assert defect(tools=[space]).param == "tools[0].tools[0].parameters"
    added = {"type": "additional_tools", "role": "developer", "tools": [function]}
    assert defect(input=[added]).param == "input[0].tools[0].parameters"


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"properties": {}, "required": []}])
def test_a_schema_may_omit_its_type(schema: dict[str, Any] | None) -> None:
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    assert parse_create({"model": "m", "input": "Hi", "tools": tools}).tools
