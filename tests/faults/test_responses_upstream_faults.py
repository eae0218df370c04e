"""Faults of upstreams with the Responses API, and how they reach the client."""

from typing import Any

import pytest

from core.errors import ModelNotFound
from responses.models import Response, Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error
from tests.support.responses_upstream import (
    added,
    answer,
    call_events,
    cut,
    done,
    end,
    event,
    function,
    function_call,
    message,
    message_events,
    response,
    texts,
    unstreamed,
)
from tests.support.streams import types
from tests.support.upstream import Answer, Cut, Gate, Pause, Script, refusal, stream, whole
from tests.support.waiting import eventually

Outcome = tuple[int, str | None, str]
SERVER_ERROR: Outcome = (500, None, "server_error")
TOO_MANY: Outcome = (429, None, "rate_limit_exceeded")
REFUSED: Outcome = (400, None, "invalid_prompt")
FAILED = "The model's server failed"
EARLY = "The model's server ended its answer too early."
MALFORMED = "The model's server sent something that is not a Responses event."
CONTRADICTED = "The model's server contradicted itself in its answer."
BUSY = "The model's server is receiving too many requests. Please retry."


def failing(code: Any, words: str = "Trace at 10.0.0.7", **fields: Any) -> Answer:
    """Return an answer that ends as failed."""
    return answer([added(0, message(""))], status="failed", error={"code": code, "message": words, **fields})


def text_of(index: int, piece: str) -> dict[str, Any]:
    """Return a text delta."""
    return event("output_text.delta", output_index=index, content_index=0, delta=piece, logprobs=[])


