"""Upstreams that send JSON of no sensible shape: the turn ends as a failed one, with every item closed."""

from typing import Any

import orjson
import pytest

from responses.providers import responses_api
from responses.providers.clients import UpstreamFailed
from tests.support.api import Api
from tests.support.chunks import Chunk, chunk, text
from tests.support.upstream import Script, stream

DEEP = b"[" * 300 + b"]" * 300
THOUGHT = b'"reasoning":"Hm.","reasoning_details":[{"type":"x","data":%b}]' % DEEP
CALL = (
    b'"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"},'
    b'"extra_content":%b}]' % DEEP
)


def detail(words: Any) -> Chunk:
    return chunk(reasoning="Hm.", reasoning_details=[{"type": "reasoning.text", "text": words}])


def last(api: Api, script: Script, *pieces: Chunk | bytes) -> dict[str, Any]:
    """The response to these pieces; that its stream is well formed is checked on the way."""
    script.then(stream(*pieces))
    response: dict[str, Any] = api.events(model=script.model, input="Hi")[-1]["response"]
    return response


@pytest.mark.parametrize("delta", [THOUGHT, CALL])
def test_what_is_too_deep_to_be_written_again_ends_the_turn(api: Api, script: Script, delta: bytes) -> None:
    response = last(api, script, b'data: {"choices":[{"index":0,"delta":{%b}}]}\n\n' % delta, *text("84"))
    assert response["status"] == "failed"
    assert response["error"]["message"] == "The model's server sent something that is nested too deeply."


@pytest.mark.parametrize("pieces", [("a", 5), (5, "a"), ("a", None), (["a"], ["b"])])
def test_entries_whose_pieces_do_not_fit_together_end_no_turn(
    api: Api, script: Script, pieces: tuple[Any, Any]
) -> None:
    response = last(api, script, *map(detail, pieces), *text("84"))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


def test_so_does_an_event_of_responses() -> None:
    with pytest.raises(UpstreamFailed, match="too deeply") as caught:
        responses_api.checked({"item": orjson.loads(DEEP)}, DEEP)
    assert caught.value.failure.code == "server_error"
