"""Faults of upstreams as they appear in JSON, in streams, in the response's row and in usage records."""

from typing import Any

import pytest

from core.errors import ModelNotFound
from launcher.address import any_free_port
from responses.models import Response, Turn
from tenants import scope, services
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error
from tests.support.chunks import calls, chunk, text, usage
from tests.support.streams import assert_stream_equals_stored, types
from tests.support.upstream import Answer, Cut, Gate, Pause, Script, refusal, stream, whole

FAILED = "The model's server failed (HTTP 500)."
OUT_OF_MEMORY = "The model's server failed (HTTP 500): Out of memory."
BROKE = "The connection to the model's server broke in the middle of its answer."
REFUSED = "The model's server rejected this platform's credentials."
BUSY = "The model's server is receiving too many requests. Please retry."
# The upstream's answer, the error of a JSON request (status, param, code), and its message.
FAULTS: dict[str, tuple[Answer, tuple[int, str | None, str], str]] = {
    "400": (
        refusal(400, "Bad prompt."),
        (400, None, "invalid_prompt"),
        "The model's server rejected the request: Bad prompt.",
    ),
    "401": (refusal(401, "Bad key sk-upstream."), (500, None, "server_error"), REFUSED),
    "403": (refusal(403), (500, None, "server_error"), REFUSED),
    "404": (refusal(404), (400, "model", "model_not_found"), ModelNotFound("{model}").message),
    "429": (refusal(429), (429, None, "rate_limit_exceeded"), BUSY),
    "500": (refusal(500, "Trace at 10.0.0.7"), (500, None, "server_error"), FAILED),
    "503": (refusal(503), (503, None, "server_is_overloaded"), "The model's server is overloaded."),
    "a cut at the start": (stream(Cut()), (500, None, "server_error"), BROKE),
    "a cut in the middle": (stream(chunk(content="Hel"), Cut()), (500, None, "server_error"), BROKE),
    "an error with status 200": (
        whole({"error": {"message": "Out of memory.", "code": 500}}),
        (500, None, "server_error"),
        OUT_OF_MEMORY,
    ),
    "an unknown model with status 200": (
        whole({"error": {"message": "No such model.", "code": 404}}),
        (400, "model", "model_not_found"),
        ModelNotFound("{model}").message,
    ),
    "an unknown model inside of the stream": (
        stream({"error": {"message": "No such model.", "code": 404}}),
        (400, "model", "model_not_found"),
        ModelNotFound("{model}").message,
    ),
    "an error inside of the stream": (
        stream(chunk(content="Hel"), {"error": {"message": "Out of memory.", "code": 500}}),
        (500, None, "server_error"),
        OUT_OF_MEMORY,
    ),
    "a rate limit inside of the stream": (
        stream({"error": {"message": "Slow down.", "code": 429}}),
        (429, None, "rate_limit_exceeded"),
        BUSY,
    ),
    "garbage": (
        stream(chunk(content="Hel"), b"data: {garbage\n\n"),
        (500, None, "server_error"),
        "The model's server sent something that is not JSON.",
    ),
    "no object": (
        stream(b"data: [1]\n\n"),
        (500, None, "server_error"),
        "The model's server sent something that is not a JSON object.",
    ),
    "a page": (
        whole(b"<html>nginx</html>"),
        (500, None, "server_error"),
        "The model's server sent something that is not JSON.",
    ),
    "an end too early": (
        stream(chunk(content="Hel"), done=False),
        (500, None, "server_error"),
        "The model's server ended its answer too early.",
    ),
}


REFUSED_AT_ONCE = [fault for fault in FAULTS if fault.isdigit()]
"""Faults with a status other than 200."""


def stored_rows(caller: Caller) -> tuple[Response, Turn, UsageRecord]:
    """Return the rows of the team's only response: response, turn and usage record."""
    with scope.team(caller.team.pk):
        return Response.objects.get(), Turn.objects.get(), UsageRecord.objects.get()


def assert_failed(caller: Caller, code: str, message: str) -> None:
    """Assert that the rows contain the failure as well."""
    response, turn, ledger = stored_rows(caller)
    assert (response.status, response.error_code) == ("failed", code)
    assert response.error == {"code": code, "message": message}
    assert (turn.state, ledger.outcome, ledger.object_id) == ("failed", "failed", response.pk)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_json_request_gets_the_status_of_the_fault(api: Api, script: Script, caller: Caller, fault: str) -> None:
    answer, expected, wording = FAULTS[fault]
    message = wording.format(model=script.model)
    script.then(answer)
    got = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert error(got) == expected
    assert got.json()["error"]["message"] == message
    assert_failed(caller, expected[2], message)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in REFUSED_AT_ONCE])
