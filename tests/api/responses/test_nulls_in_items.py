"""Values that the SDK dumps into tools and settings of items: nulls of newer fields and Python's field names."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.upstream import Script

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "name": "late", "parameters": SCHEMA, "strict": False}
SPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{**TOOL, "later": None}]}
SEARCH = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
FORMAT = {"type": "json_schema", "name": "thing", "strict": True}


def items_with(kind: str, *tools: dict[str, Any]) -> list[dict[str, Any]]:
    """Return items that contain the tools."""
    if kind == "additional_tools":
        return [{"type": kind, "role": "developer", "tools": list(tools)}, USER]
    return [USER, SEARCH, {"type": kind, "call_id": "c", "execution": "client", "tools": list(tools)}]


KINDS = pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])


@KINDS
def test_unknown_nulls_in_tools_of_items_are_removed(api: Api, script: Script, kind: str) -> None:
    script.say("Hello").say("Hello again")
    response = api.create(model=script.model, input=items_with(kind, {**TOOL, "later": None}, SPACE))
    api.create(model=script.model, input="Hi", previous_response_id=response["id"])
    for body in script.bodies:
        assert [tool["function"]["name"] for tool in body["tools"]] == ["late", "crm__late"]
    (kept,) = [item for item in api.input_items(response["id"]) if item["type"] == kind]
    assert "later" not in kept["tools"][0] | kept["tools"][1]["tools"][0]


@KINDS
def test_unknown_values_other_than_null_are_refused_with_their_path(api: Api, script: Script, kind: str) -> None:
    given = items_with(kind, {**TOOL, "later": None}, {**TOOL, "later": 1})
    place = next(index for index, item in enumerate(given) if item.get("type") == kind)
    answer = api.post("/responses", {"model": script.model, "input": given})
    assert error(answer) == (400, f"input[{place}].tools[1].later", "unknown_parameter")


def test_unknown_nulls_in_a_configuration_update_are_removed(api: Api, script: Script) -> None:
    script.say('{"a": "b"}').say('{"a": "b"}')
    update = {
        "type": "configuration_update",
        "reasoning": {"effort": "low", "later": None},
        "text": {"later": None, "format": {**FORMAT, "schema": SCHEMA, "later": None}},
    }
    response = api.create(model=script.model, input=[update, USER])
    second = api.create(model=script.model, input="Hi", previous_response_id=response["id"])
    assert (second["reasoning"]["effort"], second["text"]["format"]["schema"]) == ("low", SCHEMA)
    kept = api.input_items(response["id"])[0]
    assert (kept["reasoning"], kept["text"]) == ({"effort": "low"}, {"format": {**FORMAT, "schema": SCHEMA}})


def test_the_sdks_alias_of_schema_is_accepted(api: Api, script: Script) -> None:
    script.say('{"a": "b"}').say('{"a": "b"}')
    dumped = {**FORMAT, "schema_": SCHEMA}
    api.create(model=script.model, input="Hi", text={"format": dumped})
    updated = api.create(model=script.model, input=[{"type": "configuration_update", "text": {"format": dumped}}, USER])
    assert [body["response_format"]["json_schema"]["schema"] for body in script.bodies] == [SCHEMA, SCHEMA]
    assert api.input_items(updated["id"])[0]["text"]["format"] == {**FORMAT, "schema": SCHEMA}


def test_schema_and_its_alias_together_are_refused(api: Api, script: Script) -> None:
    twice = {**FORMAT, "schema": SCHEMA, "schema_": SCHEMA}
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "text": {"format": twice}})
    assert error(answer) == (400, "text.format.schema_", "unknown_parameter")
