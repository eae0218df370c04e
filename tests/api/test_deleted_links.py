"""Responses that are deleted from the middle of a chain: their words are gone from it, and nothing else is."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.chunks import calls
from tests.support.conversations import begin
from tests.support.upstream import Script, stream

OUTPUT = {"type": "function_call_output", "call_id": "call_look", "output": "a cat"}


def chain(api: Api, script: Script, *inputs: Any) -> list[str]:
    """Responses to these inputs, each following the one before it; their ids."""
    ids: list[str] = []
    for one in inputs:
        follows = {"previous_response_id": ids[-1]} if ids else {}
        ids.append(api.create(model=script.model, input=one, **follows)["id"])
    return ids


def delete(api: Api, *response_ids: str) -> None:
    for response_id in response_ids:
        ok(api.delete(f"/responses/{response_id}"))


def told(api: Api, script: Script, previous: str) -> list[str]:
    """What the model reads behind a response, as words and types."""
    script.say("!")
    api.create(model=script.model, input="?", previous_response_id=previous)
    return [str(message["content"]) for message in script.messages[-1]]


def test_what_came_before_a_deleted_link_is_read_on(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3")
    first, second, third = chain(api, script, "a", "b", "c")
    delete(api, second)
    assert told(api, script, third) == ["a", "1", "c", "3", "?"]
    assert api.retrieve(third)["previous_response_id"] == second
    assert [item["content"][0]["text"] for item in api.input_items(third)] == ["a", "1", "c"]
    assert told(api, script, first) == ["a", "1", "?"]


def test_any_number_of_links_may_go(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3").say("4").say("5")
    ids = chain(api, script, "a", "b", "c", "d", "e")
    delete(api, ids[2], ids[1], ids[0])
    assert told(api, script, ids[4]) == ["d", "4", "e", "5", "?"]


def test_both_branches_behind_a_deleted_link_go_on(api: Api, script: Script) -> None:
    script.say("1").say("2").say("left").say("right")
    first, second = chain(api, script, "a", "b")
    left, right = (api.create(model=script.model, input=word, previous_response_id=second)["id"] for word in ("l", "r"))
    delete(api, second)
    assert told(api, script, left) == ["a", "1", "l", "left", "?"]
    assert told(api, script, right) == ["a", "1", "r", "right", "?"]
    delete(api, first)
    assert told(api, script, right) == ["r", "right", "?"]


def test_a_call_whose_output_was_deleted_is_not_read(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.").say("3")
    _, second, third = chain(api, script, "a", [OUTPUT], "c")
    delete(api, second)
    assert told(api, script, third) == ["a", "c", "3", "?"]


def test_an_output_whose_call_was_deleted_is_not_read(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.").say("3")
    first, second, third = chain(api, script, "a", [OUTPUT], "c")
    delete(api, first)
    assert told(api, script, second) == ["Seen.", "?"]
    assert told(api, script, third) == ["Seen.", "c", "3", "?"]


def test_a_call_that_waits_for_its_output_is_asked_for_as_ever(api: Api, script: Script) -> None:
    script.say("1").then(stream(*calls(look="{}"))).say("Seen.")
    first, second = chain(api, script, "a", "b")
    delete(api, first)
    body = {"model": script.model, "previous_response_id": second}
    assert error(api.post("/responses", {**body, "input": "?"}))[:2] == (400, "input")
    ok(api.post("/responses", {**body, "input": [OUTPUT]}))
    assert [message["role"] for message in script.messages[2]] == ["user", "assistant", "tool"]


def test_an_output_of_the_client_needs_its_call(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}"))).say("Seen.")
    first, second = chain(api, script, "a", [OUTPUT])
    delete(api, first)
    body = {"model": script.model, "previous_response_id": second, "input": [OUTPUT]}
    assert error(api.post("/responses", body))[:2] == (400, "input")


@pytest.mark.parametrize("deletes", [False, True])
def test_a_chain_may_begin_in_a_conversation(api: Api, script: Script, deletes: bool) -> None:
    """What the response read of it is read by those that follow it; what came later is not."""
    script.say("1").say("2").say("later")
    name = begin(api, "a")
    first = api.create(model=script.model, input="b", conversation=name)["id"]
    second = api.create(model=script.model, input="c", previous_response_id=first)["id"]
    api.create(model=script.model, input="d", conversation=name)
    if deletes:
        delete(api, first)
    assert told(api, script, second) == ["a", *([] if deletes else ["b", "1"]), "c", "2", "?"]
