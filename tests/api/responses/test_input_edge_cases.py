"""Unusual input: JSON bodies of upstreams, echoed output items, unpaired calls and chains with deleted responses."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import calls
from tests.support.items import SAMPLES
from tests.support.upstream import Answer, Script, stream, whole

TOOL = {"type": "function", "name": "look", "description": None, "parameters": {"type": "object"}, "strict": None}
ASKED = {"role": "user", "content": "Well?"}


def chat_message(role: str, content: str) -> dict[str, str]:
    """Return a chat message."""
    return {"role": role, "content": content}


def call(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": "{}", **more}


def output(number: int, content: Any = "a cat") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": content}


def completion(**message: Any) -> Answer:
    """Return an answer that is not streamed."""
    return whole({"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]})


def test_a_json_body_may_have_calls_and_null_content(api: Api, script: Script) -> None:
    function = {"name": "look", "arguments": '{"at":1}'}
    script.then(completion(content=None, tool_calls=[{"id": "call_1", "type": "function", "function": function}]))
    (item,) = api.create(model=script.model, input="Look", tools=[TOOL])["output"]
    assert (item["type"], item["call_id"], item["arguments"]) == ("function_call", "call_1", '{"at":1}')


def test_content_of_a_json_body_may_be_a_list_of_parts(api: Api, script: Script) -> None:
    script.then(completion(content=[{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]))
    (item,) = api.create(model=script.model, input="Hi")["output"]
    assert item["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": []}, {"error": {"message": "No.", "code": 500}}])
def test_a_json_body_without_choices_fails(api: Api, script: Script, body: dict[str, Any]) -> None:
    script.then(whole(body))
    assert error(api.post("/responses", {"model": script.model, "input": "Hi"}))[0] >= 500
    (failed,) = api.get("/responses").json()["data"]
    assert (failed["status"], failed["output"]) == ("failed", [])


@pytest.mark.parametrize("drop", [(), ("id",), ("status",), ("id", "status")])
def test_output_items_are_accepted_as_input_without_id_or_status(
    api: Api, script: Script, drop: tuple[str, ...]
) -> None:
    script.say("So it is.")
    names = (
        "msg_2",
        "fc_1",
        "fco_1",
        "ctc_1",
        "ctco_1",
        "mcpl_1",
        "mcp_1",
        "fs_1",
        "ws_1",
        "ci_1",
        "prog_1",
        "progo_1",
    )
    items = [{key: value for key, value in SAMPLES[name].items() if key not in drop} for name in names]
    items[2]["output"] = "a cat"
    response = api.create(model=script.model, input=[*items, ASKED])
    stored = api.input_items(response["id"])
    assert [item["type"] for item in stored] == [*(item["type"] for item in items), "message"]
    assert all(item["id"] for item in stored)


@pytest.mark.parametrize(
    "content", ["a cat", [{"type": "input_text", "text": "a "}, {"type": "input_text", "text": "cat"}]]
)
def test_a_function_call_output_is_a_string_or_a_list(api: Api, script: Script, content: Any) -> None:
    script.say("So it is.")
    api.create(model=script.model, input=[call(1), output(1, content)])
    assert script.messages[0][1]["content"].replace("\n", "") == "a cat"


def test_an_approval_without_its_request_is_rejected(api: Api) -> None:
    body = {"model": "m", "input": [SAMPLES["mcpa_1"]]}
    status, param, _ = error(api.post("/responses", body))
    assert (status, param) == (400, "input")


def test_an_unknown_item_type_is_rejected_with_its_index(api: Api) -> None:
    body = {"model": "m", "input": [ASKED, {"type": "telepathy", "id": "tp_1"}]}
    assert error(api.post("/responses", body)) == (400, "input[1]", "invalid_value")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([output(1)], "No tool call found for function call output with call_id call_1."),
        ([call(1)], "No tool output found for function call call_1."),
        ([call(1), output(1), call(2)], "No tool output found for function call call_2."),
    ],
)
def test_calls_and_outputs_must_be_paired(api: Api, items: list[dict[str, Any]], message: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": [*items, ASKED]})
    assert error(answer) == (400, "input", None)
    assert answer.json()["error"]["message"] == message


def test_consecutive_calls_become_one_message_followed_by_their_outputs(api: Api, script: Script) -> None:
    script.say("Two cats.")
    items = [{"role": "assistant", "content": "Let me look."}, call(1), call(2), output(2, "B"), output(1, "A")]
    api.create(model=script.model, input=[*items, ASKED])
    spoken, one, two, question = script.messages[0]
    assert (spoken["content"], [made["id"] for made in spoken["tool_calls"]]) == ("Let me look.", ["call_1", "call_2"])
    assert [(one["tool_call_id"], one["content"]), (two["tool_call_id"], two["content"])] == [
        ("call_1", "A"),
        ("call_2", "B"),
    ]
    assert question == chat_message("user", "Well?")


def test_an_async_call_needs_no_output_yet(api: Api, script: Script) -> None:
    script.say("Later.")
    api.create(model=script.model, input=[call(1, **{"async": True}), ASKED])
    assert script.messages[0][0]["tool_calls"][0]["id"] == "call_1"


def test_instructions_are_not_inherited_but_system_messages_are(api: Api, script: Script) -> None:
    script.say("1").say("2")
    items = [
        chat_message("user", "a"),
        chat_message("system", "Be kind."),
        chat_message("developer", "Be short."),
        chat_message("user", "b"),
    ]
    first = api.create(model=script.model, input=items, instructions="Be wise.")
    api.create(model=script.model, input="c", previous_response_id=first["id"])
    shown = [
        chat_message("user", "a"),
        chat_message("system", "Be kind."),
        chat_message("system", "Be short."),
        chat_message("user", "b"),
    ]
    assert script.messages[0] == [chat_message("system", "Be wise."), *shown]
    assert script.messages[1] == [*shown, chat_message("assistant", "1"), chat_message("user", "c")]


def test_an_unstored_response_can_continue_a_stored_one(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")
    second = api.create(model=script.model, input="b", previous_response_id=first["id"], store=False)
    assert script.messages[1] == [chat_message("user", "a"), chat_message("assistant", "1"), chat_message("user", "b")]
    assert api.get(f"/responses/{second['id']}").status_code == 404


def test_a_deleted_response_is_removed_from_its_chain(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3").say("4")
    ids: list[str | None] = [None]
    for word in "abc":
        ids.append(api.create(model=script.model, input=word, previous_response_id=ids[-1])["id"])
    api.delete(f"/responses/{ids[2]}")
    api.create(model=script.model, input="d", previous_response_id=ids[3])
    before = [chat_message("user", "a"), chat_message("assistant", "1")]
    assert script.messages[3] == [
        *before,
        chat_message("user", "c"),
        chat_message("assistant", "3"),
        chat_message("user", "d"),
    ]
    assert [item["content"][0]["text"] for item in api.input_items(str(ids[3]))] == ["a", "1", "c"]


def test_an_output_whose_call_was_deleted_is_dropped(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("A cat.").say("Yes.")
    first = api.create(model=script.model, input="Look", tools=[TOOL])
    answered = [{"type": "function_call_output", "call_id": "call_look", "output": "a cat"}]
    second = api.create(model=script.model, input=answered, previous_response_id=first["id"])
    api.delete(f"/responses/{first['id']}")
    api.create(model=script.model, input="Sure?", previous_response_id=second["id"])
    assert script.messages[2] == [chat_message("assistant", "A cat."), chat_message("user", "Sure?")]
