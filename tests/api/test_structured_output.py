"""`text.format` of `POST /v1/responses`: what was promised is kept, or the response is not called completed."""

import time
from typing import Any

import orjson
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk, text
from tests.support.streams import assert_stream_equals_stored
from tests.support.upstream import Script, stream

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
KEPT = '{"city":"Oslo","degrees":3}'
BROKEN = {"no JSON": "It is 3 degrees.", "half of it": KEPT[:-1], "another type": '{"city":"Oslo","degrees":"3"}'}


def strict(**changes: Any) -> dict[str, Any]:
    """The parameter."""
    return {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True, **changes}}


def test_an_answer_of_the_schema_is_completed(api: Api, script: Script) -> None:
    response = api.create(model=script.say(KEPT).model, input="Hi", text=strict())
    assert response["status"] == "completed"


@pytest.mark.parametrize("what", BROKEN)
def test_an_answer_that_breaks_the_schema_fails(api: Api, script: Script, what: str) -> None:
    answer = api.post("/responses", {"model": script.say(BROKEN[what]).model, "input": "Hi", "text": strict()})
    assert error(answer) == (500, None, "server_error")
    assert "format" in answer.json()["error"]["message"]


def test_a_stream_of_a_broken_answer_ends_failed(api: Api, script: Script) -> None:
    events = api.events(model=script.say("It is ", "cold.").model, input="Hi", text=strict())
    assert events[-1]["type"] == "response.failed"
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))


def test_without_strict_the_schema_is_a_wish_but_json_is_not(api: Api, script: Script, other_script: Script) -> None:
    loose = strict(strict=False)
    assert api.create(model=script.say('{"a":1}').model, input="Hi", text=loose)["status"] == "completed"
    body = {"model": other_script.say("no").model, "input": "Hi", "text": loose}
    assert error(api.post("/responses", body))[0] == 500


def test_a_json_object_must_be_json(api: Api, script: Script) -> None:
    body = {"model": script.say("{").model, "input": "JSON please", "text": {"format": {"type": "json_object"}}}
    assert error(api.post("/responses", body))[0] == 500


def test_a_refusal_is_an_answer_too(api: Api, script: Script) -> None:
    script.then(stream(chunk(refusal="No."), chunk(finish="stop")))
    assert api.create(model=script.model, input="Hi", text=strict())["status"] == "completed"


def test_calls_come_before_the_document(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    script.then(stream(*calls(look="{}")))
    assert api.create(model=script.model, input="Hi", text=strict(), tools=tools)["status"] == "completed"


def test_an_answer_that_was_cut_is_incomplete(api: Api, script: Script) -> None:
    script.then(stream(*text(KEPT[:9], finish="length")))
    assert api.create(model=script.model, input="Hi", text=strict())["status"] == "incomplete"


NO_SCHEMAS: dict[str, dict[str, Any]] = {
    "an unknown type": {"type": "thing"},
    "a reference to elsewhere": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
    "a pattern that is none": {"type": "string", "pattern": "("},
    "a reference to nothing": {"$ref": "#/$defs/nope"},
    "patterns of names": {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
}


@pytest.mark.parametrize("what", NO_SCHEMAS)
def test_a_schema_that_is_none_is_refused(api: Api, what: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "text": strict(schema=NO_SCHEMAS[what])})
    assert error(answer) == (400, "text.format.schema", "invalid_json_schema")


def test_a_pattern_that_never_ends_holds_up_nobody(api: Api, script: Script) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    script.say(orjson.dumps({"a": "a" * 60 + "!"}).decode())
    began = time.monotonic()
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "text": strict(schema=schema)})
    assert error(answer)[0] == 500
    assert time.monotonic() - began < 2


def test_a_schema_that_unfolds_without_end_holds_up_nobody(api: Api, script: Script) -> None:
    steps = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**steps, "a40": {"type": "object"}}}
    began = time.monotonic()
    body = {"model": script.say("{}").model, "input": "Hi", "text": strict(schema=schema)}
    assert error(api.post("/responses", body))[0] == 500
    assert time.monotonic() - began < 3


def test_the_sdk_parses_the_answer(client: OpenAI, script: Script) -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    parsed = client.responses.parse(model=script.say(KEPT).model, input="Hi", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Oslo", degrees=3)
