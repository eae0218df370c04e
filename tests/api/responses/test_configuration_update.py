"""Items of type `configuration_update`: effort and format from this point on, until the next update."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.upstream import Script

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
TEXT = {"format": {"type": "text"}}
USER = {"role": "user", "content": "Hi"}


def update(**settings: Any) -> dict[str, Any]:
    """Return an item that changes settings."""
    return {"type": "configuration_update", **settings}


def test_an_update_sets_the_reasoning_effort(api: Api, script: Script) -> None:
    script.say("Hello")
    given = [update(reasoning={"effort": "low"}), USER]
    response = api.create(model=script.model, input=given)
    assert script.bodies[0]["reasoning_effort"] == "low"
    assert response["reasoning"]["effort"] == "low"


def test_an_update_sets_the_text_format(api: Api, script: Script) -> None:
    script.say('{"a": "b"}')
    response = api.create(model=script.model, input=[update(text={"format": FORMAT}), USER])
    assert script.bodies[0]["response_format"]["json_schema"]["name"] == "thing"
    assert response["text"]["format"] == {**FORMAT, "description": None}


def test_the_latest_update_wins(api: Api, script: Script) -> None:
    script.say("Hello")
    given = [update(reasoning={"effort": "low"}), USER, update(reasoning={"effort": "high"}), update(text=TEXT)]
    assert api.create(model=script.model, input=given)["reasoning"]["effort"] == "high"


def test_an_update_applies_to_the_rest_of_the_chain(api: Api, script: Script) -> None:
    script.say("Hello").say("Hello again")
    first = api.create(model=script.model, input=[update(reasoning={"effort": "low"}), USER])
    second = api.create(model=script.model, input="Hi", previous_response_id=first["id"])
    assert [body["reasoning_effort"] for body in script.bodies] == ["low", "low"]
    assert second["reasoning"]["effort"] == "low"


def test_a_parameter_overrides_an_update_for_its_request_only(api: Api, script: Script) -> None:
    script.say("Hello").say("Hello again").say("And again")
    first = api.create(model=script.model, input=[update(reasoning={"effort": "low"}), USER])
    second = api.create(model=script.model, input="Hi", previous_response_id=first["id"], reasoning={"effort": "high"})
    api.create(model=script.model, input="Hi", previous_response_id=second["id"])
    assert [body["reasoning_effort"] for body in script.bodies] == ["low", "high", "low"]


def test_an_update_of_the_format_keeps_the_verbosity(api: Api, script: Script) -> None:
    script.say('{"a": "b"}')
    given = [update(text={"format": FORMAT}), USER]
    text = api.create(model=script.model, input=given, text={"verbosity": "low"})["text"]
    assert (text["verbosity"], text["format"]["name"]) == ("low", "thing")


def test_an_update_is_stored_as_an_input_item(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input=[update(id="cfg_1", reasoning={"effort": "low"}), USER])
    stored = api.input_items(response["id"])[0]
    assert {"id": "cfg_1", "type": "configuration_update", "reasoning": {"effort": "low"}}.items() <= stored.items()


@pytest.mark.parametrize(
    ("settings", "param", "code"),
    [
        ({"reasoning": {"effort": "heroic"}}, "input[1].reasoning.effort", "invalid_value"),
        ({"reasoning": {"depth": 1}}, "input[1].reasoning.depth", "unknown_parameter"),
        ({"text": {}}, "input[1].text.format", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "input[1].text.format", "invalid_value"),
        ({"text": {"format": {**FORMAT, "schema": {"type": 1}}}}, "input[1].text.format.schema", "invalid_json_schema"),
    ],
)
def test_an_invalid_update_is_rejected_with_param_and_code(
    api: Api, settings: dict[str, Any], param: str, code: str
) -> None:
    body = {"model": "m", "input": [USER, update(**settings)]}
    assert error(api.post("/responses", body)) == (400, param, code)
