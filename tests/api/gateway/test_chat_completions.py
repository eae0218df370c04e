"""`POST /v1/chat/completions`: forwarding requests to the upstream and its completions to the client."""

from typing import Any

import orjson
import pytest

from core.errors import ModelNotFound
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.chunks import USAGE, calls, chunk, completion, text, usage
from tests.support.upstream import Answer, Cut, Gate, Script, refusal, stream, whole
from tests.support.waiting import eventually

HI = [{"role": "user", "content": "Hi"}]
COMPLETION = completion("Hello")


def usage_record(caller: Caller) -> UsageRecord:
    """Wait for the only usage record of the test's team."""
    with scope.team(caller.team.pk):
        return UsageRecord.objects.get()


def test_the_upstreams_completion_is_returned(api: Api, script: Script) -> None:
    script.then(whole(COMPLETION))
    assert ok(api.post("/chat/completions", {"model": script.model, "messages": HI})) == COMPLETION


def test_the_clients_request_is_forwarded(api: Api, script: Script) -> None:
    script.then(whole(COMPLETION))
    more = {"temperature": 0.1, "n": 1, "seed": 5, "logit_bias": {"50256": -100}, "tools": []}
    unsent = {"stop": None, "tool_choice": None}
    api.post("/chat/completions", {"model": script.model, "messages": HI, **more, **unsent})
    assert script.bodies == [{"model": script.model, "messages": HI, **more, "stream": False}]


def test_chunks_are_streamed(api: Api, script: Script) -> None:
    answer = [*text("Hel", "lo"), *calls(look="{}")]
    script.then(stream(*answer))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        chunks = live.rest()
    assert chunks == [piece for piece in answer if piece["choices"]]
    assert live.raw[-3:] == ["", "data: [DONE]", ""]
    assert live.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_usage_chunk_is_only_sent_on_request(api: Api, script: Script, options: Any) -> None:
    script.say("Hello")
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        assert all(chunk["choices"] for chunk in live.events)
    assert script.bodies[0]["stream_options"]["include_usage"] is True


def test_a_usage_chunk_is_sent_on_request(api: Api, script: Script) -> None:
    script.say("Hello")
    options = {"include_usage": True}
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        assert live.rest()[-1] == usage()


def usage_with_the_last_choice(wants: bool) -> list[dict[str, Any]]:
    """Return the chunks of an upstream that sends the usage together with the finish reason."""
    end = chunk(finish="stop")
    return [chunk(content="Hello"), {**end, "usage": None}, usage()] if wants else [chunk(content="Hello"), end]


@pytest.mark.parametrize("wants", [False, True])
def test_usage_is_moved_to_the_last_chunk(api: Api, script: Script, wants: bool) -> None:
    script.then(stream(chunk(content="Hello"), {**chunk(finish="stop"), "usage": USAGE}))
    options = {"include_usage": wants}
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        assert live.rest() == usage_with_the_last_choice(wants)


