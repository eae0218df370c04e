"""Deletion of responses in the middle of a chain: only their own items disappear from it."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.chunks import calls
from tests.support.conversations import begin
from tests.support.upstream import Script, stream

OUTPUT = {"type": "function_call_output", "call_id": "call_look", "output": "a cat"}


def chain(api: Api, script: Script, *inputs: Any) -> list[str]:
    """Create a response for each input, each continuing the previous one; returns their ids."""
    ids: list[str] = []
    for one in inputs:
        follows = {"previous_response_id": ids[-1]} if ids else {}
        ids.append(api.create(model=script.model, input=one, **follows)["id"])
    return ids


def delete(api: Api, *response_ids: str) -> None:
    for response_id in response_ids:
        ok(api.delete(f"/responses/{response_id}"))


def model_input(api: Api, script: Script, previous: str) -> list[str]:
    """Return the texts or types of the messages that the model reads in the next response."""
    script.say("!")
    api.create(model=script.model, input="?", previous_response_id=previous)
    return [str(message["content"]) for message in script.messages[-1]]


def test_items_before_a_deleted_response_are_still_read(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3")
    first, second, third = chain(api, script, "a", "b", "c")
    delete(api, second)
    assert model_input(api, script, third) == ["a", "1", "c", "3", "?"]
    assert api.retrieve(third)["previous_response_id"] == second
    assert [item["content"][0]["text"] for item in api.input_items(third)] == ["a", "1", "c"]
    assert model_input(api, script, first) == ["a", "1", "?"]


def test_several_responses_of_a_chain_can_be_deleted(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3").say("4").say("5")
    ids = chain(api, script, "a", "b", "c", "d", "e")
    delete(api, ids[2], ids[1], ids[0])
    assert model_input(api, script, ids[4]) == ["d", "4", "e", "5", "?"]


def test_both_branches_after_a_deleted_response_continue(api: Api, script: Script) -> None:
    script.say("1").say("2").say("left").say("right")
    first, second = chain(api, script, "a", "b")
    left, right = (api.create(model=script.model, input=word, previous_response_id=second)["id"] for word in ("l", "r"))
    delete(api, second)
    assert model_input(api, script, left) == ["a", "1", "l", "left", "?"]
    assert model_input(api, script, right) == ["a", "1", "r", "right", "?"]
    delete(api, first)
    assert model_input(api, script, right) == ["r", "right", "?"]


def test_a_call_whose_output_was_deleted_is_not_read(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.").say("3")
    _, second, third = chain(api, script, "a", [OUTPUT], "c")
    delete(api, second)
    assert model_input(api, script, third) == ["a", "c", "3", "?"]


def test_an_output_whose_call_was_deleted_is_not_read(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.").say("3")
    first, second, third = chain(api, script, "a", [OUTPUT], "c")
    delete(api, first)
    assert model_input(api, script, second) == ["Seen.", "?"]
    assert model_input(api, script, third) == ["Seen.", "c", "3", "?"]


def test_an_open_call_still_requires_its_output(api: Api, script: Script) -> None:
    script.say("1").then(stream(*calls(look="{}"))).say("Seen.")
    first, second = chain(api, script, "a", "b")
    delete(api, first)
    body = {"model": script.model, "previous_response_id": second}
    assert error(api.post("/responses", {**body, "input": "?"}))[:2] == (400, "input")
    ok(api.post("/responses", {**body, "input": [OUTPUT]}))
    assert [message["role"] for message in script.messages[2]] == ["user", "assistant", "tool"]


def test_a_client_output_requires_its_call(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.")
    first, second = chain(api, script, "a", [OUTPUT])
    delete(api, first)
    body = {"model": script.model, "previous_response_id": second, "input": [OUTPUT]}
    assert error(api.post("/responses", body))[:2] == (400, "input")


@pytest.mark.parametrize("deletes", [False, True])
def test_a_chain_that_began_in_a_conversation_keeps_what_it_read(api: Api, script: Script, deletes: bool) -> None:
    script.say("1").say("2").say("later")
    name = begin(api, "a")
    first = api.create(model=script.model, input="b", conversation=name)["id"]
    second = api.create(model=script.model, input="c", previous_response_id=first)["id"]
    api.create(model=script.model, input="d", conversation=name)
    if deletes:
        delete(api, first)
    assert model_input(api, script, second) == ["a", *([] if deletes else ["b", "1"]), "c", "2", "?"]
