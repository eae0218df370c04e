"""`tool_choice` and `parallel_tool_calls`: sent to the upstream, and enforced in its answers."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "listen")]
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "listen"}]}


def called_functions(output: list[dict[str, Any]]) -> list[str]:
    """Return the names of the called functions."""
    return [item["name"] for item in output if item["type"] == "function_call"]


def test_only_allowed_tools_are_sent_upstream(api: Api, script: Script) -> None:
    script.call(listen="{}")
    response = api.create(model=script.model, input="Hi", tools=TOOLS, tool_choice=ALLOWED)
    assert [tool["function"]["name"] for tool in script.bodies[0]["tools"]] == ["listen"]
    assert script.bodies[0]["tool_choice"] == "required"
    assert (response["tool_choice"], len(response["tools"])) == (ALLOWED, 2)


def test_the_default_mode_of_allowed_tools_is_auto(api: Api, script: Script) -> None:
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
def test_invalid_allowed_tools_name_the_parameter(api: Api, choice: Any, param: str, code: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": TOOLS, "tool_choice": choice})
    assert error(answer) == (400, param, code)


@pytest.mark.parametrize("stream_it", [False, True])
def test_surplus_calls_are_dropped_without_parallel_tool_calls(api: Api, script: Script, stream_it: bool) -> None:
    script.call(look='{"a":1}', listen='{"b":2}')
    body = {"model": script.model, "input": "Hi", "tools": TOOLS, "parallel_tool_calls": False}
    output = api.events(**body)[-1]["response"]["output"] if stream_it else api.create(**body)["output"]
    assert called_functions(output) == ["look"]
    assert output[0]["arguments"] == '{"a":1}'


@pytest.mark.usefixtures("only_streams")
def test_a_surplus_call_at_the_same_index_does_not_change_the_first(api: Api, script: Script) -> None:
    surplus = [
        chunk(tool_calls=[{"index": 0, "id": "call_b", "function": {"name": "listen", "arguments": "{"}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
    ]
    script.then(stream(*calls(look="{}")[:-2], *surplus, chunk(finish="tool_calls")))
    response = api.create(model=script.model, input="Hi", tools=TOOLS, parallel_tool_calls=False)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("look", "{}")]


@pytest.mark.parametrize("stream_it", [False, True])
def test_calls_are_dropped_with_tool_choice_none(api: Api, script: Script, stream_it: bool) -> None:
    script.then(stream(chunk(content="Hm."), *calls(look="{}")))
    body = {"model": script.model, "input": "Hi", "tools": TOOLS, "tool_choice": "none"}
    output = api.events(**body)[-1]["response"]["output"] if stream_it else api.create(**body)["output"]
    assert [item["type"] for item in output] == ["message"]


def test_an_answer_of_calls_only_fails_with_tool_choice_none(api: Api, script: Script) -> None:
    script.call(look="{}")
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "tools": TOOLS, "tool_choice": "none"})
    assert error(answer) == (500, None, "server_error")


def test_parallel_calls_are_allowed_by_default(api: Api, script: Script) -> None:
    response = api.create(model=script.call(look="{}", listen="{}").model, input="Hi", tools=TOOLS)
    assert called_functions(response["output"]) == ["look", "listen"]


# -- other tools than functions ----------------------------------------------------------------------------------------

CUSTOM = {"type": "custom", "name": "write"}
SHELL, PATCH, COMPUTER = {"type": "shell"}, {"type": "apply_patch"}, {"type": "computer"}
EVERYTHING = [*TOOLS, CUSTOM, SHELL, PATCH, COMPUTER]
ARGUMENTS = {
    "write": '{"input":"x"}',
    "shell": '{"commands":["ls"]}',
    "apply_patch": '{"operation":{"type":"delete_file","path":"a"}}',
    "computer": '{"actions":[{"type":"wait"}]}',
    "look": "{}",
}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "look"}, "look"),
        (CUSTOM, "write"),
        (SHELL, "shell"),
        (PATCH, "apply_patch"),
        (COMPUTER, "computer"),
        ({"type": "computer_use"}, "computer"),
        ({"type": "computer_use_preview"}, "computer"),
    ],
)
def test_any_tool_can_be_forced(api: Api, script: Script, choice: dict[str, str], name: str) -> None:
    script.call(**{name: ARGUMENTS[name]})
    response = api.create(model=script.model, input="Hi", tools=EVERYTHING, tool_choice=choice)
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": name}}
    assert response["tool_choice"] == choice
    assert len(response["output"]) == 1


def test_any_tool_can_be_in_allowed_tools(api: Api, script: Script) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [CUSTOM, SHELL, {"type": "function", "name": "look"}]}
    response = api.create(model=script.say("No.").model, input="Hi", tools=EVERYTHING, tool_choice=choice)
    assert [tool["function"]["name"] for tool in script.bodies[0]["tools"]] == ["look", "write", "shell"]
    assert response["tool_choice"] == choice


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "look"},
        {"type": "function", "name": "write"},
        {"type": "shell"},
        {"type": "computer"},
        {"type": "web_search_preview"},
        {"type": "code_interpreter"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "apply_patch"}]},
    ],
)
def test_a_choice_of_a_missing_tool_is_refused(api: Api, choice: dict[str, Any]) -> None:
    body = {"model": "m", "input": "Hi", "tools": [*TOOLS, CUSTOM], "tool_choice": choice}
    assert error(api.post("/responses", body)) == (400, "tool_choice", "invalid_value")


@pytest.mark.parametrize(
    ("choice", "param"), [({"type": "telepathy"}, "tool_choice.type"), ({"type": "custom"}, "tool_choice.name")]
)
def test_a_malformed_choice_is_refused(api: Api, choice: dict[str, Any], param: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": TOOLS, "tool_choice": choice})
    assert error(answer)[:2] == (400, param)


@pytest.mark.parametrize("choice", ["required", SHELL])
def test_tool_choice_is_not_sent_to_an_upstream_without_it(api: Api, script: Script, choice: Any) -> None:
    describe(script, forced_tool_choice=False).call(shell='{"commands":["ls"]}')
    response = api.create(model=script.model, input="Hi", tools=[SHELL], tool_choice=choice)
    assert script.bodies[0]["tool_choice"] == "auto"
    assert (response["tool_choice"], response["output"][0]["type"]) == (choice, "shell_call")
