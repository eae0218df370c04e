"""Namespaces, sent upstream as prefixes of tool names, and asynchronous tools, whose outputs may follow later."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.upstream import Script

FIND = {"type": "function", "name": "find", "description": "Finds somebody.", "parameters": {"type": "object"}}
NOTE = {"type": "custom", "name": "note"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers and orders", "tools": [FIND, NOTE]}
ASYNC = {"type": "function", "name": "cook", "async": True}


def offered_functions(script: Script, number: int = 0) -> list[dict[str, Any]]:
    """Return the functions that the upstream was offered."""
    return [tool["function"] for tool in script.bodies[number]["tools"]]


def test_the_upstream_sees_one_name_for_namespace_and_tool(api: Api, script: Script) -> None:
    response = api.create(model=script.say("Hi").model, input="Hi", tools=[CRM])
    assert [function["name"] for function in offered_functions(script)] == ["crm__find", "crm__note"]
    assert offered_functions(script)[0]["description"] == "Finds somebody.\nIt belongs to crm: Customers and orders"
    shown = response["tools"][0]
    assert (shown["name"], [tool["name"] for tool in shown["tools"]]) == ("crm", ["find", "note"])
    assert shown["tools"][1]["format"] == {"type": "text"}


def test_calls_keep_their_namespace_in_both_directions(api: Api, script: Script) -> None:
    script.call(crm__find="{}", crm__note='{"input":"x"}').say("Done")
    first = api.create(model=script.model, input="Hi", tools=[CRM])
    assert [(item["namespace"], item["name"]) for item in first["output"]] == [("crm", "find"), ("crm", "note")]
    outputs = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in first["output"]
    ]
    # The same without a chain, with the client's copies of the items.
    api.create(model=script.model, input=[*first["output"], *outputs], tools=[CRM])
    calls = script.messages[1][0]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["crm__find", "crm__note"]


def test_long_names_are_shortened_and_mapped_back(api: Api, script: Script) -> None:
    long = {**FIND, "name": "f" * 64}
    other = {**FIND, "name": "f" * 63 + "g"}
    tools = [{**CRM, "name": "n" * 64, "tools": [long, other]}]
    api.create(model=script.say("Hi").model, input="Hi", tools=tools)
    names = [function["name"] for function in offered_functions(script)]
    assert len(set(names)) == 2
    assert {len(name) for name in names} == {64}
    item = api.create(model=script.call(**{names[1]: "{}"}).model, input="Hi", tools=tools)["output"][0]
    assert (item["namespace"], item["name"]) == ("n" * 64, "f" * 63 + "g")


def test_a_tool_in_a_namespace_can_be_forced(api: Api, script: Script) -> None:
    choice = {"type": "function", "name": "find"}
    api.create(model=script.call(crm__find="{}").model, input="Hi", tools=[CRM], tool_choice=choice)
    assert script.bodies[0]["tool_choice"]["function"] == {"name": "crm__find"}
    twice = [CRM, {**CRM, "name": "erp"}]
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": twice, "tool_choice": choice})
    assert error(answer) == (400, "tool_choice", "invalid_value")


@pytest.mark.parametrize(
    ("tools", "param", "code"),
    [
        ([{**CRM, "tools": []}], "tools[0].tools", "empty_array"),
        ([{**CRM, "tools": [{"type": "shell"}]}], "tools[0].tools[0].type", "invalid_value"),
        ([{"type": "namespace", "name": "a", "tools": [FIND]}], "tools[0].description", "missing_required_parameter"),
        ([{**CRM, "tools": [FIND, FIND]}], "tools[0].tools[1].name", "invalid_value"),
        ([CRM, {**FIND, "name": "crm__find"}], "tools[1].name", "invalid_value"),
        ([{**CRM, "tools": [{**FIND, "name": "a b"}]}], "tools[0].tools[0].name", "invalid_value"),
        (
            [{**CRM, "tools": [{**FIND, "allowed_callers": ["programmatic"]}]}],
            "tools[0].tools[0].allowed_callers",
            "unsupported_value",
        ),
    ],
)
def test_an_invalid_namespace_names_the_parameter(api: Api, tools: list[Any], param: str, code: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tools": tools})) == (400, param, code)


def test_the_output_schema_is_added_to_the_description(api: Api, script: Script) -> None:
    tool = {**FIND, "output_schema": {"type": "object"}, "allowed_callers": ["direct"]}
    response = api.create(model=script.say("Hi").model, input="Hi", tools=[tool])
    assert offered_functions(script)[0]["description"].endswith('It returns JSON with this schema: {"type":"object"}')
    assert response["tools"] == [{**tool, "strict": None}]


# -- asynchronous tools ------------------------------------------------------------------------------------------------


def test_an_asynchronous_call_may_be_answered_later(api: Api, script: Script) -> None:
    script.call(cook="{}").say("It cooks.").say("It is done.")
    first = api.create(model=script.model, input="Cook", tools=[ASYNC])
    call = first["output"][0]
    assert (call["async"], first["tools"][0]["async"]) == (True, True)
    second = api.create(model=script.model, input="And?", tools=[ASYNC], previous_response_id=first["id"])
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool", "user"]
    assert "no output yet" in script.messages[1][2]["content"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "soup"}
    api.create(model=script.model, input=[output], tools=[ASYNC], previous_response_id=second["id"])
    assert [message["role"] for message in script.messages[2]] == ["user", "assistant", "tool", "user", "assistant"]
    assert script.messages[2][2]["content"] == "soup"


def test_a_follow_up_without_the_output_of_a_function_call_is_rejected(api: Api, script: Script) -> None:
    tool = {"type": "function", "name": "cook"}
    first = api.create(model=script.call(cook="{}").model, input="Cook", tools=[tool])
    answer = api.post("/responses", {"model": script.model, "input": "And?", "previous_response_id": first["id"]})
    assert error(answer)[:2] == (400, "input")
