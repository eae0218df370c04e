"""The `text.format` parameter: the output matches the format, or the response is not completed."""

from typing import Any

import orjson
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.support.api import Api, error
from tests.support.chunks import USAGE, calls, chunk, text
from tests.support.machine_clock import machine_time
from tests.support.model_capabilities import describe
from tests.support.streams import assert_stream_equals_stored
from tests.support.upstream import Gate, Script, stream

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
KEPT = '{"city":"Oslo","degrees":3}'
BROKEN = {"invalid JSON": "It is 3 degrees.", "half of it": KEPT[:-1], "another type": '{"city":"Oslo","degrees":"3"}'}


def strict(**changes: Any) -> dict[str, Any]:
    """Return the `text` parameter with a strict schema."""
    return {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True, **changes}}


def test_an_answer_that_matches_the_schema_is_completed(api: Api, script: Script) -> None:
    response = api.create(model=script.say(KEPT).model, input="Hi", text=strict())
    assert response["status"] == "completed"


@pytest.mark.parametrize("what", BROKEN)
def test_a_second_answer_that_violates_the_schema_fails_the_response(api: Api, script: Script, what: str) -> None:
    model = script.say(BROKEN[what]).say(BROKEN[what]).model
    answer = api.post("/responses", {"model": model, "input": "Hi", "text": strict()})
    assert error(answer) == (500, None, "server_error")
    assert "format" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("city", "answers"), [("O\\nslo", 1), ("Bern", 2)])
def test_a_pattern_of_ecmascript_is_checked(api: Api, script: Script, city: str, answers: int) -> None:
    written = f'{{"city":"{city}","degrees":3}}'
    for _ in range(answers):
        script.say(written)
    city_schema = {"type": "string", "pattern": r"^\u{4F}[^]*$"}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "city": city_schema}}
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "text": strict(schema=schema)})
    assert answer.status_code == (200 if answers == 1 else 500)


def test_a_corrected_answer_is_completed(api: Api, script: Script) -> None:
    response = api.create(model=script.say("It is cold.").say(KEPT).model, input="Hi", text=strict())
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", KEPT)
    assert len(response["output"]) == 1
    assert response["usage"]["output_tokens"] == 2 * USAGE["completion_tokens"]
    first_answer, complaint = script.bodies[1]["messages"][-2:]
    assert (first_answer["content"], "is not JSON" in complaint["content"]) == ("It is cold.", True)


def test_only_the_accepted_answer_is_streamed(api: Api, script: Script) -> None:
    events = api.events(model=script.say("It is ", "cold.").say(KEPT).model, input="Hi", text=strict())
    assert "cold" not in orjson.dumps(events).decode()
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))


def test_a_stream_with_an_invalid_answer_fails(api: Api, script: Script) -> None:
    events = api.events(model=script.say("It is ", "cold.").say("Very.").model, input="Hi", text=strict())
    assert events[-1]["type"] == "response.failed"
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))


def test_an_answer_of_a_model_with_native_schemas_is_streamed_immediately(api: Api, script: Script) -> None:
    gate = Gate()
    describe(script, structured_output="native")
    script.then(stream(chunk(content=KEPT[:5]), gate, chunk(content=KEPT[5:]), chunk(finish="stop")))
    with api.stream(model=script.model, input="Hi", text=strict()) as events:
        while (event := events.next())["type"] != "response.output_text.delta":
            pass
        gate.open()
        assert (event["delta"], events.rest()[-1]["type"]) == (KEPT[:5], "response.completed")


def test_a_model_without_formats_gets_the_schema_as_an_instruction(api: Api, script: Script) -> None:
    describe(script, structured_output="prompted").say(KEPT)
    assert api.create(model=script.model, input="Hi", text=strict())["status"] == "completed"
    assert "response_format" not in script.bodies[0]
    assert '"degrees"' in script.bodies[0]["messages"][0]["content"]


def test_without_strict_only_json_is_enforced(api: Api, script: Script, other_script: Script) -> None:
    loose = strict(strict=False)
    assert api.create(model=script.say('{"a":1}').model, input="Hi", text=loose)["status"] == "completed"
    body = {"model": other_script.say("no").say("no").model, "input": "Hi", "text": loose}
    assert error(api.post("/responses", body))[0] == 500


def test_a_json_object_must_be_json(api: Api, script: Script) -> None:
    model = script.say("{").say("{").model
    body = {"model": model, "input": "JSON please", "text": {"format": {"type": "json_object"}}}
    assert error(api.post("/responses", body))[0] == 500


def test_a_refusal_is_accepted_instead_of_the_format(api: Api, script: Script) -> None:
    script.then(stream(chunk(refusal="No."), chunk(finish="stop")))
    assert api.create(model=script.model, input="Hi", text=strict())["status"] == "completed"