def test_cumulative_usage_is_reported_once(api: Api, script: Script) -> None:
    first = {**chunk(content="Hello"), "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}}
    script.then(stream(first, usage(), chunk(finish="stop")))
    options = {"include_usage": True}
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        assert [piece.get("usage") for piece in live.rest()] == [None, None, USAGE]


def test_no_usage_chunk_is_sent_if_the_upstream_reports_none(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hello"), chunk(finish="stop")))
    options = {"include_usage": True}
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        assert all(piece["choices"] for piece in live.events)


def padded_lengths(api: Api, script: Script, options: Any) -> tuple[set[int], set[bool]]:
    """Return the length of each chunk modulo 64, and whether the chunk is padded."""
    script.say("a", "bb", "c" * 70)
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        padded = {"obfuscation" in piece for piece in live.events}
    lines = [line for line in live.raw if line.startswith("data: {")]
    return {len(line.removeprefix("data: ")) % 64 for line in lines}, padded


def test_chunks_are_padded_on_request(api: Api, script: Script) -> None:
    assert padded_lengths(api, script, {"include_obfuscation": True}) == ({0}, {True})
    assert padded_lengths(api, script, {"include_obfuscation": False})[1] == {False}
    assert padded_lengths(api, script, None)[1] == {False}
    assert script.bodies[0]["stream_options"] == {"include_usage": True}


def test_the_padding_of_an_upstream_is_removed(api: Api, script: Script) -> None:
    script.then(stream({**chunk(content="Hello"), "obfuscation": "xyz"}, chunk(finish="stop")))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        assert live.rest() == [chunk(content="Hello"), chunk(finish="stop")]


def test_tool_calls_of_a_complete_response_get_an_index(api: Api, script: Script) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = completion("")
    answer["choices"][0]["message"]["tool_calls"] = [call, {**call, "id": "call_2"}]
    script.then(whole(answer))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        (only,) = live.rest()
    assert [one["index"] for one in only["choices"][0]["delta"]["tool_calls"]] == [0, 1]


def indexed(pieces: list[dict[str, Any]], way: str) -> list[dict[str, Any]]:
    """Return chunks whose choice has another index than 0, or none."""
    for number, piece in enumerate(pieces):
        for choice in piece["choices"]:
            choice["index"] = {"counted": number, "one": 1, "null": None}[way]
    return pieces


@pytest.mark.parametrize("pieces", [["Hel", "lo"], list("a rather long answer")], ids=["short", "long"])
@pytest.mark.parametrize("way", ["counted", "one", "null"])
def test_a_single_choice_has_the_index_0(api: Api, script: Script, pieces: list[str], way: str) -> None:
    chunks = [*(chunk(content=piece) for piece in pieces), {**chunk(finish="stop"), "usage": USAGE}]
    script.then(stream(*indexed(chunks, way)))
    options = {"include_usage": True}
    with api.stream("/chat/completions", model=script.model, messages=HI, stream_options=options) as live:
        *sent, last = live.rest()
    expected = [*(chunk(content=piece) for piece in pieces), chunk(finish="stop")]
    assert [entry["choices"] for entry in sent] == [entry["choices"] for entry in expected]
    assert (last["choices"], last["usage"]) == ([], USAGE)


def test_surplus_choices_are_removed(api: Api, script: Script) -> None:
    first, second = chunk(content="Hello")["choices"], chunk(content="Other")["choices"]
    both = {**chunk(content=""), "choices": [first[0], {**second[0], "index": 1}]}
    script.then(stream(both, chunk(finish="stop")))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        assert live.rest() == [chunk(content="Hello"), chunk(finish="stop")]
    answer = completion("Hello")
    script.then(whole({**answer, "choices": [*answer["choices"], {**answer["choices"][0], "index": 1}]}))
    assert ok(api.post("/chat/completions", {"model": script.model, "messages": HI})) == answer


def test_chunks_are_sent_immediately(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(content="lo")))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        assert live.next()["choices"][0]["delta"] == {"content": "Hel"}
        gate.open()
        assert live.next()["choices"][0]["delta"] == {"content": "lo"}


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n", b"\n"])
@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_variants_of_the_event_format_are_accepted(api: Api, script: Script, ends: bytes, size: int) -> None:
    answer = text("Grü", "ße")
    raw = b": wait\n\n" + b"".join(b"data: %b%b" % (orjson.dumps(piece), ends) for piece in answer)
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    script.then(stream(*pieces, done=False))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        assert live.rest() == answer[:-1]


def test_a_complete_response_becomes_a_single_chunk(api: Api, script: Script) -> None:
    script.then(whole(COMPLETION))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        (only,) = live.rest()
    assert only["object"] == "chat.completion.chunk"
    assert only["choices"][0]["delta"]["content"] == "Hello"
    assert only["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_has_a_usage_record(api: Api, script: Script, caller: Caller, streamed: bool) -> None:
    script.then(stream(*text("Hello")) if streamed else whole(COMPLETION))
    answer = api.post("/chat/completions", {"model": script.model, "messages": HI, "stream": streamed})
    row = usage_record(caller)
    assert (row.endpoint, row.outcome, row.object_id) == ("chat.completions", "stop", "chatcmpl-1")
    assert (row.model, row.input_tokens, row.output_tokens, row.estimated) == (script.model, 7, 3, False)
    assert (row.api_key_id, row.request_id) == (caller.key.pk, answer.headers["x-request-id"])


def test_usage_is_estimated_from_chunks_if_the_upstream_reports_none(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(chunk(content="Hel"), chunk(content="lo", finish="stop")))
    api.post("/chat/completions", {"model": script.model, "messages": HI, "stream": True})
    assert (usage_record(caller).output_tokens, usage_record(caller).estimated) == (2, True)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("number", [None, 0, -4, "many"])
def test_usage_without_numbers_is_estimated(
    api: Api, script: Script, caller: Caller, streamed: bool, number: Any
) -> None:
    numbers = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), number)
    script.then(
        stream(chunk(content="Hello there"), chunk(finish="stop"), {**chunk(), "choices": [], "usage": numbers})
    )
    api.post("/chat/completions", {"model": script.model, "messages": HI, "stream": streamed})
    record = usage_record(caller)
    assert record.input_tokens > 0
    assert record.output_tokens > 1
    assert record.estimated


