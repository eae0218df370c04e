"""The keys of a response and of everything in it have the same order in the answer, in events and when retrieved."""

from typing import Any

import orjson
import pytest

from tests.support.api import Api, error, ok
from tests.support.background import ended
from tests.support.chunks import completion
from tests.support.upstream import Script, whole

# Names whose order is neither alphabetical nor by length.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zebra": {"type": "string"}, "b": {"type": "string"}, "apple": {"type": "string"}},
    "required": ["zebra", "b", "apple"],
    "additionalProperties": False,
}
REQUEST: dict[str, Any] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True, "description": "Look."}],
    "text": {"format": {"type": "json_schema", "name": "animal", "schema": SCHEMA}},
    "metadata": {"zebra": "1", "b": "2", "apple": "3"},
}
ANSWER = '{"zebra":"z","b":"b","apple":"a"}'


def text(value: Any) -> str:
    return orjson.dumps(value).decode()


def test_a_retrieved_response_equals_the_answer_byte_for_byte(api: Api, script: Script) -> None:
    answer = api.create(model=script.say(ANSWER).model, **REQUEST)
    assert text(api.retrieve(answer["id"])) == text(answer)


def test_a_retrieved_response_equals_the_last_event_byte_for_byte(api: Api, script: Script) -> None:
    events = api.events(model=script.say(ANSWER).model, **REQUEST)
    last = events[-1]["response"]
    assert list(events[0]["response"]) == list(last)
    assert text(api.retrieve(last["id"])) == text(last)


@pytest.mark.usefixtures("worker")
def test_a_background_response_keeps_the_order_too(api: Api, script: Script) -> None:
    queued = api.create(model=script.say(ANSWER).model, background=True, **REQUEST)
    done = ended(api, queued["id"])
    assert list(done) == list(queued)
    assert text([done["tools"], done["text"], done["metadata"]]) == text(
        [queued["tools"], queued["text"], queued["metadata"]]
    )
    # The model reads the properties in the order in which the client wrote them.
    assert list(script.bodies[0]["tools"][0]["function"]["parameters"]["properties"]) == ["zebra", "b", "apple"]


def test_input_items_keep_the_order_of_their_keys(api: Api, script: Script) -> None:
    made = api.create(model=script.say(ANSWER).model, **REQUEST)
    (item,) = api.input_items(made["id"])
    assert list(item["content"][0]) == ["type", "text"]


def test_a_stored_chat_completion_keeps_the_order_too(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}], "store": True}
    made = ok(api.post("/chat/completions", body))
    stored = api.get(f"/chat/completions/{made['id']}").json()
    assert text({name: stored[name] for name in made}) == text(made)


def test_another_teams_response_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    made = api.create(model=script.say(ANSWER).model, **REQUEST)
    assert error(outsider.get(f"/responses/{made['id']}")) == (404, None, None)
