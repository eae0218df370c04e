"""`POST /v1/completions`: validation, forwarding, streams and usage records."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from aiohttp import web as aiohttp
from openai import OpenAI, Stream

from tenants import scope, services
from tenants.models import GuardAction, Guardrail, Model
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.upstream import Answer, Cut, Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.usage_records import usage_record

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def piece(text: str, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk, which has the same format as a whole completion."""
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "scripted"}
    return {**head, "choices": [choice], **fields}


COMPLETION = piece(" upon a time", "stop", usage=USAGE)
LAST = {**piece(""), "choices": [], "usage": USAGE}


@pytest.fixture(scope="module")
def completion_upstream() -> Iterator[ScriptedUpstream]:
    """Start a scripted upstream that offers only completions."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/completions", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def script(completion_upstream: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name."""
    with completion_upstream.script() as script:
        services.add_upstream(name="completer", base_url=completion_upstream.url, models=[script.model])
        yield script


def test_the_upstreams_answer_is_returned(api: Api, script: Script, caller: Caller) -> None:
    script.then(whole(COMPLETION))
    assert ok(api.post("/completions", {"model": script.model, "prompt": "Once"})) == COMPLETION
    row = usage_record(caller)
    assert (row.endpoint, row.object_id, row.outcome) == ("completions", "cmpl-1", "stop")
    assert (row.input_tokens, row.output_tokens, row.estimated) == (3, 2, False)


@pytest.mark.parametrize("streamed", [False, True])
def test_values_that_clients_reject_are_repaired(client: OpenAI, script: Script, streamed: bool) -> None:
    raw = orjson.dumps(piece("Once", "stop", usage=USAGE)).replace(b'"logprobs":null', b'"logprobs":{"tokens":[NaN]}')
    script.then(stream(b"data: %b\n\n" % raw) if streamed else whole(raw.replace(b"Once", rb"On\ud83dce")))
    answer = client.completions.create(model=script.model, prompt="Say:", stream=streamed)
    (first, *_) = answer if isinstance(answer, Stream) else [answer]
    assert first.choices[0].text == ("Once" if streamed else "On\ufffdce")


@pytest.mark.parametrize("prompt", ["Once", "", ["Once", "Twice"], [1, 2], [[1], [2, 3]], None])
def test_the_request_is_forwarded(api: Api, script: Script, prompt: Any) -> None:
    script.then(whole(COMPLETION))
    body = {
        "model": script.model,
        "prompt": prompt,
        "suffix": "The end.",
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["."],
        "logprobs": 2,
        "echo": True,
        "n": 2,
        "best_of": 3,
        "logit_bias": {"50256": -100},
    }
    ok(api.post("/completions", {**body, "seed": None}))
    assert script.bodies == [body]


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_completion_is_streamed(client: OpenAI, script: Script, caller: Caller, include_usage: bool) -> None:
    gate = Gate()
    script.then(stream(piece("Once"), gate, piece(" upon", "stop"), LAST))
    options: Any = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = client.completions.create(model=script.model, prompt="Say:", stream=True, **options)
    first = next(iter(chunks))
    gate.open()
    rest = list(chunks)
    assert "".join(chunk.choices[0].text for chunk in [first, *rest] if chunk.choices) == "Once upon"
    # The usage is always requested, and sent to clients that asked for it.
    assert script.bodies[0]["stream_options"] == {"include_usage": True}
    assert [chunk.usage.total_tokens for chunk in rest if chunk.usage] == [5] * include_usage
    assert (usage_record(caller).input_tokens, usage_record(caller).output_tokens) == (3, 2)


def test_the_usage_of_a_stream_without_one_is_estimated(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(piece("Once"), piece(" upon", "stop")))
    answer = api.post("/completions", {"model": script.model, "prompt": "Say:", "stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    assert (usage_record(caller).output_tokens, usage_record(caller).estimated) == (2, True)


BROKEN_STREAMS: dict[str, Answer] = {
    "an error inside": stream(piece("Once"), {"error": {"message": "Out of memory at 10.0.0.7.", "code": 500}}),
    "garbage": stream(piece("Once"), b"data: {broken\n\n"),
}


@pytest.mark.parametrize("what", BROKEN_STREAMS)
def test_a_broken_stream_ends_with_an_error(api: Api, script: Script, caller: Caller, what: str) -> None:
    script.then(BROKEN_STREAMS[what])
    answer = api.post("/completions", {"model": script.model, "prompt": "Say:", "stream": True})
    assert '"text":"Once"' in answer.text
    assert '"code":"server_error"' in answer.text
    assert not [word for word in ("10.0.0.7", "[DONE]") if word in answer.text]
    assert usage_record(caller).outcome == "failed"


def test_an_interrupted_stream_ends_with_an_error(api: Api, script: Script, caller: Caller) -> None:
    gate = Gate()
    script.then(stream(piece("Once"), gate, Cut()))
    with api.stream("/completions", model=script.model, prompt="Say:") as live:
        assert live.next()["choices"][0]["text"] == "Once"
        gate.open()
        (last,) = live.rest()
    assert (last["error"]["code"], "data: [DONE]" in live.raw) == ("server_error", False)
    assert usage_record(caller).outcome == "failed"


def test_a_disconnect_cancels_the_upstream_call(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(piece("Once"), Gate()))
    with api.open("/completions", {"model": script.model, "prompt": "Say:", "stream": True}):
        received = script.wait_for_call()
    assert received.was_closed()
    assert usage_record(caller).outcome == "interrupted"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, None, "invalid_prompt")),
        (403, (500, None, "server_error")),
        (429, (429, None, "rate_limit_exceeded")),
        (503, (503, None, "server_is_overloaded")),
    ],
)
def test_errors_of_the_upstream_are_mapped(
    api: Api, script: Script, caller: Caller, streamed: bool, status: int, expected: tuple[int, str | None, str]
) -> None:
    script.then(refusal(status, "Too many words."))
    answer = api.post("/completions", {"model": script.model, "prompt": "Once", "stream": streamed})
    assert error(answer) == expected
    assert usage_record(caller).outcome == "failed"