def test_usage_with_the_field_names_of_another_api_is_recorded(api: Api, script: Script, caller: Caller) -> None:
    script.then(
        stream(chunk(content="Hi"), {**chunk(finish="stop"), "usage": {"input_tokens": "7", "output_tokens": 3}})
    )
    api.post("/chat/completions", {"model": script.model, "messages": HI, "stream": True})
    record = usage_record(caller)
    assert (record.input_tokens, record.output_tokens, record.estimated) == (7, 3, False)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, None, "invalid_prompt")),
        (401, (500, None, "server_error")),
        (403, (500, None, "server_error")),
        (404, (400, "model", "model_not_found")),
        (422, (400, None, "invalid_prompt")),
        (429, (429, None, "rate_limit_exceeded")),
        (500, (500, None, "server_error")),
        (503, (503, None, "server_is_overloaded")),
    ],
)
def test_errors_of_the_upstream_become_api_errors(
    api: Api, script: Script, caller: Caller, streamed: bool, status: int, expected: tuple[int, str | None, str]
) -> None:
    script.then(refusal(status, "Too many words.", headers={"Retry-After": "7"}))
    answer = api.post("/chat/completions", {"model": script.model, "messages": HI, "stream": streamed})
    assert error(answer) == expected
    assert answer.headers.get("retry-after") == ("7" if status in {429, 503} else None)
    assert (usage_record(caller).outcome, usage_record(caller).output_tokens) == ("failed", 0)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_error_names_a_model_unknown_to_the_upstream(api: Api, script: Script, streamed: bool) -> None:
    message = ModelNotFound(script.model).message
    body = {"model": script.model, "messages": HI, "stream": streamed}
    script.then(refusal(404, "model 'internal' not found"), whole({"error": {"message": "No.", "code": 404}}))
    assert api.post("/chat/completions", body).json()["error"]["message"] == message
    assert message in api.post("/chat/completions", body).text


BROKEN: dict[str, Answer] = {
    "an error with status 200": whole({"error": {"message": "Out of memory.", "code": 500}}),
    "no JSON": whole(b"<html>"),
    "no object": whole(b"[]"),
    "a cut": Answer(pieces=[b'{"choices"', Cut()], content_type="application/json"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_invalid_completion_is_an_error(api: Api, script: Script, caller: Caller, what: str) -> None:
    script.then(BROKEN[what])
    answer = api.post("/chat/completions", {"model": script.model, "messages": HI})
    assert error(answer) == (500, None, "server_error")
    assert usage_record(caller).outcome == "failed"


BROKEN_STREAMS: dict[str, Answer] = {
    "an error inside": stream(chunk(content="Hel"), {"error": {"message": "Out of memory at 10.0.0.7.", "code": 500}}),
    "garbage": stream(chunk(content="Hel"), b"data: {broken\n\n"),
    "a cut": stream(chunk(content="Hel"), Cut()),
}


@pytest.mark.parametrize("what", BROKEN_STREAMS)
def test_a_broken_stream_ends_with_an_error(api: Api, script: Script, caller: Caller, what: str) -> None:
    script.then(BROKEN_STREAMS[what])
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        first, last = live.rest()
    assert first["choices"][0]["delta"]["content"] == "Hel"
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert (last["error"]["code"], "10.0.0.7" in last["error"]["message"]) == ("server_error", False)
    assert "data: [DONE]" not in live.raw
    assert usage_record(caller).outcome == "failed"


def test_a_disconnect_closes_the_upstream_connection(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(chunk(content="Hel"), Gate()))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        live.next()
    assert script.received[0].was_closed()
    assert eventually(lambda: outcomes(caller)) == ["interrupted"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_disconnect_before_the_first_byte_closes_the_upstream_connection(
    api: Api, script: Script, caller: Caller, streamed: bool
) -> None:
    script.then(Answer(pieces=[Gate()], delayed_head=True))
    with api.open("/chat/completions", {"model": script.model, "messages": HI, "stream": streamed}):
        received = script.wait_for_call()
    assert received.was_closed()
    assert eventually(lambda: outcomes(caller)) == ["interrupted"]


def outcomes(caller: Caller) -> list[str]:
    with scope.team(caller.team.pk):
        return list(UsageRecord.objects.values_list("outcome", flat=True))


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": HI}, "model", "missing_required_parameter"),
        ({"model": None, "messages": HI}, "model", "invalid_type"),
        ({"model": "m"}, "messages", "missing_required_parameter"),
        ({"model": "m", "messages": []}, "messages", "empty_array"),
        ({"model": "m", "messages": "Hi"}, "messages", "invalid_type"),
        ({"model": "m", "messages": ["Hi"]}, "messages[0]", "invalid_type"),
        ({"model": "m", "messages": [{"role": "nobody"}]}, "messages[0].role", "invalid_value"),
        ({"model": "m", "messages": [{"role": ["user"]}]}, "messages[0].role", "invalid_value"),
        ({"model": "m", "messages": HI, "stream": "yes"}, "stream", "invalid_type"),
        ({"model": "m", "messages": HI, "stream": True, "stream_options": 1}, "stream_options", "invalid_type"),
        ({"model": "m", "messages": HI, "stream_options": {}}, "stream_options", "invalid_value"),
        ({"model": "unknown", "messages": HI}, "model", "model_not_found"),
        ({"model": "unknown", "messages": HI, "stream": True}, "model", "model_not_found"),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(api: Api, body: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/chat/completions", body)) == (400, param, code)


def test_only_a_usage_record_is_stored(api: Api, script: Script) -> None:
    script.then(whole(COMPLETION))
    api.post("/chat/completions", {"model": script.model, "messages": HI})
    assert ok(api.get("/responses"))["data"] == []


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_requires_the_write_scope(make_api: MakeApi, streamed: bool) -> None:
    api = make_api(scopes=["responses.write"])
    answer = api.post("/chat/completions", {"model": "m", "messages": HI, "stream": streamed})
    assert error(answer) == (403, None, "insufficient_scope")
