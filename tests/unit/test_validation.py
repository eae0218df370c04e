"""Validation of bodies returns a typed value, or the message, path and code of the first error."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from core.errors import BadRequest
from core.http.validation import parse_json, path, validate
from core.http.wire import TAG
from core.json.storable_json import MAX_DEPTH, without_nul


class Strict(BaseModel):
    """Base class with the settings of the request schemas."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Circle(Strict):
    """First branch of a union."""

    type: Literal["circle"]
    radius: Annotated[float, Field(gt=0)]


class Square(Strict):
    """Second branch of the union."""

    type: Literal["square"]
    side: int


def tag(value: Any) -> str | None:
    """Return the discriminator of the union."""
    return f"{TAG}{value['type']}" if isinstance(value, dict) and "type" in value else None


Shape = Annotated[
    Annotated[Circle, Tag(f"{TAG}circle")] | Annotated[Square, Tag(f"{TAG}square")],
    Discriminator(tag),
]


class Drawing(Strict):
    """Schema with a field for every kind of error."""

    name: Annotated[str, Field(min_length=1, max_length=5)] = "x"
    count: Annotated[int, Field(ge=1, le=10)] = 1
    ratio: Annotated[float, Field(ge=0.5, lt=2)] = 1.0
    visible: bool = True
    nothing: None = None
    size: Literal["small", "large"] = "small"
    shapes: Annotated[list[Shape], Field(min_length=1, max_length=2)] = [Square(type="square", side=1)]
    labels: Annotated[dict[str, str], Field(max_length=1)] = {}
    odd: int = 1

    @field_validator("odd")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            message = "expected an odd number"
            raise ValueError(message)
        return value


class Titled(Drawing):
    """Schema with a required field."""

    title: str


SQUARE = {"type": "square", "side": 1}
BOUND = "Expected a value"


def defect(values: dict[str, Any], schema: type[BaseModel] = Drawing, *, prefix: str = "") -> BadRequest:
    """Return the error for these values."""
    with pytest.raises(BadRequest) as caught:
        validate(schema, values, prefix=prefix)
    return caught.value


@pytest.mark.parametrize(
    ("values", "param", "expected", "got"),
    [
        ({"name": 1}, "name", "a string", "an integer"),
        ({"name": None}, "name", "a string", "null"),
        ({"count": "1"}, "count", "an integer", "a string"),
        ({"count": 1.5}, "count", "an integer", "a decimal"),
        ({"count": True}, "count", "an integer", "a boolean"),
        ({"ratio": []}, "ratio", "a number", "an array"),
        ({"visible": 0}, "visible", "a boolean", "an integer"),
        ({"nothing": {}}, "nothing", "null", "an object"),
        ({"size": 3}, "size", "a string", "an integer"),
        ({"shapes": {}}, "shapes", "an array", "an object"),
        ({"labels": []}, "labels", "an object", "an array"),
        ({"labels": {"a": 1}}, "labels.a", "a string", "an integer"),
        ({"shapes": ["x"]}, "shapes[0]", "an object", "a string"),
        ({"shapes": [1]}, "shapes[0]", "one of an object or a string", "an integer"),
        ({"shapes": [{**SQUARE, "side": "1"}]}, "shapes[0].side", "an integer", "a string"),
    ],
)
def test_a_wrong_type_is_reported_with_both_types(values: dict[str, Any], param: str, expected: str, got: str) -> None:
    error = defect(values)
    assert (error.param, error.code) == (param, "invalid_type")
    assert error.message == f"Invalid type for '{param}': expected {expected}, but got {got} instead."