UNKNOWN_MODEL, UNKNOWN = (400, "model", "model_not_found"), ModelNotFound("{model}").message
# The upstream's answer, the error of a JSON request (status, param, code), and its message.
FAULTS: dict[str, tuple[Answer, Outcome, str]] = {
    "a failed response": (failing("server_error"), SERVER_ERROR, f"{FAILED} (server_error): Trace at […]"),
    "a failed response without a word": (answer(status="failed"), SERVER_ERROR, f"{FAILED}."),
    "a code of its own": (failing("Boom at 10.0.0.7"), SERVER_ERROR, f"{FAILED}: Trace at […]"),
    "a limit": (failing("rate_limit_exceeded"), TOO_MANY, BUSY),
    "a prompt that it refuses": (
        failing("invalid_prompt", "Too rude."),
        REFUSED,
        "The model's server rejected the request: Too rude.",
    ),
    "an image that it refuses": (
        failing("image_too_small", "1x1."),
        (400, None, "image_too_small"),
        "The model's server rejected the request: 1x1.",
    ),
    "a flat error": (
        stream(
            *message_events("Hel"),
            {"type": "error", "code": "server_error", "message": "Oops.", "param": None},
            done=False,
        ),
        SERVER_ERROR,
        f"{FAILED} (server_error): Oops.",
    ),
    "a nested error": (
        stream({"type": "error", "error": {"type": "rate_limit_error", "code": None, "message": "Slow."}}, done=False),
        TOO_MANY,
        BUSY,
    ),
    "an error with a status for a code": (
        stream({"error": {"message": "Overloaded.", "type": "x", "code": 503}}),
        (503, None, "server_is_overloaded"),
        "The model's server is overloaded.",
    ),
    "an error of words": (stream({"error": "Oops."}), SERVER_ERROR, f"{FAILED}: Oops."),
    "an error with status 200": (whole({"error": {"message": "Oops.", "code": 429}}), TOO_MANY, BUSY),
    "a refused request": (
        refusal(400, "Bad prompt."),
        REFUSED,
        "The model's server rejected the request: Bad prompt.",
    ),
    "an unknown model": (
        refusal(404),
        UNKNOWN_MODEL,
        UNKNOWN,
    ),
    "an unknown model inside of the stream": (failing("model_not_found"), UNKNOWN_MODEL, UNKNOWN),
    "an end too early": (cut(message_events("Hello")), SERVER_ERROR, EARLY),
    "only the end mark": (stream(), SERVER_ERROR, EARLY),
    "a cancelled response": (answer(message_events("Hel"), status="cancelled"), SERVER_ERROR, EARLY),
    "an unknown reason": (answer(status="incomplete", incomplete_details={"reason": "mood"}), SERVER_ERROR, EARLY),
    "a response that still runs": (unstreamed(status="in_progress"), SERVER_ERROR, EARLY),
    "a cut connection": (
        answer([added(0, message("")), text_of(0, "Hel")], Cut()),
        SERVER_ERROR,
        "The connection to the model's server broke in the middle of its answer.",
    ),
    "garbage": (
        stream(*message_events("Hel"), b"data: {garbage\n\n", done=False),
        SERVER_ERROR,
        "The model's server sent something that is not JSON.",
    ),
    "half a line": (
        stream(*message_events("Hel"), b'data: {"type":"response.comp', done=False),
        SERVER_ERROR,
        "The model's server sent something that is not JSON.",
    ),
    "invalid UTF-8": (
        stream(*message_events("Hel"), b'data: {"type":"\xff"}\n\n', done=False),
        SERVER_ERROR,
        EARLY,
    ),
    "no object": (
        stream(b"data: [1]\n\n"),
        SERVER_ERROR,
        "The model's server sent something that is not a JSON object.",
    ),
    "a page": (whole(b"<html>nginx</html>"), SERVER_ERROR, "The model's server sent something that is not JSON."),
    "a delta of nothing": (answer([text_of(3, "Hel")]), SERVER_ERROR, MALFORMED),
    "a delta that is no text": (answer([added(0, message("")), text_of(0, 1)]), SERVER_ERROR, MALFORMED),  # type: ignore[arg-type]  # on purpose
    "an item that is none": (answer([event("output_item.done", output_index=0, item=[])]), SERVER_ERROR, MALFORMED),
    "a call without a name": (
        answer([done(0, {"type": "function_call", "call_id": "c", "arguments": "{}"})]),
        SERVER_ERROR,
        MALFORMED,
    ),
    "a response that is none": (stream(event("completed", response=7), done=False), SERVER_ERROR, MALFORMED),
    "an item of a type that nobody knows": (
        answer([done(0, {"id": "x", "type": "weather_call"})]),
        SERVER_ERROR,
        "The model's server sent an item of the unknown type 'weather_call'.",
    ),
    "an item twice": (answer([added(0, message("")), added(0, message(""))]), SERVER_ERROR, CONTRADICTED),
    "an end that is another text": (
        answer([added(0, message("")), *texts(0, "Hel"), done(0, message("Ho"))]),
        SERVER_ERROR,
        CONTRADICTED,
    ),
    "an end that is another call": (
        answer(call_events("look", '{"a":1}')[:2], [done(0, function_call("look", '{"b":2}'))]),
        SERVER_ERROR,
        CONTRADICTED,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_json_request_gets_the_status_of_the_fault(
    api: Api, responses_api_script: Script, caller: Caller, fault: str
) -> None:
    given, expected, sentence = FAULTS[fault]
    responses_api_script.only_streams = True
    responses_api_script.then(given)
    got = api.post("/responses", {"model": responses_api_script.model, "input": "Hi"})
    assert error(got) == expected
    assert got.json()["error"]["message"] == sentence.format(model=responses_api_script.model)
    with scope.team(caller.team.pk):
        stored, turn, ledger = Response.objects.get(), Turn.objects.get(), UsageRecord.objects.get()
    assert (stored.status, turn.state, ledger.outcome) == ("failed", "failed", "failed")


@pytest.mark.parametrize("fault", ["a refused request", "an unknown model"])
def test_a_stream_that_has_not_started_has_the_status_of_the_fault(
    api: Api, responses_api_script: Script, fault: str
) -> None:
    given, expected, _ = FAULTS[fault]
    responses_api_script.then(given)
    got = api.post("/responses", {"model": responses_api_script.model, "input": "Hi", "stream": True})
    assert error(got) == expected


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in {"a refused request", "an unknown model"}])
def test_a_stream_sends_the_events_error_and_failed(api: Api, responses_api_script: Script, fault: str) -> None:
    given, (_, _, code), sentence = FAULTS[fault]
    responses_api_script.then(given)
    events = api.events(model=responses_api_script.model, input="Hi")
    assert types(events)[-2:] == ["error", "response.failed"]
    sentence = sentence.format(model=responses_api_script.model)
    assert (events[-2]["error"]["code"], events[-2]["error"]["message"]) == (code, sentence)
    assert "10.0.0.7" not in str(events)


