"""`POST /v1/responses/input_tokens`: an estimate of four characters per token over what would be sent."""

from typing import Any

import pytest
from openai import OpenAI

from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, MakeApi, error, ok
from tests.support.upstream import Gate, Script, stream

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
LOOK_AS_SENT = '{"name":"look","description":"Looks.","parameters":{"type":"object"}}'
FORMAT = {"type": "json_schema", "name": "city", "schema": {"type": "string"}, "strict": True}
PNG = "data:image/png;base64," + "A" * 4000


def count(api: Api, **body: Any) -> int:
    """Return the token count of a body."""
    answer = ok(api.post("/responses/input_tokens", body))
    assert answer.keys() == {"object", "input_tokens"}
    assert answer["object"] == "response.input_tokens"
    tokens: int = answer["input_tokens"]
    return tokens


def image(**more: Any) -> list[dict[str, Any]]:
    """Return an input of one image."""
    return [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, **more}]}]


@pytest.mark.parametrize(("given", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("Grüße", 2)])
def test_four_characters_count_as_a_token(api: Api, given: str, tokens: int) -> None:
    assert count(api, input=given) == tokens


@pytest.mark.parametrize("body", [{}, {"input": None, "model": None, "tools": None, "conversation": None}])
def test_an_empty_body_has_no_tokens(api: Api, body: dict[str, Any]) -> None:
    assert count(api, **body) == 0


def test_a_string_counts_like_its_message(api: Api) -> None:
    parts = [{"type": "input_text", "text": "twelve "}, {"type": "input_text", "text": "chars"}]
    assert count(api, input=[{"role": "user", "content": parts}]) == count(api, input="twelve chars") == 3


def test_instructions_count(api: Api) -> None:
    assert (count(api, instructions="Be brief"), count(api, instructions="Be brief", input="abcd")) == (2, 3)


def test_calls_count_with_their_names_and_outputs(api: Api) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a red car!"}
    assert count(api, input=[call, output]) == len("look" + "{}" + "a red car!") // 4


def test_reasoning_that_is_not_sent_again_counts_nothing(api: Api) -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm. " * 100}]}
    assert count(api, input=[reasoning, {"role": "user", "content": "abcd"}]) == 1


def test_an_image_counts_by_its_detail_and_not_by_its_bytes(api: Api) -> None:
    assert count(api, input=image()) == count(api, input=image(detail="high")) == 765
    assert count(api, input=image(detail="low")) == 85


def test_tool_definitions_count(api: Api) -> None:
    assert count(api, tools=[LOOK]) == -(-len(LOOK_AS_SENT) // 4)


def test_only_tools_offered_to_the_model_count(api: Api) -> None:
    other = {"type": "function", "name": "listen", "description": "Listens " * 100}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    assert count(api, tools=[LOOK, other], tool_choice=allowed) == count(api, tools=[LOOK])
    assert count(api, tools=[LOOK, other]) > count(api, tools=[LOOK]) + 200


def test_the_schema_of_the_text_format_counts(api: Api) -> None:
    assert count(api, text={"format": {"type": "text"}}) == 0
    assert count(api, text={"format": FORMAT}) > 10


def test_items_without_text_count_nothing(api: Api) -> None:
    more = {"reasoning": {"effort": "low"}, "parallel_tool_calls": False, "truncation": "disabled"}
    assert count(api, input="abcd", **more) == 1


def test_the_previous_chain_counts(api: Api, script: Script) -> None:
    script.say("four").say("more")
    first = api.create(model=script.model, input="12345678", instructions="Not inherited by anyone.")
    second = api.create(model=script.model, input="abcd", previous_response_id=first["id"])
    assert count(api, previous_response_id=first["id"]) == 3
    assert count(api, previous_response_id=second["id"], input="1234") == 6
    spelled_out = api.input_items(second["id"]) + second["output"]
    assert count(api, input=[*spelled_out, {"role": "user", "content": "1234"}]) == 6


def test_references_count_like_their_items(api: Api, script: Script) -> None:
    script.say("four more")
    response = api.create(model=script.model, input="Hi")
    assert count(api, input=[{"type": "item_reference", "id": response["output"][0]["id"]}]) == 3


def test_counting_stores_nothing_and_calls_no_upstream(api: Api, script: Script) -> None:
    script.say("four")
    first = api.create(model=script.model, input="abcd")
    assert count(api, model=script.model, previous_response_id=first["id"], input="efgh") == 3
    assert [row["id"] for row in ok(api.get("/responses"))["data"]] == [first["id"]]
    assert api.retrieve(first["id"]) == first
    with scope.team(api.caller.team.pk):
        assert UsageRecord.objects.count() == 1
    assert len(script.bodies) == 1


def test_the_sdk_can_count(client: OpenAI, script: Script) -> None:
    counted = client.responses.input_tokens.count(model=script.model, input="abcdefgh", instructions="abcd")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 3)


