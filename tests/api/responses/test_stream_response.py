"""`POST /v1/responses` with `stream: true`: content, timing and order of the events, and equality with the stored
response."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, Event, MakeApi, error, ok
from tests.support.chunks import calls, chunk, text, usage
from tests.support.streams import assert_stream_equals_stored, assert_well_formed, types
from tests.support.upstream import Answer, Gate, Script, ScriptedUpstream, stream, whole

HELLO = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
LOGPROB = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
ANSWERS: dict[str, Answer] = {
    "text": stream(*text("Hel", "lo")),
    "nothing": stream(chunk(finish="stop")),
    "whitespace": stream(*text(" ", "\n")),
    "one call": stream(*calls(look='{"a":1}')),
    "a call without arguments": stream(*calls(look="")),
    "parallel calls": stream(*calls(look='{"a":1}', listen='{"b":2}')),
    "mixed parallel calls": stream(
        chunk(tool_calls=[{"index": 0, "id": "call_a", "function": {"name": "a", "arguments": "{"}}]),
        chunk(tool_calls=[{"index": 1, "id": "call_b", "function": {"name": "b", "arguments": "{"}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
        chunk(tool_calls=[{"index": 1, "function": {"arguments": "}"}}]),
        chunk(finish="tool_calls"),
    ),
    "text and a call": stream(chunk(content="Let me see."), *calls(look="{}")),
    "reasoning": stream(chunk(reasoning_content="Hm. "), chunk(reasoning_content="Ah."), *text("Yes")),
    "reasoning and a call": stream(chunk(reasoning="Hm."), *calls(look="{}")),
    "a refusal": stream(chunk(refusal="I "), chunk(refusal="won't."), chunk(finish="stop")),
    "text and a refusal": stream(chunk(content="Well, "), chunk(refusal="no."), chunk(finish="stop")),
    "truncated by length": stream(*text("Hel", finish="length")),
    "stopped by a content filter": stream(*text("Hel", finish="content_filter")),
    "a truncated call": stream(
        chunk(tool_calls=[{"index": 0, "function": {"name": "a", "arguments": '{"x'}}]), chunk(finish="length")
    ),
    "no stream": whole({"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}),
    "no final event": stream(chunk(content="Hel"), done=False),
    "an error in the stream": stream(chunk(content="Hel"), {"error": {"message": "Out of memory.", "code": 500}}),
    "usage with every chunk": stream({**chunk(content="Hi"), "usage": usage()["usage"]}, *text("Ho")),
    "unicode": stream(*text("Grüße", " 👋🏽", "\u2028", '"\\\n')),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_streamed_and_stored_response_are_equal(api: Api, script: Script, what: str) -> None:
    script.then(ANSWERS[what])
    events = api.events(model=script.model, input="Hi", metadata={"a": "b"}, temperature=0.5)
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))


def test_events_come_in_order(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    assert types(api.events(model=script.model, input="Hi")) == HELLO


def test_the_first_events_contain_the_empty_response(api: Api, script: Script) -> None:
    script.say("Hello")
    created, in_progress, *_, completed = api.events(model=script.model, input="Hi", instructions="Be kind.")
    opened: dict[str, Any] = {
        "status": "in_progress",
        "output": [],
        "usage": None,
        "completed_at": None,
        "service_tier": "auto",
    }
    assert created["response"] == completed["response"] | opened
    assert in_progress["response"] == created["response"]


def test_items_are_added_with_empty_values(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="Hm."), chunk(content="Yes"), *calls(look="{}")))
    events = api.events(model=script.model, input="Hi")
    reasoning, message, call = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (reasoning["summary"], reasoning["content"], message["content"], call["arguments"]) == ([], [], [], "")
    assert (call["name"], call["call_id"]) == ("look", "call_look")
    parts = [event["part"] for event in events if event["type"] == "response.content_part.added"]
    assert parts[1] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def test_created_is_sent_before_the_upstream_answers(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with api.stream(model=script.model, input="Hi") as live:
        assert live.next()["type"] == "response.created"
        assert live.next()["type"] == "response.in_progress"
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_created_is_stored_before_it_is_sent(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with api.stream(model=script.model, input="Hi") as live:
        created = live.next()["response"]
        assert api.retrieve(created["id"]) == created
        gate.open()
        live.rest()


def test_deltas_are_sent_immediately(api: Api, script: Script) -> None:
    gates = [Gate(), Gate()]
    script.then(stream(chunk(content="Hel"), gates[0], chunk(content="lo"), gates[1], chunk(finish="stop")))
    with api.stream(model=script.model, input="Hi") as live:
        for gate, words in zip(gates, ("Hel", "lo"), strict=True):
            assert next(event for event in live.events if "delta" in event)["delta"] == words
            gate.open()
        live.rest()


def test_completed_is_sent_after_it_is_stored(api: Api, script: Script) -> None:
    script.say("Hello")
    with api.stream(model=script.model, input="Hi") as live:
        completed = next(event["response"] for event in live.events if event["type"] == "response.completed")
        assert api.retrieve(completed["id"]) == completed


def test_a_stream_ends_with_done(api: Api, script: Script) -> None:
    script.say("Hello")
    with api.stream(model=script.model, input="Hi") as live:
        live.rest()
    assert live.raw[-3:] == ["", "data: [DONE]", ""]


def test_the_sse_event_name_is_the_event_type(api: Api, script: Script) -> None:
    script.say("Hello")
    with api.stream(model=script.model, input="Hi") as live:
        events = live.rest()
    names = [line.removeprefix("event: ") for line in live.raw if line.startswith("event: ")]
    assert names == types(events)
    assert {line.split(":")[0] for line in live.raw if line} == {"event", "data"}


def test_headers_disable_proxy_buffering(api: Api, script: Script) -> None:
    script.say("Hello")
    with api.stream(model=script.model, input="Hi") as live:
        live.rest()
    assert live.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert live.headers["cache-control"] == "no-cache, no-transform"
    assert live.headers["x-accel-buffering"] == "no"
    assert live.headers["x-request-id"].startswith("req_")
    assert live.headers["openai-version"] == "2020-10-01"


def deltas(events: list[Event]) -> list[Event]:
    return [event for event in events if "delta" in event]


@pytest.mark.parametrize("options", [None, {}, {"include_obfuscation": None}, {"include_obfuscation": True}])
def test_obfuscation_hides_the_length_of_deltas(api: Api, script: Script, options: Any) -> None:
    script.then(stream(*text("a", "bcd"), *calls(look="{}")))
    events = api.events(model=script.model, input="Hi", stream_options=options)
    sizes = {len(event["delta"]) + len(event["obfuscation"]) for event in deltas(events)}
    assert sizes == {16}
    assert all("obfuscation" not in event for event in events if "delta" not in event)


def test_obfuscation_can_be_disabled(api: Api, script: Script) -> None:
    script.say("a", "b")
    events = api.events(model=script.model, input="Hi", stream_options={"include_obfuscation": False})
    assert all("obfuscation" not in event for event in events)


def test_logprobs_are_sent_with_their_deltas(api: Api, script: Script) -> None:
    written = chunk(content="Hi", finish="stop")
    written["choices"][0]["logprobs"] = {"content": [LOGPROB]}
    script.then(stream(written))
    events = api.events(model=script.model, input="Hi", include=["message.output_text.logprobs"])
    assert [event["logprobs"] for event in events if "logprobs" in event] == [[LOGPROB], [LOGPROB]]
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))


def test_an_unstored_stream_is_well_formed(api: Api, script: Script) -> None:
    script.say("Hello")
    events = api.events(model=script.model, input="Hi", store=False)
    assert_well_formed(events)
    assert error(api.get(f"/responses/{events[0]['response']['id']}")) == (404, None, None)


def test_a_continued_response_can_be_streamed(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")
    events = api.events(model=script.model, input="b", previous_response_id=first["id"])
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))
    assert [message["content"] for message in script.messages[1]] == ["a", "1", "b"]


def test_a_stream_writes_one_usage_record(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    events = api.events(model=script.model, input="Hi")
    with scope.team(caller.team.pk):
        row = UsageRecord.objects.get(object_id=events[0]["response"]["id"])
    assert (row.outcome, row.input_tokens, row.output_tokens) == ("stop", 7, 3)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_upstream_bytes_may_be_split_anywhere(api: Api, script: Script, size: int) -> None:
    raw = b"".join(b"data: %b\r\n\r\n" % orjson.dumps(piece) for piece in text("Grü", "ße"))
    script.then(stream(b": hello\n\nevent: x\n", *(raw[i : i + size] for i in range(0, len(raw), size))))
    events = api.events(model=script.model, input="Hi")
    assert [event["text"] for event in events if event["type"] == "response.output_text.done"] == ["Grüße"]


@pytest.mark.slow
def test_concurrent_streams_stay_separate(make_api: MakeApi, upstream: ScriptedUpstream) -> None:
    """Their changes are committed in groups, across teams."""
    apis = [make_api() for _ in range(4)]

    def one(number: int) -> None:
        api = apis[number % len(apis)]
        with upstream.script() as script:
            script.then(stream(*text(f"{number}:", *["word "] * number), *calls(look=f'{{"number":{number}}}')))
            events = api.events(model=script.model, input=f"{number}")
        stored = api.retrieve(events[0]["response"]["id"])
        assert_stream_equals_stored(events, stored)
        assert stored["output"][0]["content"][0]["text"] == f"{number}:" + "word " * number
        assert [item["content"][0]["text"] for item in api.input_items(stored["id"])] == [f"{number}"]

    with ThreadPoolExecutor(40) as pool:
        for done in [pool.submit(one, number) for number in range(80)]:
            done.result()
    assert [len(ok(api.get("/responses", limit=100))["data"]) for api in apis] == [20] * 4
