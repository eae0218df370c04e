"""`tool_choice` and `parallel_tool_calls` of `POST /v1/responses`: what the upstream hears, and cannot get past."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk
from tests.support.upstream import Script, stream

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "listen")]
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "listen"}]}


def names(output: list[dict[str, Any]]) -> list[str]:
    """The functions that were called."""
    return [item["name"] for item in output if item["type"] == "function_call"]


def test_the_upstream_hears_only_of_allowed_tools(api: Api, script: Script) -> None:
    script.call(listen="{}")
    response = api.create(model=script.model, input="Hi", tools=TOOLS, tool_choice=ALLOWED)
    assert [tool["function"]["name"] for tool in script.bodies[0]["tools"]] == ["listen"]
    assert script.bodies[0]["tool_choice"] == "required"
    assert (response["tool_choice"], len(response["tools"])) == (ALLOWED, 2)


def test_the_mode_of_allowed_tools_is_auto_unless_it_is_said(api: Api, script: Script) -> None:
    choice = {"type": "allowed_tools", "tools": ALLOWED["tools"]}
    response = api.create(model=script.say("No.").model, input="Hi", tools=TOOLS, tool_choice=choice)
    assert response["tool_choice"] == {**choice, "mode": "auto"}
    assert script.bodies[0]["tool_choice"] == "auto"


@pytest.mark.parametrize(
    ("choice", "param", "code"),
    [
        ({**ALLOWED, "tools": []}, "tool_choice.tools", "empty_array"),
        ({**ALLOWED, "tools": [{"type": "function", "name": "smell"}]}, "tool_choice", "invalid_value"),
        ({**ALLOWED, "mode": "never"}, "tool_choice.mode", "invalid_value"),
        ({"type": "allowed_tools"}, "tool_choice.tools", "missing_required_parameter"),
    ],
)
def test_it_says_what_is_wrong_with_allowed_tools(api: Api, choice: Any, param: str, code: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": TOOLS, "tool_choice": choice})
    assert error(answer) == (400, param, code)


@pytest.mark.parametrize("stream_it", [False, True])
def test_one_call_is_one_call_though_the_upstream_makes_more(api: Api, script: Script, stream_it: bool) -> None:
    script.call(look='{"a":1}', listen='{"b":2}')
    body = {"model": script.model, "input": "Hi", "tools": TOOLS, "parallel_tool_calls": False}
    output = api.events(**body)[-1]["response"]["output"] if stream_it else api.create(**body)["output"]
    assert names(output) == ["look"]
    assert output[0]["arguments"] == '{"a":1}'


def test_a_surplus_call_at_the_same_index_leaves_the_first_as_it_is(api: Api, script: Script) -> None:
    surplus = [
        chunk(tool_calls=[{"index": 0, "id": "call_b", "function": {"name": "listen", "arguments": "{"}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
    ]
    script.then(stream(*calls(look="{}")[:-2], *surplus, chunk(finish="tool_calls")))
    response = api.create(model=script.model, input="Hi", tools=TOOLS, parallel_tool_calls=False)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("look", "{}")]


def test_parallel_calls_stay_parallel(api: Api, script: Script) -> None:
    response = api.create(model=script.call(look="{}", listen="{}").model, input="Hi", tools=TOOLS)
    assert names(response["output"]) == ["look", "listen"]
