"""JSON requests whose upstream is asked for one JSON document instead of a stream."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from responses.models import Response, Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api
from tests.support.chunks import calls, completion
from tests.support.model_capabilities import describe
from tests.support.streams import assert_stream_equals_stored, types
from tests.support.upstream import Answer, Gate, Script, refusal, stream, whole
from tests.support.waiting import eventually

LOOK = {"type": "function", "name": "look", "parameters": None, "strict": None}
FORMAT = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}


def held(gate: Gate) -> Answer:
    """Return an answer whose status and document are sent when the gate opens."""
    document = orjson.dumps(completion("Hello"))
    return Answer(pieces=[gate, document], content_type="application/json", done=False, delayed_head=True)


def started(api: Api) -> str:
    """Return the id of the team's only response, once it is stored."""

    def first() -> str | None:
        with scope.team(api.caller.team.pk):
            return Response.objects.values_list("pk", flat=True).first()

    eventually(first)
    return str(first())


@pytest.mark.parametrize("more", [{}, {"tools": [LOOK]}, {"text": FORMAT}, {"store": False}, {"temperature": 0.5}])
def test_a_json_request_asks_the_upstream_for_a_document(api: Api, script: Script, more: dict[str, Any]) -> None:
    script.then(whole(completion("{}")))
    assert api.create(model=script.model, input="Hi", **more)["output"][0]["content"][0]["text"] == "{}"
    (body,) = script.bodies
    assert (body["stream"], "stream_options" in body) == (False, False)


@pytest.mark.parametrize(
    "more", [{"stop": ["END"]}, {"reasoning": {"effort": "high"}}, {"reasoning": {"summary": "auto"}}, {"stream": True}]
)
def test_requests_that_need_a_stream_ask_for_one(api: Api, script: Script, more: dict[str, Any]) -> None:
    script.say("Hello")
    api.post("/responses", {"model": script.model, "input": "Hi", **more})
    (body,) = script.bodies
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_a_model_can_always_be_asked_to_stream(api: Api, script: Script) -> None:
    describe(script, always_stream=True).say("Hello")
    assert api.create(model=script.model, input="Hi")["status"] == "completed"
    assert script.bodies[0]["stream"] is True


def test_a_stream_is_accepted_instead_of_the_requested_document(api: Api, script: Script) -> None:
    script.only_streams = True
    script.say("Hel", "lo")
    assert api.create(model=script.model, input="Hi")["output"][0]["content"][0]["text"] == "Hello"
    assert script.bodies[0]["stream"] is False


@pytest.mark.slow
def test_a_retry_asks_for_a_stream(api: Api, script: Script) -> None:
    again = refusal(504, headers={"x-should-retry": "true"})
    script.then(again).say("Hello")
    assert api.create(model=script.model, input="Hi")["status"] == "completed"
    assert [body["stream"] for body in script.bodies] == [False, True]


def test_the_log_of_the_run_is_a_complete_stream(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}")))
    response = api.create(model=script.model, input="Hi", tools=[LOOK])
    with api.follow(response["id"]) as live:
        assert_stream_equals_stored(live.rest(), response)


def test_the_time_to_the_first_token_is_unknown(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    api.create(model=script.model, input="Hi")
    with scope.team(api.caller.team.pk):
        turn, response, record = Turn.objects.get(), Response.objects.get(), UsageRecord.objects.get()
    assert (turn.first_token_at, response.first_token_ms) == (None, None)
    assert (record.input_tokens, record.output_tokens, record.estimated) == (7, 3, False)


@pytest.mark.slow
def test_a_follower_gets_all_events_at_the_end(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(held(gate))
    with ThreadPoolExecutor() as pool:
        created = pool.submit(api.create, model=script.model, input="Hi")
        gate.wait_until_reached()
        with api.follow(started(api)) as live:
            assert [live.next()["type"], live.next()["type"]] == ["response.created", "response.in_progress"]
            gate.open()
            assert types(live.rest())[-1] == "response.completed"
        assert created.result()["status"] == "completed"


def test_a_disconnect_closes_the_connection_to_the_upstream(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(held(gate))
    with api.open("/responses", {"model": script.model, "input": "Hi", "store": False}):
        gate.wait_until_reached()
    assert script.received[0].was_closed()

    def record() -> UsageRecord | None:
        with scope.team(api.caller.team.pk):
            return UsageRecord.objects.first()

    eventually(record)
    written = record()
    assert written is not None
    assert (written.outcome, written.estimated, written.output_tokens) == ("interrupted", True, 0)
    assert written.input_tokens > 0


def test_a_whole_completion_may_be_the_only_event_of_a_stream(api: Api, script: Script) -> None:
    script.then(stream(completion("Hello")))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "Hello"


def test_a_chat_completion_may_be_the_only_event_of_a_stream(api: Api, script: Script) -> None:
    script.then(stream(completion("Hello")))
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}]}
    with api.stream("/chat/completions", **body) as live:
        (choice,) = (choice for event in live.rest() for choice in event["choices"])
    assert (choice["delta"]["content"], choice["finish_reason"]) == ("Hello", "stop")
