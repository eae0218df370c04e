"""Client tools with their own item types (computer, shell, patch), which upstreams see as functions."""

from typing import Any

import orjson
import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls
from tests.support.upstream import Script, stream

PREVIEW = {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"}
SCREEN = "data:image/png;base64,iVBORw0KGgo="
CLICK = {"type": "click", "button": "left", "x": 1, "y": 2}
CREATE = {"type": "create_file", "path": "a.txt", "diff": "+a"}


def output_read_by_model(
    api: Api, script: Script, tool: dict[str, Any], output: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the tool output that the model reads after the client has sent it."""
    first = api.create(model=script.model, input="Do it", tools=[tool])
    given = {"call_id": first["output"][0]["call_id"], **output}
    api.create(model=script.model, tools=[tool], previous_response_id=first["id"], input=[given])
    return script.messages[1]


@pytest.mark.parametrize(
    ("tool", "function", "echo"),
    [
        ({"type": "computer"}, "computer", {"type": "computer"}),
        (PREVIEW, "computer", PREVIEW),
        ({"type": "shell"}, "shell", {"type": "shell", "environment": {"type": "local"}}),
        ({"type": "local_shell"}, "local_shell", {"type": "local_shell"}),
        (
            {"type": "apply_patch", "allowed_callers": ["direct"]},
            "apply_patch",
            {"type": "apply_patch", "allowed_callers": ["direct"]},
        ),
    ],
)
def test_a_client_tool_is_a_function_for_the_upstream(
    api: Api, script: Script, tool: dict[str, Any], function: str, echo: dict[str, Any]
) -> None:
    response = api.create(model=script.say("Hi").model, input="Hi", tools=[tool])
    assert response["tools"] == [echo]
    offered = script.bodies[0]["tools"][0]
    assert (offered["type"], offered["function"]["name"]) == ("function", function)
    assert offered["function"]["parameters"]["additionalProperties"] is False


def test_the_model_receives_screenshots(api: Api, script: Script) -> None:
    script.call(computer=orjson.dumps({"actions": [CLICK]}).decode()).say("Done")
    output = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": SCREEN}}
    *_, asked, tool, shown = output_read_by_model(api, script, {"type": "computer"}, output)
    assert orjson.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"actions": [CLICK]}
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "call_computer")
    label, image = shown["content"]
    assert label["text"].startswith("Image 1 of the output of 'computer' (call call_computer)")
    assert image["image_url"]["url"] == SCREEN


def test_a_single_computer_action_keeps_its_format(api: Api, script: Script) -> None:
    script.call(computer=orjson.dumps({"action": CLICK}).decode()).say("Done")
    output = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": SCREEN}}
    asked = output_read_by_model(api, script, PREVIEW, output)[-3]
    assert orjson.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"action": CLICK}


def test_the_model_receives_the_output_of_commands(api: Api, script: Script) -> None:
    script.call(shell='{"commands":["ls"],"timeout_ms":null}').say("Done")
    wrote = {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    *_, asked, tool = output_read_by_model(
        api, script, {"type": "shell"}, {"type": "shell_call_output", "output": [wrote]}
    )
    assert asked["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"commands":["ls"]}'}
    assert orjson.loads(tool["content"]) == [wrote]


def test_a_local_shell_output_refers_to_its_call_by_id(api: Api, script: Script) -> None:
    script.call(local_shell='{"command":["ls"]}').say("Done")
    first = api.create(model=script.model, input="Do it", tools=[{"type": "local_shell"}])
    output = {"type": "local_shell_call_output", "id": first["output"][0]["call_id"], "output": "a.txt"}
    api.create(model=script.model, input=[output], previous_response_id=first["id"])
    assert script.messages[1][-1] == {"role": "tool", "tool_call_id": "call_local_shell", "content": "a.txt"}


def test_the_model_receives_the_result_of_a_patch(api: Api, script: Script) -> None:
    script.call(apply_patch=orjson.dumps({"operation": CREATE}).decode()).say("Done")
    output = {"type": "apply_patch_call_output", "status": "failed", "output": "no space"}
    *_, asked, tool = output_read_by_model(api, script, {"type": "apply_patch"}, output)
    assert orjson.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"operation": CREATE}
    assert orjson.loads(tool["content"]) == {"status": "failed", "output": "no space"}


def test_the_model_receives_screen_size_and_skills(api: Api, script: Script) -> None:
    skill = {"name": "reports", "description": "How reports look", "path": "/skills/reports"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    response = api.create(model=script.say("Hi").model, input="Hi", tools=[PREVIEW, shell])
    descriptions = [tool["function"]["description"] for tool in script.bodies[0]["tools"]]
    assert "800 by 600" in descriptions[0]
    assert "/skills/reports: How reports look" in descriptions[1]
    assert response["tools"][1] == shell


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ({"type": "shell"}, '{"command":"ls"}'),
        ({"type": "shell"}, "not JSON"),
        ({"type": "computer"}, '{"actions":[{"type":"dance"}]}'),
        ({"type": "apply_patch"}, '{"operation":{"type":"update_file","path":"a"}}'),
    ],
)
def test_an_invalid_call_is_returned_to_the_model(
    api: Api, script: Script, tool: dict[str, Any], arguments: str
) -> None:
    script.call(**{tool["type"]: arguments}).say("Sorry")
    response = api.create(model=script.model, input="Do it", tools=[tool])
    assert [item["type"] for item in response["output"]] == ["message"]
    assert script.messages[1][-1]["content"].startswith(f"error: The arguments of '{tool['type']}'")


def test_a_run_fails_after_repeated_invalid_calls(api: Api, script: Script) -> None:
    script.always(stream(*calls(shell='{"commands":[]}')))
    answer = api.post("/responses", {"model": script.model, "input": "Do it", "tools": [{"type": "shell"}]})
    assert error(answer)[0] == 500


def test_a_call_of_an_unknown_tool_is_returned_to_the_model(api: Api, script: Script) -> None:
    script.call(smell="{}").say("Sorry")
    response = api.create(model=script.model, input="Do it", tools=[{"type": "shell"}])
    assert [item["type"] for item in response["output"]] == ["message"]
    assert "smell" in script.messages[1][-1]["content"]


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({"type": "shell", "environment": {"type": "elsewhere"}}, "tools[0].environment.type", "invalid_value"),
        ({"type": "code_interpreter"}, "tools[0].container", "missing_required_parameter"),
        ({"type": "programmatic_tool_calling"}, "tools[0].type", "unsupported_value"),
        ({"type": "telepathy"}, "tools[0].type", "invalid_value"),
        ({"type": "computer", "display_width": 1}, "tools[0].display_width", "unknown_parameter"),
        ({"type": "computer_use_preview"}, "tools[0].display_width", "missing_required_parameter"),
        ({"type": "apply_patch", "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers", "unsupported_value"),
        ({"type": "function", "name": "a", "allowed_callers": []}, "tools[0].allowed_callers", "unsupported_value"),
    ],
)
def test_unsupported_tool_options_are_rejected(api: Api, tool: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tools": [tool]})) == (400, param, code)


def test_duplicate_tool_names_are_rejected(api: Api) -> None:
    shells = [{"type": "function", "name": "shell"}, {"type": "shell"}]
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tools": shells})) == (
        400,
        "tools[1]",
        "invalid_value",
    )
    twice = [{"type": "custom", "name": "a"}, {"type": "function", "name": "a"}]
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": twice})
    assert error(answer) == (400, "tools[1].name", "invalid_value")


@pytest.mark.parametrize(
    ("tool", "function", "arguments", "kind"),
    [
        ({"type": "computer"}, "computer", {"actions": [CLICK]}, "computer_call"),
        (PREVIEW, "computer", {"action": CLICK}, "computer_call"),
        ({"type": "shell"}, "shell", {"commands": ["ls", "pwd"]}, "shell_call"),
        ({"type": "local_shell"}, "local_shell", {"command": ["ls"]}, "local_shell_call"),
        ({"type": "apply_patch"}, "apply_patch", {"operation": CREATE}, "apply_patch_call"),
        ({"type": "tool_search", "execution": "client"}, "tool_search", {"query": "x"}, "tool_search_call"),
    ],
)
def test_the_stream_and_the_response_contain_the_same_items(
    api: Api, script: Script, tool: dict[str, Any], function: str, arguments: dict[str, Any], kind: str
) -> None:
    script.call(**{function: orjson.dumps(arguments).decode()})
    events = api.events(model=script.model, input="Do it", tools=[tool])
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == [kind]
    assert api.retrieve(final["id"]) == final
    assert [event["type"] for event in events].count("response.shell_call_command.done") == len(
        arguments.get("commands", [])
    )
