"""Consistency between web processes: a stored response is visible to all of them once its last event was received."""

import pytest

from tests.support.api import Api
from tests.support.conversations import begin, words
from tests.support.upstream import Script
from tests.support.web import WebProcess

TURNS = 6


@pytest.fixture
def processes(api: Api, daphne_web: WebProcess) -> list[Api]:
    """Return the API of two web processes, for the same team."""
    return [api, Api(api._http, url=daphne_web.url, caller=api.caller)]


def test_a_chain_can_continue_on_another_process_after_the_last_event(processes: list[Api], script: Script) -> None:
    previous: dict[str, str] = {}
    for turn in range(TURNS):
        script.say(str(turn))
        with processes[turn % 2].stream(model=script.model, input="?", **previous) as live:
            last = next(event for event in live.events if event["type"] == "response.completed")
        previous = {"previous_response_id": last["response"]["id"]}
    assert [len(messages) for messages in script.messages] == [2 * turn + 1 for turn in range(TURNS)]


def test_a_conversation_can_continue_on_another_process(processes: list[Api], script: Script) -> None:
    name = begin(processes[0])
    for turn in range(TURNS):
        script.say(str(turn))
        with processes[turn % 2].stream(model=script.model, input="?", conversation=name) as live:
            assert any(event["type"] == "response.completed" for event in live.events)
    assert words(processes[1], name) == [word for turn in range(TURNS) for word in ("?", str(turn))]