def test_an_upstream_without_the_endpoint_does_not_support_it(api: Api, upstream: ScriptedUpstream) -> None:
    answer = api.post("/completions", {"model": "chats-only", "prompt": "Once"})
    assert error(answer) == (400, "model", "unsupported_value")
    assert answer.json()["error"]["message"] == "The model 'chats-only' does not support completions."


BAD: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"model": None}, ("model", "invalid_type")),
    ({"prompt": 5}, ("prompt", "invalid_type")),
    ({"prompt": []}, ("prompt", "empty_array")),
    ({"prompt": ["Hi", 5]}, ("prompt[1]", "invalid_type")),
    ({"messages": []}, ("messages", "unknown_parameter")),
    ({"temperature": 3}, ("temperature", "decimal_above_max_value")),
    ({"logprobs": 6}, ("logprobs", "integer_above_max_value")),
    ({"n": 2, "best_of": 1}, ("best_of", "invalid_value")),
    ({"stream": True, "best_of": 2}, ("best_of", "invalid_value")),
    ({"stream_options": {"include_usage": True}}, ("stream_options", "invalid_value")),
    ({"stop": ["a", "b", "c", "d", "e"]}, ("stop", "array_above_max_length")),
]


@pytest.mark.parametrize(("values", "expected"), BAD)
def test_invalid_parameters_are_rejected(api: Api, values: dict[str, Any], expected: tuple[str, str]) -> None:
    assert error(api.post("/completions", {"model": "m", "prompt": "Hi", **values})) == (400, *expected)


def test_a_prompt_is_required(api: Api) -> None:
    assert error(api.post("/completions", {"model": "m"})) == (400, "prompt", "missing_required_parameter")


def test_a_blocking_guardrail_rejects_completions(api: Api, script: Script) -> None:
    with scope.every_team():
        Guardrail.objects.create(
            team=api.caller.team, input_checker="hook", input_action=GuardAction.BLOCK, hook_url="https://example.com"
        )
    answer = api.post("/completions", {"model": script.model, "prompt": "Hi"})
    assert error(answer) == (403, None, "guardrail_required")


def test_another_teams_model_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    with scope.every_team():
        Model.objects.get(name=script.model).teams.set([api.caller.team])
    foreign = outsider.post("/completions", {"model": script.model, "prompt": "Hi"})
    unknown = outsider.post("/completions", {"model": "unknown", "prompt": "Hi"})
    # Both are routed by `*`, to an upstream that only chats; an unexpected call of `script` would fail this test.
    assert (foreign.status_code, foreign.text.replace(script.model, "unknown")) == (400, unknown.text)


def test_a_model_the_key_may_not_use_is_not_found(make_api: MakeApi, script: Script) -> None:
    answer = make_api(allowed_models=["other"]).post("/completions", {"model": script.model, "prompt": "Hi"})
    assert error(answer) == (400, "model", "model_not_found")


def test_completions_require_their_scope(make_api: MakeApi, script: Script) -> None:
    body = {"model": script.model, "prompt": "Hi"}
    assert error(make_api(scopes=["chat_completions.write"]).post("/completions", body))[0] == 403
    script.then(whole(COMPLETION))
    ok(make_api(scopes=["completions.write"]).post("/completions", body))


def test_the_sdk_completes_prompts(client: OpenAI, script: Script) -> None:
    [first] = COMPLETION["choices"]
    script.then(whole({**COMPLETION, "choices": [first, {**first, "index": 1}]}))
    made = client.completions.create(model=script.model, prompt=["Once", "Then"], max_tokens=20)
    script.then(stream(piece(" upon"), piece(" a time", "stop")))
    chunks = list(client.completions.create(model=script.model, prompt="Once", max_tokens=20, stream=True))
    assert [choice.index for choice in made.choices] == [0, 1]
    assert "".join(chunk.choices[0].text for chunk in chunks) == made.choices[0].text == " upon a time"
    assert made.usage
    assert made.usage.prompt_tokens == 3
