"""The `prompt` parameter: stored prompts of the team, with versions and variables."""

from typing import Any

import pytest

from responses.models import PromptTemplate
from tenants import scope
from tests.support.api import Api, error
from tests.support.prompts import rewrite_prompt, write_prompt
from tests.support.upstream import Script

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def instruction_texts(response: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return role and text of each instruction a response shows."""
    return [(message["role"], message["content"][0]["text"]) for message in response["instructions"]]


def test_messages_of_the_prompt_come_first(api: Api, script: Script) -> None:
    script.say("Hello")
    prompt = write_prompt(api.caller, "Be brief.", "Be kind.")
    response = api.create(model=script.model, input="Hi", prompt={"id": prompt.pk})
    assert [message["content"] for message in script.messages[0]] == ["Be brief.", "Be kind.", "Hi"]
    assert instruction_texts(response) == [("developer", "Be brief."), ("developer", "Be kind.")]
    assert response["prompt"] == {"id": prompt.pk, "variables": {}, "version": "1"}
    assert api.retrieve(response["id"]) == response


def test_instructions_come_before_the_prompt(api: Api, script: Script) -> None:
    script.say("Hello")
    prompt = write_prompt(api.caller, "Be brief.")
    response = api.create(model=script.model, input="Hi", instructions="Speak French.", prompt={"id": prompt.pk})
    assert [message["content"] for message in script.messages[0]] == ["Speak French.", "Be brief.", "Hi"]
    assert instruction_texts(response) == [("system", "Speak French."), ("developer", "Be brief.")]


def test_the_prompt_is_not_an_input_item_and_does_not_apply_to_later_responses(api: Api, script: Script) -> None:
    script.say("Hello").say("Hello again")
    prompt = write_prompt(api.caller, "Be brief.")
    first = api.create(model=script.model, input="Hi", prompt={"id": prompt.pk})
    api.create(model=script.model, input="And?", previous_response_id=first["id"])
    assert [item["content"][0]["text"] for item in api.input_items(first["id"])] == ["Hi"]
    assert [message["content"] for message in script.messages[1]] == ["Hi", "Hello", "And?"]


def test_variables_are_substituted(api: Api, script: Script) -> None:
    script.say("Hello")
    prompt = write_prompt(api.caller, "Greet {{ name }} of {{city}}, {{name}}!")
    variables = {"name": "Ada", "city": {"type": "input_text", "text": "London"}}
    response = api.create(model=script.model, input="Hi", prompt={"id": prompt.pk, "variables": variables})
    assert script.messages[0][0]["content"] == "Greet Ada of London, Ada!"
    assert response["prompt"]["variables"] == variables


def test_placeholders_in_the_value_of_a_variable_are_not_substituted(api: Api, script: Script) -> None:
    script.say("Hello")
    prompt = write_prompt(api.caller, "Greet {{name}} {{other}}.")
    variables = {"name": "{{other}}", "other": "\\1"}
    api.create(model=script.model, input="Hi", prompt={"id": prompt.pk, "variables": variables})
    assert script.messages[0][0]["content"] == "Greet {{other}} \\1."


def test_a_variable_can_be_an_image(api: Api, script: Script) -> None:
    script.say("A cat")
    prompt = write_prompt(api.caller, "Describe {{picture}} briefly.", role="user")
    variables = {"picture": {"type": "input_image", "image_url": PNG, "detail": "low"}}
    response = api.create(model=script.model, prompt={"id": prompt.pk, "variables": variables})
    assert [part["type"] for part in script.messages[0][0]["content"]] == ["text", "image_url", "text"]
    assert response["prompt"]["variables"] == variables


def test_an_image_in_an_assistant_message_is_refused(api: Api, script: Script) -> None:
    prompt = write_prompt(api.caller, "I see {{picture}}.", role="assistant")
    variables = {"picture": {"type": "input_image", "image_url": PNG}}
    body = {"model": script.model, "input": "Hi", "prompt": {"id": prompt.pk, "variables": variables}}
    assert error(api.post("/responses", body)) == (400, "prompt.variables.picture", "invalid_type")


def test_the_prompt_provides_missing_model_and_parameters(api: Api, script: Script) -> None:
    script.say("Hello")
    defaults = {"temperature": 0.2, "top_p": 0.5, "reasoning": {"effort": "low"}}
    prompt = write_prompt(api.caller, "Be brief.", model=script.model, parameters=defaults)
    response = api.create(input="Hi", prompt={"id": prompt.pk}, top_p=0.9)
    assert (response["model"], response["temperature"], response["top_p"]) == (script.model, 0.2, 0.9)
    assert (script.bodies[0]["temperature"], script.bodies[0]["top_p"]) == (0.2, 0.9)
    assert script.bodies[0]["reasoning_effort"] == "low"


def test_tool_choice_may_name_a_tool_of_the_prompt(api: Api, script: Script) -> None:
    script.call(look="{}")
    tool = {"type": "function", "name": "look"}
    prompt = write_prompt(api.caller, "Look.", parameters={"tools": [tool]})
    response = api.create(
        model=script.model, input="Hi", prompt={"id": prompt.pk}, tool_choice={"type": "function", "name": "look"}
    )
    assert response["output"][0]["name"] == "look"
    assert response["tools"][0]["name"] == "look"


def test_the_current_version_is_the_default(api: Api, script: Script) -> None:
    script.say("1").say("2").say("1")
    prompt = write_prompt(api.caller, "One.")
    rewrite_prompt(prompt, "Two.")
    for version in ({"version": "1"}, {}, {"version": None}):
        api.create(model=script.model, input="Hi", prompt={"id": prompt.pk, **version})
    assert [messages[0]["content"] for messages in script.messages] == ["One.", "Two.", "Two."]


def test_an_older_version_can_be_made_current_again(api: Api, script: Script) -> None:
    script.say("1")
    prompt = write_prompt(api.caller, "One.")
    rewrite_prompt(prompt, "Two.")
    with scope.team(prompt.team_id):
        PromptTemplate.objects.update(current=1)
    response = api.create(model=script.model, input="Hi", prompt={"id": prompt.pk})
    assert (response["prompt"]["version"], script.messages[0][0]["content"]) == ("1", "One.")


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"variables": {}}, "prompt.variables.name", "missing_required_parameter"),
        ({"variables": {"name": "Ada", "nmae": "x"}}, "prompt.variables.nmae", "unknown_parameter"),
    ],
)
def test_unknown_and_missing_variables_are_refused(api: Api, given: dict[str, Any], param: str, code: str) -> None:
    prompt = write_prompt(api.caller, "Greet {{name}}.")
    body = {"model": "m", "input": "Hi", "prompt": {"id": prompt.pk, **given}}
    assert error(api.post("/responses", body)) == (400, param, code)


@pytest.mark.parametrize("version", ["2", "0", "-1", "one", "1.0", "٢", "9" * 20])
def test_an_unknown_version_is_named(api: Api, version: str) -> None:
    prompt = write_prompt(api.caller, "One.")
    body = {"model": "m", "input": "Hi", "prompt": {"id": prompt.pk, "version": version}}
    assert error(api.post("/responses", body)) == (404, "prompt.version", None)


@pytest.mark.parametrize("version", [None, "1"])
def test_another_teams_prompt_is_not_found(api: Api, outsider: Api, version: str | None) -> None:
    prompt = write_prompt(api.caller, "One.")
    for prompt_id in (prompt.pk, "pmpt_unknown", "pmpt_\x00"):
        body = {"model": "m", "input": "Hi", "prompt": {"id": prompt_id, "version": version}}
        assert error(outsider.post("/responses", body)) == (404, "prompt.id", None)


def test_a_model_is_required_in_the_request_or_the_prompt(api: Api) -> None:
    prompt = write_prompt(api.caller, "Be brief.")
    body = {"input": "Hi", "prompt": {"id": prompt.pk}}
    assert error(api.post("/responses", body)) == (400, "model", "missing_required_parameter")


def test_a_response_with_a_prompt_can_be_streamed(api: Api, script: Script) -> None:
    script.say("Hello")
    prompt = write_prompt(api.caller, "Be brief.", model=script.model)
    events = api.events(prompt={"id": prompt.pk}, input="Hi")
    assert (
        instruction_texts(events[0]["response"])
        == instruction_texts(events[-1]["response"])
        == [("developer", "Be brief.")]
    )
