"""`tool_choice` that requires a call: the model makes it, or the response is not completed."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, stream

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "listen")]
NAMED = {"type": "function", "name": "listen"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
DUE: dict[str, Any] = {"any": "required", "one": NAMED, "one of some": ALLOWED}


@pytest.mark.parametrize("what", DUE)
def test_text_instead_of_a_required_call_is_discarded_and_the_turn_repeated(
    api: Api, script: Script, what: str
) -> None:
    script.say("I would rather not.").call(listen="{}")
    response = api.create(model=script.model, input="Hi", tools=TOOLS, tool_choice=DUE[what])
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert script.bodies[1]["tool_choice"] == script.bodies[0]["tool_choice"]
    assert "cannot be used" in script.bodies[1]["messages"][-1]["content"]


@pytest.mark.parametrize("what", DUE)
def test_a_second_answer_without_the_call_fails_the_response(api: Api, script: Script, what: str) -> None:
    script.say("No.").say("No!")
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "tools": TOOLS, "tool_choice": DUE[what]})
    assert error(answer) == (500, None, "server_error")
    assert "did not call" in answer.json()["error"]["message"]


def test_calling_another_function_does_not_satisfy_a_named_choice(api: Api, script: Script) -> None:
    script.call(look="{}").call(listen="{}")
    response = api.create(model=script.model, input="Hi", tools=TOOLS, tool_choice=NAMED)
    assert [item["name"] for item in response["output"]] == ["listen"]


def test_a_required_call_is_streamed_without_delay(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(*calls(look='{"a":1}')[:2], gate, chunk(finish="tool_calls")))
    with api.stream(model=script.model, input="Hi", tools=TOOLS, tool_choice="required") as events:
        while events.next()["type"] != "response.function_call_arguments.delta":
            pass
        gate.open()
        assert events.rest()[-1]["type"] == "response.completed"


def test_a_model_without_tool_choice_gets_it_as_an_instruction(api: Api, script: Script) -> None:
    describe(script, forced_tool_choice=False).call(listen="{}")
    response = api.create(model=script.model, input="Hi", tools=TOOLS, tool_choice=NAMED)
    assert (script.bodies[0]["tool_choice"], response["tool_choice"]) == ("auto", NAMED)
    assert "'listen'" in script.bodies[0]["messages"][0]["content"]


def test_only_the_model_sees_a_call_of_an_unknown_tool(api: Api, script: Script) -> None:
    script.call(smell="{}").say("I cannot smell.")
    response = api.create(model=script.model, input="Hi", tools=TOOLS)
    assert [item["type"] for item in response["output"]] == ["message"]
    assert script.bodies[1]["messages"][-1]["role"] == "tool"
    assert "no tool named 'smell'" in script.bodies[1]["messages"][-1]["content"]