@pytest.mark.parametrize(
    ("values", "param", "code", "words"),
    [
        ({"count": 0}, "count", "integer_below_min_value", f"{BOUND} >= 1, but got 0"),
        ({"count": 11}, "count", "integer_above_max_value", f"{BOUND} <= 10, but got 11"),
        ({"ratio": 0.1}, "ratio", "decimal_below_min_value", f"{BOUND} >= 0.5, but got 0.1"),
        ({"ratio": 2.5}, "ratio", "decimal_above_max_value", f"{BOUND} < 2.0, but got 2.5"),
        ({"shapes": [{"type": "circle", "radius": -1.0}]}, "shapes[0].radius", "decimal_below_min_value", "> 0"),
        ({"name": "toolong"}, "name", "string_above_max_length", "maximum length 5, but got a string with length 7"),
        ({"name": ""}, "name", "empty_string", "empty string"),
        ({"shapes": []}, "shapes", "empty_array", "minimum length 1"),
        (
            {"shapes": [SQUARE] * 3},
            "shapes",
            "array_above_max_length",
            "maximum length 2, but got an array with length 3",
        ),
        ({"labels": {"a": "", "b": ""}}, "labels", "object_above_max_properties", "at most 1 properties"),
    ],
)
def test_a_limit_is_reported_with_its_code(values: dict[str, Any], param: str, code: str, words: str) -> None:
    error = defect(values)
    assert (error.param, error.code) == (param, code)
    assert words in error.message


@pytest.mark.parametrize(
    ("values", "param", "message"),
    [
        ({"size": "huge"}, "size", "Invalid value: 'huge'. Supported values are: 'small' and 'large'."),
        (
            {"shapes": [{"type": "line"}]},
            "shapes[0].type",
            "Invalid value: 'line'. Supported values are: 'circle' and 'square'.",
        ),
        ({"odd": 2}, "odd", "Invalid 'odd': expected an odd number."),
    ],
)
def test_an_invalid_enum_value_is_reported_with_the_allowed_values(
    values: dict[str, Any], param: str, message: str
) -> None:
    error = defect(values)
    assert (error.param, error.code, error.message) == (param, "invalid_value", message)


def test_an_object_without_a_type_is_reported() -> None:
    error = defect({"shapes": [{}]})
    assert (error.param, error.code) == ("shapes[0].type", "missing_required_parameter")


def test_a_missing_parameter_is_reported() -> None:
    error = defect({}, Titled)
    assert (error.param, error.code) == ("title", "missing_required_parameter")
    assert error.message == "Missing required parameter: 'title'."


def test_an_unknown_parameter_is_reported_only_without_other_errors() -> None:
    assert defect({"colour": "red"}).code == "unknown_parameter"
    assert defect({"colour": "red", "count": 0}).param == "count"


def test_a_prefix_is_prepended_to_the_path() -> None:
    assert defect({"count": 0}, prefix="drawing.").param == "drawing.count"


def test_a_valid_body_is_returned() -> None:
    assert validate(Drawing, {"shapes": [SQUARE]}).shapes == [Square(type="square", side=1)]


@pytest.mark.parametrize(
    ("loc", "text"),
    [
        (("input",), "input"),
        (("input", 2, f"{TAG}message", "content", 0, f"{TAG}input_text", "text"), "input[2].content[0].text"),
        (("metadata", "key", "[key]"), "metadata.key"),
        ((), ""),
    ],
)
def test_paths_omit_the_branch_of_a_union(loc: tuple[str | int, ...], text: str) -> None:
    assert path(loc) == text


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "invalid_json"), (b"{", "invalid_json"), (b"\xff", "invalid_json"), (b'{"a":NaN}', "invalid_json")],
)
def test_invalid_json_is_rejected(body: bytes, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_json(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("body", "kind"), [(b"[]", "an array"), (b"null", "null"), (b'"x"', "a string"), (b"1", "an integer")]
)
def test_json_other_than_an_object_is_rejected(body: bytes, kind: str) -> None:
    with pytest.raises(BadRequest, match=f"expected a JSON object, but got {kind} instead"):
        parse_json(body)


def nested(levels: int) -> bytes:
    """Return an object with this many levels, itself included."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_the_nesting_depth_of_bodies_is_limited() -> None:
    parse_json(nested(MAX_DEPTH))
    with pytest.raises(BadRequest, match="levels deep"):
        parse_json(nested(MAX_DEPTH + 1))


def test_many_shallow_lists_are_not_deep() -> None:
    assert len(parse_json(b'{"a":[' + b"[]," * 1000 + b"[]]}")["a"]) == 1001


def test_nul_characters_are_removed_from_keys_and_values() -> None:
    assert parse_json(b'{"a\\u0000":["b\\u0000",{"c":"\\u0000"}],"d":1}') == {"a": ["b", {"c": ""}], "d": 1}
    assert without_nul({"n": None, "t": ("x",)}) == {"n": None, "t": ("x",)}
