"""`compaction_trigger`: a response that is nothing but a compaction of what came before."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.upstream import Script, refusal

NOTES = "The red car stands in Vienna."
ASKED = {"role": "user", "content": "Find the red car."}
SAID = {"role": "assistant", "content": "I am looking."}
TRIGGER = {"type": "compaction_trigger"}


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """What the upstream read, with the introduction of notes cut off."""
    return [str(message["content"]).rpartition("\n\n")[2] for message in messages]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_output_is_one_compaction_item(api: Api, script: Script, streamed: bool) -> None:
    script.say(NOTES)
    body = {"model": script.model, "input": [ASKED, SAID, TRIGGER]}
    response = api.events(**body)[-1]["response"] if streamed else api.create(**body)
    assert (response["status"], [item["type"] for item in response["output"]]) == ("completed", ["compaction"])
    assert response["output"][0]["encrypted_content"].startswith("s1.")
    assert response["usage"]["output_tokens"] == 3


def test_a_chain_goes_on_from_it_and_does_not_hold_the_trigger(api: Api, script: Script) -> None:
    script.say("I am looking.").say(NOTES).say("In Vienna.")
    first = api.create(model=script.model, input="Find the red car.")["id"]
    second = api.create(model=script.model, input=[TRIGGER], previous_response_id=first)["id"]
    assert [item["type"] for item in api.input_items(second)] == ["message", "message"]
    api.create(model=script.model, input="Where?", previous_response_id=second)
    assert texts(script.messages[2]) == ["Find the red car.", NOTES, "Where?"]


def test_a_conversation_goes_on_from_it_and_does_not_hold_the_trigger(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.")
    made = ok(api.post("/conversations", {"items": [ASKED, SAID]}))["id"]
    api.create(model=script.model, input=[TRIGGER], conversation=made)
    listed = ok(api.get(f"/conversations/{made}/items", order="asc"))["data"]
    assert [item["type"] for item in listed] == ["message", "message", "compaction"]
    api.create(model=script.model, input="Where?", conversation=made)
    assert texts(script.messages[1]) == ["Find the red car.", NOTES, "Where?"]


def test_without_notes_the_response_fails(api: Api, script: Script) -> None:
    script.then(refusal(503))
    assert error(api.post("/responses", {"model": script.model, "input": [ASKED, TRIGGER]}))[0] == 503


def test_tokens_are_counted_without_it(api: Api) -> None:
    counts = [ok(api.post("/responses/input_tokens", {"input": given})) for given in ([ASKED], [ASKED, TRIGGER])]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [TRIGGER, ASKED]}, "input[0]"),
        ({"input": [ASKED, TRIGGER, TRIGGER]}, "input[1]"),
        ({"input": [TRIGGER]}, "input"),
        ({"input": [ASKED, TRIGGER], "generate": False}, "generate"),
    ],
)
def test_it_is_the_last_word_about_something(api: Api, script: Script, body: dict[str, Any], param: str) -> None:
    assert error(api.post("/responses", {"model": script.model, **body})) == (400, param, "invalid_value")