def test_calls_are_accepted_before_the_formatted_answer(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    script.then(stream(*calls(look="{}")))
    assert api.create(model=script.model, input="Hi", text=strict(), tools=tools)["status"] == "completed"


def test_a_truncated_answer_is_incomplete(api: Api, script: Script) -> None:
    script.then(stream(*text(KEPT[:9], finish="length")))
    assert api.create(model=script.model, input="Hi", text=strict())["status"] == "incomplete"


INVALID_SCHEMAS: dict[str, dict[str, Any]] = {
    "an unknown type": {"type": "thing"},
    "an external reference": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
    "an invalid pattern": {"type": "string", "pattern": "("},
    "an unresolvable reference": {"$ref": "#/$defs/nope"},
    "pattern properties": {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
}


@pytest.mark.parametrize("what", INVALID_SCHEMAS)
def test_an_invalid_schema_is_refused(api: Api, what: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "text": strict(schema=INVALID_SCHEMAS[what])})
    assert error(answer) == (400, "text.format.schema", "invalid_json_schema")


def test_a_catastrophic_pattern_does_not_block(api: Api, script: Script) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    answer_of_the_model = orjson.dumps({"a": "a" * 60 + "!"}).decode()
    script.say(answer_of_the_model).say(answer_of_the_model)
    began = machine_time()
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "text": strict(schema=schema)})
    assert error(answer)[0] == 500
    assert machine_time() - began < 20


@pytest.mark.slow
def test_an_exponential_schema_does_not_block(api: Api, script: Script) -> None:
    steps = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**steps, "a40": {"type": "object"}}}
    began = machine_time()
    body = {"model": script.say("{}").say("{}").model, "input": "Hi", "text": strict(schema=schema)}
    assert error(api.post("/responses", body))[0] == 500
    assert machine_time() - began < 20


def test_the_sdk_parses_the_answer(client: OpenAI, script: Script) -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    parsed = client.responses.parse(model=script.say(KEPT).model, input="Hi", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Oslo", degrees=3)


FORMATS = {"strict": strict(), "json_object": {"format": {"type": "json_object"}}, "loose": strict(strict=False)}
NO_ANSWER = {
    "nothing": [chunk(finish="stop")],
    "empty content": [chunk(content=""), chunk(finish="stop")],
    "the document in the reasoning": [chunk(reasoning_content=KEPT), chunk(finish="stop")],
}


@pytest.mark.parametrize("native", [False, True], ids=["validated", "native"])
@pytest.mark.parametrize("what", NO_ANSWER)
@pytest.mark.parametrize("form", FORMATS)
def test_a_formatted_response_without_a_message_is_not_completed(
    api: Api, script: Script, form: str, what: str, native: bool
) -> None:
    if native:
        describe(script, structured_output="native")
    script.then(stream(*NO_ANSWER[what]), stream(*NO_ANSWER[what]))
    response = api.events(model=script.model, input="Hi", text=FORMATS[form])[-1]["response"]
    assert (response["status"], "no answer" in response["error"]["message"]) == ("failed", True)


@pytest.mark.parametrize("what", NO_ANSWER)
def test_a_second_request_may_give_the_missing_answer(api: Api, script: Script, what: str) -> None:
    script.then(stream(*NO_ANSWER[what])).say(KEPT)
    response = api.create(model=script.model, input="Hi", text=strict())
    assert (response["status"], response["output"][-1]["content"][0]["text"]) == ("completed", KEPT)


@pytest.mark.parametrize(
    "fence", ["```json\n{}\n```", "```\n{}\n```\n", " \n```JSON\n{}```", "```{}```", "```json\r\n{}\r\n```"]
)
@pytest.mark.parametrize("form", FORMATS)
def test_a_document_in_a_code_fence_is_unwrapped(api: Api, script: Script, form: str, fence: str) -> None:
    fenced = fence.replace("{}", KEPT)
    model = script.say(*fenced).say(fenced).model
    events = api.events(model=model, input="Hi", text=FORMATS[form])
    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", KEPT)
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == KEPT
    assert api.create(model=model, input="Hi", text=FORMATS[form])["output"][0]["content"][0]["text"] == KEPT


@pytest.mark.parametrize(
    "around", ["Here: ```json\n{}\n```", "```json\n{}\n``` Done.", "```json\n{}\n```\n```json\n{}\n```"]
)
def test_text_around_a_code_fence_violates_the_format(api: Api, script: Script, around: str) -> None:
    script.say(around.replace("{}", KEPT)).say(KEPT)
    assert api.create(model=script.model, input="Hi", text=strict())["output"][0]["content"][0]["text"] == KEPT


def test_log_probabilities_of_a_code_fence_are_dropped(api: Api, script: Script) -> None:
    pieces = []
    for token in ("```json\n", KEPT, "\n```"):
        piece = chunk(content=token)
        piece["choices"][0]["logprobs"] = {"content": [{"token": token, "logprob": -0.5, "bytes": None}]}
        pieces.append(piece)
    script.then(stream(*pieces, chunk(finish="stop")))
    include = ["message.output_text.logprobs"]
    (part,) = api.create(model=script.model, input="Hi", text=strict(), include=include)["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == [KEPT]
