"""The parameter `stop` of responses: the text ends before the first of its sequences."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.chunks import completion, text
from tests.support.responses_upstream import answer, message_events, unstreamed
from tests.support.responses_upstream import message as whole_message
from tests.support.upstream import Answer, Gate, Script, stream, whole

STOPPED = {"input": "Hi", "stop": ["END", "two"]}
CHAT: dict[str, Answer] = {
    "in pieces": stream(*text("one E", "N", "D two")[:4], Gate()),
    "at once": stream(*text("one END two")),
    "not streamed": whole(completion("one END two")),
}
RESPONSES: dict[str, Answer] = {
    "in pieces": answer(message_events("one E", "N", "D two")),
    "at once": answer(message_events("one END two")),
    "not streamed": unstreamed(whole_message("one END two")),
}


def said(response: dict[str, Any]) -> str:
    """Return the text of a response with one message."""
    (message,) = response["output"]
    text: str = message["content"][0]["text"]
    return text


@pytest.mark.parametrize("how", CHAT)
def test_the_text_ends_before_a_sequence(api: Api, script: Script, how: str) -> None:
    script.then(CHAT[how])
    response = api.create(model=script.model, **STOPPED)
    assert (said(response), response["status"]) == ("one ", "completed")
    assert "stop" not in script.bodies[0]


@pytest.mark.parametrize("how", RESPONSES)
def test_the_text_of_a_responses_upstream_ends_before_a_sequence(
    api: Api, responses_api_script: Script, how: str
) -> None:
    responses_api_script.then(RESPONSES[how])
    response = api.create(model=responses_api_script.model, **STOPPED)
    assert (said(response), response["status"]) == ("one ", "completed")
    assert "stop" not in responses_api_script.bodies[0]


def test_text_without_a_sequence_is_complete(api: Api, script: Script, responses_api_script: Script) -> None:
    script.say("one E", "N")
    assert said(api.create(model=script.model, **STOPPED)) == "one EN"
    responses_api_script.then(answer(message_events("one E", "N")))
    assert said(api.create(model=responses_api_script.model, **STOPPED)) == "one EN"


def test_the_events_of_a_stream_end_before_a_sequence(api: Api, script: Script) -> None:
    script.then(CHAT["in pieces"])
    events = api.events(model=script.model, **STOPPED)
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "one "


@pytest.mark.parametrize("wrong", ["END", [""], ["a"] * 17, [1]])
def test_invalid_sequences_are_rejected(api: Api, script: Script, wrong: Any) -> None:
    status, param, _ = error(api.post("/responses", {"model": script.model, "input": "Hi", "stop": wrong}))
    assert status == 400
    assert (param or "").startswith("stop")