def test_a_stream_sends_the_events_error_and_failed(api: Api, script: Script, caller: Caller, fault: str) -> None:
    answer, (_, _, code), wording = FAULTS[fault]
    message = wording.format(model=script.model)
    script.then(answer)
    events = api.events(model=script.model, input="Hi")
    assert types(events)[-2:] == ["error", "response.failed"]
    assert (events[-2]["error"]["code"], events[-2]["error"]["message"]) == (code, message)
    assert events[-1]["response"]["error"] == {"code": code, "message": message}
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))
    assert_failed(caller, code, message)


@pytest.mark.parametrize("fault", REFUSED_AT_ONCE)
def test_a_stream_that_has_not_begun_reports_the_same_error_as_json(
    api: Api, script: Script, caller: Caller, fault: str
) -> None:
    answer, expected, wording = FAULTS[fault]
    message = wording.format(model=script.model)
    script.then(answer)
    got = api.post("/responses", {"model": script.model, "input": "Hi", "stream": True})
    assert error(got) == expected
    assert got.json()["error"]["message"] == message
    assert_failed(caller, expected[2], message)


def test_output_before_an_interruption_is_kept(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), chunk(content="lo"), Cut()))
    events = api.events(model=script.model, input="Hi")
    (message,) = api.retrieve(events[0]["response"]["id"])["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hello")


def test_secrets_of_the_upstream_are_not_revealed(api: Api, script: Script) -> None:
    for fault in ("401", "500", "an error with status 200"):
        script.then(FAULTS[fault][0])
        answer = api.post("/responses", {"model": script.model, "input": "Hi"})
        assert not [word for word in ("sk-upstream", "10.0.0.7", "127.0.0.1", "Trace") if word in answer.text]


def test_the_client_gets_a_retry_after_header(api: Api, script: Script) -> None:
    script.then(refusal(429, headers={"Retry-After": "7"}))
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_request_is_retried_before_the_first_byte(api: Api, script: Script, caller: Caller, status: int) -> None:
    again = refusal(status, headers={"x-should-retry": "true", "retry-after-ms": "1"})
    script.then(again, again).say("Hello")
    response = api.create(model=script.model, input="Hi")
    assert (response["status"], len(script.bodies)) == ("completed", 3)
    with scope.team(caller.team.pk):
        records = UsageRecord.objects.order_by("occurred_at")
        # An answer with an error status is not charged.
        assert [(one.outcome, one.input_tokens) for one in records] == [("failed", 0), ("failed", 0), ("stop", 7)]


def test_a_call_gives_up_after_three_attempts(api: Api, script: Script) -> None:
    script.then(*[refusal(503, headers={"x-should-retry": "true", "retry-after-ms": "1"})] * 3)
    assert api.post("/responses", {"model": script.model, "input": "Hi"}).status_code == 503


def test_a_request_is_never_retried_after_the_first_byte(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), Cut()))
    assert api.events(model=script.model, input="Hi")[-1]["type"] == "response.failed"
    assert len(script.bodies) == 1


@pytest.fixture
def unreachable_model(database: None, upstream: Any) -> str:
    """A model whose upstream does not exist."""
    name = "nobody/at-home"
    services.add_upstream(name="nobody", base_url=f"http://127.0.0.1:{any_free_port()}/v1", models=[name])
    return name


@pytest.mark.parametrize("streamed", [False, True])
def test_an_unreachable_upstream_is_unavailable(
    api: Api, unreachable_model: str, caller: Caller, streamed: bool
) -> None:
    message = f"The model's server could not be reached. Model: '{unreachable_model}', request: req_"
    answer = api.post("/responses", {"model": unreachable_model, "input": "Hi", "stream": streamed})
    assert error(answer) == (503, None, "upstream_unreachable")
    message += answer.headers["x-request-id"].removeprefix("req_") + "."
    assert message in answer.text
    assert_failed(caller, "upstream_unreachable", message)


def test_an_upstream_that_falls_silent_times_out(short_timeout_api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), Gate()))
    events = short_timeout_api.events(model=script.model, input="Hi")
    message = "The model's server stopped responding in the middle of its answer."
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": message}
    assert_stream_equals_stored(events, short_timeout_api.retrieve(events[0]["response"]["id"]))
    assert script.received[0].was_closed()
    assert_failed(short_timeout_api.caller, "server_error", message)


