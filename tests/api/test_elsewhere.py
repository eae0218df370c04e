"""What one web process has said is true at any other the moment that it is heard."""

import pytest

from tests.support.api import Api
from tests.support.conversations import begin, words
from tests.support.upstream import Script
from tests.support.web import WebProcess

TURNS = 6


@pytest.fixture
def nodes(api: Api, uvicorn_web: WebProcess) -> list[Api]:
    """The same team at two processes."""
    return [api, Api(api._http, url=uvicorn_web.url, caller=api.caller)]


def test_a_chain_goes_on_at_another_process_as_soon_as_the_last_event_is_heard(
    nodes: list[Api], script: Script
) -> None:
    previous: dict[str, str] = {}
    for turn in range(TURNS):
        script.say(str(turn))
        with nodes[turn % 2].stream(model=script.model, input="?", **previous) as live:
            last = next(event for event in live.events if event["type"] == "response.completed")
        previous = {"previous_response_id": last["response"]["id"]}
    assert [len(messages) for messages in script.messages] == [2 * turn + 1 for turn in range(TURNS)]


def test_so_does_a_conversation(nodes: list[Api], script: Script) -> None:
    name = begin(nodes[0])
    for turn in range(TURNS):
        script.say(str(turn))
        with nodes[turn % 2].stream(model=script.model, input="?", conversation=name) as live:
            assert any(event["type"] == "response.completed" for event in live.events)
    assert words(nodes[1], name) == [word for turn in range(TURNS) for word in ("?", str(turn))]
