"""Upstreams that send malformed JSON: the turn fails, and every item is closed."""

from typing import Any

import orjson
import pytest

from providers import event_stream
from providers.clients import UpstreamFailed
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


def final_response(api: Api, script: Script, *pieces: Chunk | bytes) -> dict[str, Any]:
    """Return the response to these chunks. `Api.events` checks that the stream is well formed."""
    script.then(stream(*pieces))
    response: dict[str, Any] = api.events(model=script.model, input="Hi")[-1]["response"]
    return response


@pytest.mark.parametrize("delta", [THOUGHT, CALL])
def test_json_nested_too_deeply_fails_the_turn(api: Api, script: Script, delta: bytes) -> None:
    response = final_response(api, script, b'data: {"choices":[{"index":0,"delta":{%b}}]}\n\n' % delta, *text("84"))
    assert response["status"] == "failed"
    assert response["error"]["message"] == "The model's server sent something that is nested too deeply."


@pytest.mark.parametrize("pieces", [("a", 5), (5, "a"), ("a", None), (["a"], ["b"])])
def test_reasoning_details_of_mixed_types_do_not_fail_the_turn(
    api: Api, script: Script, pieces: tuple[Any, Any]
) -> None:
    response = final_response(api, script, *map(detail, pieces), *text("84"))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


def test_a_responses_event_nested_too_deeply_is_refused() -> None:
    with pytest.raises(UpstreamFailed, match="too deeply") as caught:
        event_stream.check_object({"item": orjson.loads(DEEP)}, DEEP)
    assert caught.value.failure.code == "server_error"