def test_an_upstream_that_never_answers_times_out_without_a_retry(short_timeout_api: Api, script: Script) -> None:
    script.then(Answer(pieces=[Gate()], delayed_head=True))
    answer = short_timeout_api.post("/responses", {"model": script.model, "input": "Hi"})
    assert error(answer) == (503, None, "upstream_timeout")
    request_id = answer.headers["x-request-id"]
    message = f"The model's server did not answer in time. Model: '{script.model}', request: {request_id}."
    assert answer.json()["error"]["message"] == message
    assert_failed(short_timeout_api.caller, "upstream_timeout", message)


def test_a_slow_upstream_is_awaited(short_timeout_api: Api, script: Script) -> None:
    script.then(stream(*[piece for one in text("Hel", "lo") for piece in (one, Pause(0.4))]))
    assert short_timeout_api.create(model=script.model, input="Hi")["output"][0]["content"][0]["text"] == "Hello"


LONG = "x" * 400


def raw_chunk(delta: bytes, finish: bytes = b'"stop"') -> bytes:
    """Return a chunk with a delta that no JSON library would write."""
    return b'data: {"choices":[{"delta":{%b},"finish_reason":%b}]}\n\n' % (delta, finish)


ODD: dict[str, Answer] = {
    "a long function name": stream(*calls(**{LONG: "{}"})),
    "a long call id": stream(chunk(tool_calls=[{"index": 0, "id": LONG, "function": {"name": "a"}}], finish="stop")),
    "a long reason": stream(chunk(content="a", finish=LONG)),
    "a long request id": stream(*text("a"), headers={"x-request-id": LONG}),
    "a long id": stream({**chunk(content="a", finish="stop"), "id": LONG}),
    "odd numbers": stream(chunk(content="a", finish="stop"), usage(prompt_tokens=-5, completion_tokens=10**12)),
    "no numbers": stream(chunk(content="a", finish="stop"), usage(prompt_tokens="7", completion_tokens=None)),
    "content in parts": stream(chunk(content=[{"type": "text", "text": "a"}], finish="stop")),
    "a word as an error": stream({"error": "boom"}),
    "a code as an error": stream({"error": {"code": "rate_limit_exceeded", "message": "x"}}),
    "NUL": stream(raw_chunk(rb'"content":"a\u0000b"')),
    "half a character": stream(raw_chunk(rb'"content":"\ud83d"')),
    "NUL in a call": stream(
        raw_chunk(
            rb'"tool_calls":[{"index":0,"id":"a\u0000","function":{"name":"b\u0000","arguments":"{\"x\":\"\\u0000\"}"}}]'
        )
    ),
    "a NUL in a completion": whole(b'{"id":"\\u0000","choices":[{"message":{"content":"a\\u0000"}}]}'),
    "no message": whole({"choices": [{"message": None}]}),
    "no choices": whole({"choices": []}),
    "no usage": whole({"choices": [{"message": {"content": "a"}}], "usage": None}),
    "nothing": whole(b""),
    "nothing but an end": stream(),
    "a plain text": Answer(pieces=[b"Hello"], content_type="text/plain", done=False),
    "many words": stream(*text(*["word "] * 3000)),
    "a big word": stream(*text("x" * 5_000_000)),
}


@pytest.mark.parametrize("what", ODD)
def test_any_upstream_output_ends_in_a_terminal_state(api: Api, script: Script, what: str) -> None:
    script.then(ODD[what])
    events = api.events(model=script.model, input="Hi", include=["message.output_text.logprobs"])
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))
    assert "error while processing" not in str(events[-1]["response"]["error"])


MALFORMED: dict[str, Answer] = {
    "a long tier": stream({**chunk(content="a", finish="stop"), "service_tier": LONG}),
    "a number as a tier": stream({**chunk(content="a", finish="stop"), "service_tier": 5}),
    "a number as a reason": stream(raw_chunk(b'"content":"a"', b"7")),
    "a number as content": stream(chunk(content=5, finish="stop")),
    "a word as choices": stream({"choices": "x"}),
    "null as a choice": stream({"choices": [None]}),
    "a word as a delta": stream({"choices": [{"delta": "x"}]}),
    "a word as calls": stream({"choices": [{"delta": {"tool_calls": "x"}}]}),
    "null as a call": stream({"choices": [{"delta": {"tool_calls": [None]}}]}),
    "a number as a name": stream({"choices": [{"delta": {"tool_calls": [{"function": {"name": 5}}]}}]}),
    "a list as usage": stream(chunk(content="a"), {"usage": [1]}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_chunk_is_an_upstream_error(api: Api, script: Script, what: str) -> None:
    script.then(MALFORMED[what])
    events = api.events(model=script.model, input="Hi")
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))
    assert "error while processing" not in str(events[-1]["response"]["error"])
