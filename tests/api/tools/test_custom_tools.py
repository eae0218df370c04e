"""Custom tools, which take free text: emulated with functions, or passed on to upstreams that know them."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream

WRITE = {"type": "custom", "name": "write", "description": "Writes code."}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "yes" | "no"'}


def kept_to(grammar: dict[str, Any]) -> dict[str, Any]:
    return {**WRITE, "format": grammar}


def test_a_custom_tool_is_a_function_with_one_text_for_the_upstream(api: Api, script: Script) -> None:
    response = api.create(model=script.say("Hi").model, input="Hi", tools=[WRITE])
    assert response["tools"] == [{**WRITE, "format": {"type": "text"}}]
    function = script.bodies[0]["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("write", "Writes code.")
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert function["parameters"]["required"] == ["input"]


def test_the_client_gets_the_input_and_the_model_the_output(api: Api, script: Script) -> None:
    script.call(write='{"input":"print(1)\\n"}').say("Done")
    first = api.create(model=script.model, input="Go", tools=[WRITE])
    call = first["output"][0]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "write", "print(1)\n")
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "1"}
    api.create(model=script.model, previous_response_id=first["id"], input=[output], tools=[WRITE])
    *_, asked, told = script.messages[1]
    assert asked["tool_calls"][0]["function"] == {"name": "write", "arguments": '{"input":"print(1)\\n"}'}
    assert told == {"role": "tool", "tool_call_id": call["call_id"], "content": "1"}


def test_the_input_is_streamed(api: Api, script: Script) -> None:
    pieces = ['{"inp', 'ut":"a\\u00e4', 'b"}']
    head = {"index": 0, "id": "c1", "function": {"name": "write", "arguments": ""}}
    rest = [chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
    script.then(stream(chunk(tool_calls=[head]), *rest, chunk(finish="tool_calls")))
    events = api.events(model=script.model, input="Go", tools=[WRITE])
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["aä", "b"]
    assert events[-1]["response"]["output"][0]["input"] == "aäb"


def test_a_call_can_be_sent_back_without_a_chain(api: Api, script: Script) -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "write", "input": "x"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]}
    api.create(model=script.say("Hi").model, input=[{"role": "user", "content": "Go"}, call, output])
    assert [message["role"] for message in script.messages[0]] == ["user", "assistant", "tool"]


def test_a_missing_description_is_left_out_of_the_response(api: Api, script: Script) -> None:
    tool = {"type": "custom", "name": "write"}
    response = api.create(model=script.say("Hi").model, input="Go", tools=[tool])
    assert response["tools"] == [{**tool, "format": {"type": "text"}}]


# -- grammars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grammar", "good"), [(REGEX, "abc"), (LARK, "yes")])
def test_input_matching_the_grammar_is_returned(api: Api, script: Script, grammar: dict[str, Any], good: str) -> None:
    script.call(write=f'{{"input":"{good}"}}')
    response = api.create(model=script.model, input="Go", tools=[kept_to(grammar)])
    assert response["output"][0]["input"] == good
    assert response["tools"] == [kept_to(grammar)]
    words = script.bodies[0]["tools"][0]["function"]["parameters"]["properties"]["input"]["description"]
    assert grammar["definition"] in words


@pytest.mark.parametrize("grammar", [REGEX, LARK])
def test_input_violating_the_grammar_is_requested_again(api: Api, script: Script, grammar: dict[str, Any]) -> None:
    script.call(write='{"input":"123"}').call(write='{"input":"yes"}')
    events = api.events(model=script.model, input="Go", tools=[kept_to(grammar)])
    assert [item["input"] for item in events[-1]["response"]["output"]] == ["yes"]
    assert all("123" not in event.get("delta", "") for event in events)
    assert "write" in str(script.messages[1])


def test_repeated_grammar_violations_fail_the_response(api: Api, script: Script) -> None:
    script.always(stream(*calls(write='{"input":"123"}')))
    answer = api.post("/responses", {"model": script.model, "input": "Go", "tools": [kept_to(REGEX)]})
    assert error(answer)[0] == 500


@pytest.mark.parametrize(
    "grammar",
    [
        {**REGEX, "definition": "("},
        {**LARK, "definition": "start: nothing"},
        {**LARK, "definition": "is this a grammar?"},
    ],
)
def test_an_invalid_grammar_is_refused(api: Api, script: Script, grammar: dict[str, Any]) -> None:
    tools = [{"type": "function", "name": "a"}, kept_to(grammar)]
    answer = api.post("/responses", {"model": script.model, "input": "Go", "tools": tools})
    assert error(answer) == (400, "tools[1].format.definition", "invalid_value")


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({"type": "custom"}, "tools[0].name", "missing_required_parameter"),
        ({**WRITE, "name": "a b"}, "tools[0].name", "invalid_value"),
        ({**WRITE, "format": {"type": "xml"}}, "tools[0].format.type", "invalid_value"),
        ({**WRITE, "format": {**REGEX, "syntax": "bnf"}}, "tools[0].format.syntax", "invalid_value"),
        ({**WRITE, "format": {"type": "grammar"}}, "tools[0].format.syntax", "missing_required_parameter"),
        ({**WRITE, "parameters": {}}, "tools[0].parameters", "unknown_parameter"),
    ],
)
def test_invalid_custom_tools_are_rejected(api: Api, tool: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tools": [tool]})) == (400, param, code)


# -- upstreams that know custom tools ----------------------------------------------------------------------------------


def test_custom_tools_are_forwarded_unchanged_to_models_that_support_them(api: Api, script: Script) -> None:
    call = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "write", "input": "ye"}}
    more = {"index": 0, "custom": {"input": "s"}}
    describe(script, custom_tools=True).then(
        stream(chunk(tool_calls=[call]), chunk(tool_calls=[more]), chunk(finish="tool_calls"))
    ).say("Done")
    choice = {"type": "custom", "name": "write"}
    first = api.create(model=script.model, input="Go", tools=[kept_to(LARK)], tool_choice=choice)
    assert first["output"][0]["input"] == "yes"
    grammar = {"syntax": "lark", "definition": LARK["definition"]}
    custom = {"name": "write", "description": "Writes code.", "format": {"type": "grammar", "grammar": grammar}}
    assert script.bodies[0]["tools"] == [{"type": "custom", "custom": custom}]
    assert script.bodies[0]["tool_choice"] == {"type": "custom", "custom": {"name": "write"}}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    api.create(model=script.model, previous_response_id=first["id"], input=[output], tools=[kept_to(LARK)])
    asked = {"id": "c1", "type": "custom", "custom": {"name": "write", "input": "yes"}}
    assert script.messages[1][-2]["tool_calls"] == [asked]


def test_functions_beside_custom_tools_stay_functions(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look"}, WRITE]
    api.create(model=describe(script, custom_tools=True).say("Hi").model, input="Hi", tools=tools)
    assert [tool["type"] for tool in script.bodies[0]["tools"]] == ["function", "custom"]
