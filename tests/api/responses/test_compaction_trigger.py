"""`compaction_trigger`: a response that consists only of a compaction of the items before it."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.upstream import Script, refusal

SUMMARY = "The red car is in Vienna."
QUESTION = {"role": "user", "content": "Find the red car."}
ASSISTANT = {"role": "assistant", "content": "I am looking."}
TRIGGER = {"type": "compaction_trigger"}


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts that the upstream received, without the introduction of the summary."""
    return [str(message["content"]).rpartition("\n\n")[2] for message in messages]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_output_is_one_compaction_item(api: Api, script: Script, streamed: bool) -> None:
    script.say(SUMMARY)
    body = {"model": script.model, "input": [QUESTION, ASSISTANT, TRIGGER]}
    response = api.events(**body)[-1]["response"] if streamed else api.create(**body)
    assert (response["status"], [item["type"] for item in response["output"]]) == ("completed", ["compaction"])
    assert response["output"][0]["encrypted_content"].startswith("s1.")
    assert response["usage"]["output_tokens"] == 3


def test_a_chain_continues_from_the_compaction_without_the_trigger(api: Api, script: Script) -> None:
    script.say("I am looking.").say(SUMMARY).say("In Vienna.")
    first = api.create(model=script.model, input="Find the red car.")["id"]
    second = api.create(model=script.model, input=[TRIGGER], previous_response_id=first)["id"]
    assert [item["type"] for item in api.input_items(second)] == ["message", "message"]
    api.create(model=script.model, input="Where?", previous_response_id=second)
    assert texts(script.messages[2]) == ["Find the red car.", SUMMARY, "Where?"]


def test_a_conversation_continues_from_the_compaction_without_the_trigger(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.")
    created = ok(api.post("/conversations", {"items": [QUESTION, ASSISTANT]}))["id"]
    api.create(model=script.model, input=[TRIGGER], conversation=created)
    listed = ok(api.get(f"/conversations/{created}/items", order="asc"))["data"]
    assert [item["type"] for item in listed] == ["message", "message", "compaction"]
    api.create(model=script.model, input="Where?", conversation=created)
    assert texts(script.messages[1]) == ["Find the red car.", SUMMARY, "Where?"]


def test_the_response_fails_if_the_compaction_fails(api: Api, script: Script) -> None:
    script.then(refusal(503))
    assert error(api.post("/responses", {"model": script.model, "input": [QUESTION, TRIGGER]}))[0] == 503


def test_counting_tokens_ignores_the_trigger(api: Api) -> None:
    counts = [ok(api.post("/responses/input_tokens", {"input": given})) for given in ([QUESTION], [QUESTION, TRIGGER])]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [TRIGGER, QUESTION]}, "input[0]"),
        ({"input": [QUESTION, TRIGGER, TRIGGER]}, "input[1]"),
        ({"input": [TRIGGER]}, "input"),
        ({"input": [QUESTION, TRIGGER], "generate": False}, "generate"),
    ],
)
def test_the_trigger_must_be_the_last_of_several_items(
    api: Api, script: Script, body: dict[str, Any], param: str
) -> None:
    assert error(api.post("/responses", {"model": script.model, **body})) == (400, param, "invalid_value")
