"""The forms of `input`: accepted, sent to the upstream and stored."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls, chunk
from tests.support.upstream import Script, stream

TOOL = {"type": "function", "name": "look", "description": None, "parameters": {"type": "object"}, "strict": None}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def call_item(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": "{}", **more}


def output_item(output: Any, name: str = "look") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": output}


def tool_call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


TEXT = {"type": "input_text", "text": "Hi"}
SAID = {"type": "output_text", "text": "Hi"}
FIGURE = {"type": "input_image", "image_url": PIXEL}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}),
        ({"role": "system", "content": "Hi"}, {"role": "system", "content": "Hi"}),
        ({"role": "developer", "content": "Hi"}, {"role": "system", "content": "Hi"}),
        ({"role": "assistant", "content": "Hi"}, {"role": "assistant", "content": "Hi"}),
        ({"role": "user", "content": [TEXT]}, {"role": "user", "content": "Hi"}),
        ({"type": "message", "role": "user", "content": [TEXT]}, {"role": "user", "content": "Hi"}),
        (
            {"type": "message", "id": "msg_1", "status": "completed", "role": "user", "content": [TEXT]},
            {"role": "user", "content": "Hi"},
        ),
        (
            {"role": "user", "content": [TEXT, TEXT]},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Hi"}]},
        ),
        (
            {"role": "user", "content": [TEXT, {**FIGURE, "detail": "low"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                ],
            },
        ),
        (
            {"role": "user", "content": [FIGURE]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
        ),
        ({"role": "assistant", "content": [SAID, SAID]}, {"role": "assistant", "content": "HiHi"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
            {"role": "assistant", "content": None, "refusal": "No"},
        ),
        ({"role": "assistant", "content": "Hi", "phase": "commentary"}, {"role": "assistant", "content": "Hi"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
    ],
)
def test_messages_are_sent_as_chat_messages(
    api: Api, script: Script, item: dict[str, Any], message: dict[str, Any]
) -> None:
    script.say("Hello")
    api.create(model=script.model, input=[item])
    assert script.messages == [[message]]


def test_ids_and_status_of_input_items_are_kept(api: Api, script: Script) -> None:
    script.say("Hello")
    item = {"type": "message", "id": "msg_mine", "status": "incomplete", "role": "user", "content": [TEXT]}
    response = api.create(model=script.model, input=[item])
    assert api.input_items(response["id"]) == [item]


def test_items_without_an_id_get_one(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input=[{"role": "user", "content": "Hi"}, call_item(), output_item("x")])
    ids = [item["id"] for item in api.input_items(response["id"])]
    assert [name.split("_")[0] for name in ids] == ["msg", "fc", "fco"]


def test_output_is_accepted_as_input(api: Api, script: Script) -> None:
    answer = [chunk(reasoning_content="Hm."), chunk(content="Look:"), *calls(look="{}")]
    script.then(stream(*answer)).say("Bye.")
    first = api.create(model=script.model, input="Hi", tools=[TOOL])
    history = [{"role": "user", "content": "Hi"}, *first["output"], output_item("a cat")]
    second = api.create(model=script.model, input=history)
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    assert api.input_items(second["id"])[1:4] == first["output"]
    assistant = {"role": "assistant", "content": "Look:", "tool_calls": [tool_call("look")]}
    answered = {"role": "tool", "tool_call_id": "call_look", "content": "a cat"}
    assert script.messages[1] == [{"role": "user", "content": "Hi"}, assistant, answered]


def test_output_items_with_the_sdks_nulls_are_accepted(api: Api, script: Script) -> None:
    script.say("Hello")
    part: dict[str, Any] = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": None}
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    nulls: dict[str, Any] = {"namespace": None, "caller": None, "created_by": None, "status": None, "id": None}
    thought: dict[str, Any] = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": None,
        "encrypted_content": None,
    }
    items = [{**message, "phase": None}, {**thought, "status": None}, call_item(**nulls), output_item("x") | nulls]
    api.create(model=script.model, input=items)
    assert [message["role"] for message in script.messages[0]] == ["assistant", "tool"]


def test_null_counts_as_absent_for_keys_of_later_sdks(api: Api, script: Script) -> None:
    script.say("Hello")
    part = {**TEXT, "of_a_later_sdk": None}
    tool = {**TOOL, "another": None}
    api.create(model=script.model, input=[{"role": "user", "content": [part], "one_more": None}], tools=[tool])
    body = {"model": script.model, "input": [{"role": "user", "content": [{**part, "and": 1}]}]}
    assert error(api.post("/responses", body)) == (400, "input[0].content[0].and", "unknown_parameter")


def test_a_function_call_and_its_output_reach_the_model(api: Api, script: Script) -> None:
    script.then(stream(*calls(look='{"at": "it"}'))).say("A cat.")
    first = api.create(model=script.model, input="Look", tools=[TOOL])
    (call,) = first["output"]
    assert call.pop("id").startswith("fc_")
    assert call == call_item(arguments='{"at": "it"}', status="completed")
    second = api.create(model=script.model, input=[output_item("a cat")], previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "A cat."
    assert script.messages[1][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call("look", '{"at": "it"}')]},
        {"role": "tool", "tool_call_id": "call_look", "content": "a cat"},
    ]


def test_functions_can_be_called_in_parallel(api: Api, script: Script) -> None:
    script.then(stream(*calls(look='{"a":1}', listen='{"b":2}'))).say("Done.")
    first = api.create(model=script.model, input="Go", tools=[TOOL, {**TOOL, "name": "listen"}])
    assert [(item["call_id"], item["arguments"]) for item in first["output"]] == [
        ("call_look", '{"a":1}'),
        ("call_listen", '{"b":2}'),
    ]
    outputs = [output_item("L", "listen"), output_item("S", "look")]
    api.create(model=script.model, input=outputs, previous_response_id=first["id"])
    asked, *answered = script.messages[1][1:]
    assert asked["tool_calls"] == [tool_call("look", '{"a":1}'), tool_call("listen", '{"b":2}')]
    assert [(message["tool_call_id"], message["content"]) for message in answered] == [
        ("call_look", "S"),
        ("call_listen", "L"),
    ]


def test_a_function_output_may_consist_of_parts(api: Api, script: Script) -> None:
    script.say("Seen.")
    parts = [TEXT, FIGURE, {"type": "input_text", "text": "there"}]
    response = api.create(model=script.model, input=[call_item(), output_item(parts)])
    tool, figure = script.messages[0][1:]
    assert tool == {
        "role": "tool",
        "tool_call_id": "call_look",
        "content": "Hi\n[Image 1: it follows in a user message.]\nthere",
    }
    label, image = figure["content"]
    assert label["text"].startswith("Image 1 of the output of 'look'")
    assert image == {"type": "image_url", "image_url": {"url": PIXEL}}
    stored = api.input_items(response["id"], include="message.input_image.image_url")[1]["output"]
    assert stored == [TEXT, {**FIGURE, "detail": "auto"}, {"type": "input_text", "text": "there"}]


@pytest.mark.parametrize("with_type", [True, False])
def test_item_references_are_resolved(api: Api, script: Script, with_type: bool) -> None:
    script.say("Hello").say("Again")
    first = api.create(model=script.model, input="Hi")
    item = first["output"][0]
    reference = {"id": item["id"], **({"type": "item_reference"} if with_type else {})}
    second = api.create(model=script.model, input=[reference, {"role": "user", "content": "Again"}])
    assert script.messages[1][0] == {"role": "assistant", "content": "Hello"}
    assert api.input_items(second["id"])[0] == item


def test_a_reference_outlives_the_response_that_it_came_from(api: Api, script: Script) -> None:
    script.say("Hello").say("Again")
    first = api.create(model=script.model, input="Hi")
    item = first["output"][0]
    second = api.create(model=script.model, input=[{"type": "item_reference", "id": item["id"]}])
    api.delete(f"/responses/{first['id']}")
    assert api.input_items(second["id"]) == [item]


def test_references_to_another_teams_items_are_not_found(api: Api, outsider: Api, script: Script) -> None:
    script.say("Hello")
    item_id = api.create(model=script.model, input="Hi")["output"][0]["id"]
    foreign, unknown = (
        outsider.post("/responses", {"model": script.model, "input": [{"type": "item_reference", "id": name}]})
        for name in (item_id, "msg_x")
    )
    assert error(foreign) == (404, "input", None)
    assert foreign.text.replace(item_id, "msg_x") == unknown.text


def test_references_to_unstored_items_are_not_found(api: Api, script: Script) -> None:
    script.say("Hello")
    item_id = api.create(model=script.model, input="Hi", store=False)["output"][0]["id"]
    answer = api.post("/responses", {"model": script.model, "input": [{"type": "item_reference", "id": item_id}]})
    assert error(answer) == (404, "input", None)
    assert "Items are not persisted when `store` is set to false." in answer.json()["error"]["message"]


def test_an_output_without_a_call_is_rejected(api: Api, script: Script) -> None:
    answer = api.post("/responses", {"model": script.model, "input": [output_item("x")]})
    assert error(answer) == (400, "input", None)
    message = "No tool call found for function call output with call_id call_look."
    assert answer.json()["error"]["message"] == message


def test_a_call_without_an_output_is_rejected(api: Api, script: Script) -> None:
    script.call(look="{}")
    first = api.create(model=script.model, input="Look", tools=[TOOL])
    answer = api.post("/responses", {"model": script.model, "input": "Well?", "previous_response_id": first["id"]})
    assert error(answer) == (400, "input", None)
    assert answer.json()["error"]["message"] == "No tool output found for function call call_look."


def test_foreign_encrypted_content_is_rejected(api: Api, script: Script) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    answer = api.post("/responses", {"model": script.model, "input": [thought, {"role": "user", "content": "Hi"}]})
    assert error(answer) == (400, "input", "invalid_encrypted_content")


@pytest.mark.slow
def test_references_cannot_exceed_the_size_limit_of_a_body(api: Api, script: Script) -> None:
    stored = api.create(model=script.say("Yes.").model, input="x" * 1_000_000)
    item_id = api.input_items(stored["id"])[0]["id"]
    many = [{"type": "item_reference", "id": item_id}] * 100
    answer = api.post("/responses", {"model": script.model, "input": many})
    assert error(answer) == (400, "input", "context_length_exceeded")
