"""Documents that the demo upstream writes for a JSON schema: valid, and filled from the user's text."""

import json
import re
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from demo_upstream import schema
from demo_upstream.schema import Fill, UnfillableError
from demo_upstream.text_values import TextValues
from tests.support.demo_upstream import Demo, talking


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


def wants(schema: object) -> dict[str, Any]:
    """Return the response format for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


async def document(demo: Demo, schema: object, *, asked: str = "Ada is 36") -> Any:
    """Return the document that the demo writes."""
    return orjson.loads(await demo.ask(asked, response_format=wants(schema)))


async def defect(demo: Demo, schema: object) -> str:
    """Return the reason why the demo writes no document for a schema."""
    answer = await demo.refusal("hi", response_format=wants(schema))
    assert (answer.status, answer.json["error"]["param"]) == (400, "response_format.json_schema.schema")
    return str(answer.json["error"]["message"])


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    city: str
    lines: list[str] = Field(min_length=2, max_length=3)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=3, max_length=12)
    age: int = Field(ge=18, lt=100)
    height: float = Field(gt=0.5, le=2.5, multiple_of=0.25)
    address: Address | None
    colour: Colour
    kind: Literal["person"]
    born: AwareDatetime
    id: UUID
    pair: tuple[int, str]
    tags: set[int]
    friend: "Person | None"
    work: Address | int


async def test_the_document_is_valid_for_a_complex_model(demo: Demo) -> None:
    person = Person.model_validate(await document(demo, Person.model_json_schema()))
    assert person.kind == "person"
    assert person.address is not None
    assert person.friend is not None


class Tree(BaseModel):
    value: int
    children: list["Tree"]
    parent: "Tree | None" = None


async def test_a_recursive_schema_gives_a_finite_document(demo: Demo) -> None:
    tree = Tree.model_validate(await document(demo, Tree.model_json_schema()))
    assert len(tree.children) == 1
    assert tree.parent is not None


async def test_a_long_chain_of_optional_properties_gives_a_finite_document(demo: Demo) -> None:
    chain = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert str(await document(demo, chain)).count("next") == 5


async def test_the_demo_fills_strings_with_the_text_and_numbers_from_it(demo: Demo) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    assert await document(demo, schema) == {"name": "Ada is 36", "age": 36}


async def test_the_demo_fills_places_quotations_and_named_values(demo: Demo) -> None:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in ("city", "title", "mood")}}
    asked = 'In Rome she read "Emma", mood=happy'
    assert await document(demo, schema, asked=asked) == {"city": "Rome", "title": "Emma", "mood": "happy"}


async def test_an_empty_text_gives_made_up_values(demo: Demo) -> None:
    assert await document(demo, {"type": "string"}, asked="") == "demo"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "Ada is 36"),
        ({"type": "string"}, "Ada is 36"),
        ({"type": "string", "maxLength": 3}, "Ada"),
        ({"type": "string", "minLength": 11}, "Ada is 36.."),
        ({"type": "string", "format": "email"}, "demo@example.com"),
        ({"type": "integer"}, 36),
        ({"type": "integer", "maximum": 10}, 10),
        ({"type": "integer", "minimum": 40, "multipleOf": 7}, 42),
        ({"type": "integer", "exclusiveMaximum": 36, "multipleOf": 5}, 35),
        ({"type": "integer", "multipleOf": 0}, 36),
        ({"type": "integer", "minimum": 10**400}, 36),
        ({"type": "integer", "default": 10**400}, 0),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "number", "default": 5}, 5),
        ({"type": "number", "examples": [2.5]}, 2.5),
        ({"minimum": 1}, 36),
        ({"type": "boolean"}, False),
        ({"type": "boolean", "default": True}, True),
        ({"type": "null"}, None),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"enum": [3, "x"]}, 3),
        ({"enum": ["Bob", "ada"]}, "ada"),
        ({"type": ["null", "integer"]}, 36),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 36),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 36),
        ({"type": "array", "items": {"type": "integer"}}, [36]),
        ({"items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, []),
        ({"type": "array", "items": False}, []),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, [1]),
        ({"prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, [36, False]),
        ({"required": ["x"]}, {"x": "Ada is 36"}),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, {"a": 1, "b": 2}),
        ({"allOf": [True, {"required": ["a"]}, {"required": ["b"]}]}, {"a": "Ada is 36", "b": "Ada is 36"}),
        ({"$ref": "#/definitions/a~1b"}, 1),
        ({"$ref": "#/definitions/any", "maxLength": 3}, "Ada"),
    ],
)
async def test_the_demo_makes_a_valid_value(demo: Demo, schema: object, expected: object) -> None:
    wrapped = {"type": "object", "properties": {"value": schema}, "definitions": {"a/b": {"const": 1}, "any": True}}
    assert await document(demo, wrapped) == {"value": expected}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "x"}, "the keyword 'pattern'"),
        ({"not": {"type": "string"}}, "the keyword 'not'"),
        ({"type": "decimal"}, "no type 'decimal'"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no number is within its bounds"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "cannot have the length"),
        ({"type": "string", "minLength": 10**9}, "cannot have the length"),
        ({"type": "array", "minItems": 10**9}, "the schema never ends"),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True}, "cannot have the size"),
        ({"enum": []}, "an enum needs values"),
        ({"properties": []}, "'properties' must be an object"),
        ({"properties": {"a": 5}}, "a schema must be an object"),
        ({"allOf": [5]}, "a schema must be an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": 5}}, "a schema must be an object"),
        ({"anyOf": [{"type": "string"}], "$ref": "#/nowhere"}, "leads nowhere"),
        ({"$ref": "https://example.com/schema"}, "leaves the schema"),
        ({"$ref": "#"}, "references run in a circle"),
        ({"allOf": [{"$ref": "#"}]}, "references run in a circle"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "the schema never ends"),
    ],
)
async def test_the_demo_refuses_a_schema_that_it_cannot_fill(demo: Demo, schema: object, reason: str) -> None:
    assert reason in await defect(demo, schema)


KEYWORDS = re.findall(
    r"\S+",
    "type enum const properties required items prefixItems minItems maxItems uniqueItems anyOf oneOf allOf $ref default"
    " examples minimum maximum exclusiveMinimum multipleOf minLength maxLength format",
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["string", "integer", "number", "object", "array", "null", "#", "#/x", "a"])
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS), st.sampled_from(["", "a=1 'b' 2.5 in Rome", "x 7"]))
def test_any_schema_is_filled_or_refused(wild: dict[str, Any], text: str) -> None:
    for extent in Fill:
        try:
            filled = schema.fill(wild, values=TextValues(text), otherwise=text, extent=extent)
        except UnfillableError:
            continue
        assert json.loads(json.dumps(filled, allow_nan=False)) == filled


async def test_a_schema_takes_precedence_over_an_ending(demo: Demo) -> None:
    history = [{"role": "system", "content": "Always end with ahoy."}, {"role": "user", "content": "say hi"}]
    text = await demo.ask(history, response_format=wants({"type": "object", "properties": {"a": {"type": "string"}}}))
    assert orjson.loads(text) == {"a": "say hi"}