BAD: list[tuple[dict[str, Any], tuple[str | None, str | None]]] = [
    ({"personality": "friendly"}, ("personality", "unsupported_parameter")),
    ({"truncation": "some"}, ("truncation", "invalid_value")),
    ({"reasoning": {"mode": "pro"}}, ("reasoning.mode", "unsupported_value")),
    ({"tools": [{"type": "programmatic_tool_calling"}]}, ("tools[0].type", "unsupported_value")),
    ({"tools": [{"type": "function"}]}, ("tools[0].name", "missing_required_parameter")),
    ({"tool_choice": "required"}, ("tool_choice", "invalid_value")),
    ({"input": 5}, ("input", "invalid_type")),
    ({"input": 0}, ("input", "invalid_type")),
    ({"input": [{"type": "message", "role": "robot", "content": "Hi"}]}, ("input[0].role", "invalid_value")),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, ("input", None)),
    ({"instructions": 5}, ("instructions", "invalid_type")),
    ({"model": ""}, ("model", "empty_string")),
    ({"text": {"verbosity": "shouting"}}, ("text.verbosity", "invalid_value")),
    ({"previous_response_id": "resp_unknown"}, ("previous_response_id", "previous_response_not_found")),
    ({"temperature": 1}, ("temperature", "unknown_parameter")),
    ({"store": None}, ("store", "unknown_parameter")),
    ({"instruction": "Hi"}, ("instruction", "unknown_parameter")),
]


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_invalid_input_is_rejected_as_for_a_response(
    api: Api, body: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    assert error(api.post("/responses/input_tokens", body)) == (400, *expected)


def test_a_misspelled_parameter_gets_a_suggestion(api: Api) -> None:
    answer = api.post("/responses/input_tokens", {"instruction": "Hi"})
    assert answer.json()["error"]["message"] == "Unknown parameter: 'instruction'. Did you mean 'instructions'?"


def test_another_teams_response_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    script.say("Hello")
    theirs = api.create(model=script.model, input="Hi")["id"]
    foreign, unknown = (
        outsider.post("/responses/input_tokens", {"previous_response_id": name}) for name in (theirs, "resp_unknown")
    )
    assert error(foreign) == (400, "previous_response_id", "previous_response_not_found")
    assert foreign.text.replace(theirs, "resp_unknown") == unknown.text


def test_another_teams_item_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    script.say("Hello")
    theirs = api.create(model=script.model, input="Hi")["output"][0]["id"]
    foreign, unknown = (
        outsider.post("/responses/input_tokens", {"input": [{"type": "item_reference", "id": name}]})
        for name in (theirs, "msg_unknown")
    )
    assert error(foreign) == (404, "input", None)
    assert foreign.text.replace(theirs, "msg_unknown") == unknown.text


def test_an_unstored_response_is_not_found(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", store=False)
    answer = api.post("/responses/input_tokens", {"previous_response_id": response["id"]})
    assert error(answer) == (400, "previous_response_id", "previous_response_not_found")


def test_a_running_response_cannot_be_counted(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate))
    with api.stream(model=script.model, input="Hi") as live:
        running = live.next()["response"]["id"]
        gate.wait_until_reached()
        answer = api.post("/responses/input_tokens", {"previous_response_id": running})
        assert error(answer) == (400, "previous_response_id", None)
        gate.open()


def test_a_model_the_key_may_not_use_is_not_found(make_api: MakeApi) -> None:
    api = make_api(allowed_models=["other"])
    answer = api.post("/responses/input_tokens", {"model": "mine", "input": "Hi"})
    assert error(answer) == (400, "model", "model_not_found")
    assert count(api, input="Hi") == 1


def test_counting_requires_the_scope_to_create(make_api: MakeApi) -> None:
    refused = make_api(scopes=["responses.read"]).post("/responses/input_tokens", {"input": "Hi"})
    assert error(refused) == (403, None, "insufficient_scope")
    assert count(make_api(scopes=["responses.write"]), input="Hi") == 1


def test_a_key_and_the_post_method_are_required(api: Api) -> None:
    answer = api.post("/responses/input_tokens", {"input": "Hi"}, {"Authorization": "Bearer sk-wrong"})
    assert error(answer) == (401, None, "invalid_api_key")
    assert error(api.get("/responses/input_tokens")) == (405, None, "method_not_supported")