def test_output_before_an_interruption_is_kept(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer([added(0, message("")), text_of(0, "Hel"), text_of(0, "lo")], Cut()))
    events = api.events(model=responses_api_script.model, input="Hi")
    (item,) = api.retrieve(events[0]["response"]["id"])["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Hello")


def test_an_interrupted_call_is_never_made(api: Api, responses_api_script: Script, caller: Caller) -> None:
    half = [added(0, function_call("look", "")), event("function_call_arguments.delta", output_index=0, delta='{"a')]
    responses_api_script.then(cut(half))
    events = api.events(model=responses_api_script.model, input="Hi", tools=[function("look")])
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    with scope.team(caller.team.pk):
        assert Response.objects.get().tool_calls == 0


def test_an_interrupted_call_is_listed_but_not_sent_again(api: Api, responses_api_script: Script) -> None:
    call = function_call("look", '{"a', status="incomplete")
    cut_short = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    responses_api_script.then(answer([done(0, call)], **cut_short), answer(message_events("Hello")))
    first = api.create(model=responses_api_script.model, input="Hi", tools=[function("look")])
    assert [item["status"] for item in first["output"]] == ["incomplete"]
    api.create(model=responses_api_script.model, input="Go on.", previous_response_id=first["id"])
    assert [entry["type"] for entry in responses_api_script.bodies[1]["input"]] == ["message", "message"]


def test_a_request_is_retried_before_the_first_byte(api: Api, responses_api_script: Script) -> None:
    again = refusal(503, headers={"x-should-retry": "true"})
    responses_api_script.then(again, answer(message_events("Hello")))
    assert api.create(model=responses_api_script.model, input="Hi")["status"] == "completed"


def test_a_pause_does_not_end_the_stream(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(Pause(0.3), message_events("Hello")))
    assert api.create(model=responses_api_script.model, input="Hi")["status"] == "completed"


def test_nul_characters_do_not_reach_the_database(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("He\x00llo")))
    (item,) = api.create(model=responses_api_script.model, input="Hi")["output"]
    assert item["content"][0]["text"] == "Hello"


def test_events_after_the_terminal_one_are_not_awaited(api: Api, responses_api_script: Script) -> None:
    gate = Gate()
    responses_api_script.then(stream(*message_events("Hello"), end(), gate, b"data: x\n\n"))
    assert api.create(model=responses_api_script.model, input="Hi")["status"] == "completed"


def test_a_disconnect_closes_the_upstream_call(api: Api, responses_api_script: Script, caller: Caller) -> None:
    responses_api_script.then(answer([added(0, message("")), text_of(0, "Hel")], Gate()))
    with api.stream(model=responses_api_script.model, input="Hi", store=False) as live:
        next(event for event in live.events if "delta" in event)
    assert responses_api_script.received[0].was_closed()

    def ended() -> bool:
        with scope.team(caller.team.pk):
            return Response.objects.get().status not in {"queued", "in_progress"}

    eventually(ended)


def test_missing_usage_is_estimated(api: Api, responses_api_script: Script, caller: Caller) -> None:
    responses_api_script.then(
        stream(*message_events("Hello"), event("completed", response={**response(), "usage": None}), done=False)
    )
    assert api.create(model=responses_api_script.model, input="Hi")["usage"]["output_tokens"] == 2
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.get().estimated


def test_invalid_usage_is_estimated(api: Api, responses_api_script: Script) -> None:
    nonsense = {"input_tokens": "many", "output_tokens": -3, "input_tokens_details": None}
    responses_api_script.then(answer(message_events("Hello"), usage=nonsense))
    usage = api.create(model=responses_api_script.model, input="Hi")["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (1, 2)
