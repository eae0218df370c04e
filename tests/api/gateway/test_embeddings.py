"""`POST /v1/embeddings`: validation, routing, forwarding and usage records."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from core.errors import ModelNotFound
from demo_upstream.embeddings import embed
from tenants import scope, services
from tenants.models import Model, UsageRecord
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.upstream import Answer, Cut, Gate, Script, ScriptedUpstream, refusal, whole
from tests.support.waiting import eventually

EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.25]}],
    "model": "scripted",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}


@pytest.fixture(scope="module")
def embedding_upstream() -> Iterator[ScriptedUpstream]:
    """Start a scripted upstream that offers only embeddings."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/embeddings", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def script(embedding_upstream: ScriptedUpstream, database: None) -> Iterator[Script]:
    """Script the answers for one model name."""
    with embedding_upstream.script() as script:
        services.add_upstream(name="embedder", base_url=embedding_upstream.url, models=[script.model])
        yield script


@pytest.fixture
def demo(database: None, demo_url: str) -> str:
    """Add the demo upstream; returns the name of its embedding model."""
    services.add_upstream(name="demo embedder", base_url=demo_url, models=["demo-embedding"])
    return "demo-embedding"


def test_the_limits_of_a_target_apply(api: Api, script: Script) -> None:
    script.then(whole(EMBEDDED))
    Model.objects.filter(name=script.model).update(requests_per_minute=1)
    ok(api.post("/embeddings", {"model": script.model, "input": "Hi"}))
    assert error(api.post("/embeddings", {"model": script.model, "input": "Hi"})) == (429, None, "rate_limit_exceeded")


def usage_record(caller: Caller) -> UsageRecord:
    """Return the only usage record of the test's team."""
    with scope.team(caller.team.pk):
        return UsageRecord.objects.get()


def has_usage_record(caller: Caller) -> bool:
    """Return true if the team has any usage record."""
    with scope.team(caller.team.pk):
        return UsageRecord.objects.exists()


def test_the_upstreams_answer_is_returned(api: Api, script: Script) -> None:
    script.then(whole(EMBEDDED))
    assert ok(api.post("/embeddings", {"model": script.model, "input": "Hi"})) == EMBEDDED


@pytest.mark.parametrize("given", ["Hi", ["Hi", "there"], [1, 2, 3], [[1, 2], [3]]])
def test_the_request_is_forwarded(api: Api, script: Script, given: Any) -> None:
    script.then(whole(EMBEDDED))
    body = {"model": script.model, "input": given, "dimensions": 2, "encoding_format": "float", "user": "u"}
    ok(api.post("/embeddings", body))
    assert script.bodies == [body]


def test_null_parameters_are_omitted(api: Api, script: Script) -> None:
    script.then(whole(EMBEDDED))
    body = {"model": script.model, "input": "Hi"}
    ok(api.post("/embeddings", {**body, "dimensions": None, "encoding_format": None, "user": None}))
    assert script.bodies == [body]


def test_the_upstreams_model_name_is_sent(api: Api, embedding_upstream: ScriptedUpstream, script: Script) -> None:
    public = f"public-{script.model}"
    services.add_upstream(name="embedder", base_url=embedding_upstream.url, models=[public])
    Model.objects.filter(name=public).update(upstream_model=script.model)
    script.then(whole(EMBEDDED))
    ok(api.post("/embeddings", {"model": public, "input": "Hi"}))
    assert (usage_record(api.caller).model, usage_record(api.caller).upstream_model) == (public, script.model)


def test_the_sdk_decodes_base64_vectors(client: OpenAI, demo: str) -> None:
    found = client.embeddings.create(model=demo, input=["a red car", "the blue sea"])
    vectors = [entry.embedding for entry in found.data]
    assert vectors[0] == pytest.approx(embed("a red car", dimensions=256), abs=1e-6)
    assert vectors[1] == pytest.approx(embed("the blue sea", dimensions=256), abs=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def test_the_sdk_can_request_floats_and_dimensions(client: OpenAI, demo: str) -> None:
    found = client.embeddings.create(model=demo, input="a red car", encoding_format="float", dimensions=8)
    assert found.data[0].embedding == embed("a red car", dimensions=8)


def test_usage_is_recorded(api: Api, script: Script, caller: Caller) -> None:
    script.then(whole(EMBEDDED))
    answer = api.post("/embeddings", {"model": script.model, "input": "Hi"})
    row = usage_record(caller)
    assert (row.endpoint, row.outcome, row.model) == ("embeddings", "stop", script.model)
    assert (row.input_tokens, row.output_tokens, row.estimated) == (5, 0, False)
    assert (row.api_key_id, row.request_id) == (caller.key.pk, answer.headers["x-request-id"])


def test_total_tokens_count_as_input(api: Api, script: Script, caller: Caller) -> None:
    script.then(whole({**EMBEDDED, "usage": {"total_tokens": 9}}))
    ok(api.post("/embeddings", {"model": script.model, "input": "Hi"}))
    assert (usage_record(caller).input_tokens, usage_record(caller).estimated) == (9, False)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 0, "total_tokens": 9},
        {"prompt_tokens": None, "total_tokens": 9},
        {"total_tokens": "9"},
        {"prompt_tokens": "9"},
        {"prompt_tokens": "0", "total_tokens": "9"},
        {"prompt_tokens": 4, "total_tokens": 9},
        {"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 11},
        {"prompt_tokens": "many", "total_tokens": 9.0},
    ],
)
def test_the_input_tokens_are_at_least_the_total_without_the_output(
    api: Api, script: Script, caller: Caller, usage: dict[str, Any]
) -> None:
    script.then(whole({**EMBEDDED, "usage": usage}))
    ok(api.post("/embeddings", {"model": script.model, "input": "Hi"}))
    assert (usage_record(caller).input_tokens, usage_record(caller).estimated) == (9, False)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        "5",
        {"prompt_tokens": None, "total_tokens": None},
        {"total_tokens": "unknown"},
        {"prompt_tokens": 0, "total_tokens": 0},
    ],
)
@pytest.mark.parametrize(
    ("given", "tokens"), [("12345", 2), (["12345", "678"], 2), ([7, 8, 9], 3), ([[7, 8], [9, 10, 11]], 5)]
)
def test_missing_usage_is_estimated(
    api: Api, script: Script, caller: Caller, given: Any, tokens: int, usage: Any
) -> None:
    script.then(whole({**EMBEDDED, "usage": usage}))
    ok(api.post("/embeddings", {"model": script.model, "input": given}))
    assert (usage_record(caller).input_tokens, usage_record(caller).estimated) == (tokens, True)


BAD: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"input": "Hi"}, ("model", "missing_required_parameter")),
    ({"model": None, "input": "Hi"}, ("model", "invalid_type")),
    ({"model": 5, "input": "Hi"}, ("model", "invalid_type")),
    ({"model": "", "input": "Hi"}, ("model", "empty_string")),
    ({"model": "m" * 201, "input": "Hi"}, ("model", "string_above_max_length")),
    ({"model": "m"}, ("input", "missing_required_parameter")),
    ({"model": "m", "input": None}, ("input", "invalid_type")),
    ({"model": "m", "input": {}}, ("input", "invalid_type")),
    ({"model": "m", "input": 5}, ("input", "invalid_type")),
    ({"model": "m", "input": ""}, ("input", "empty_string")),
    ({"model": "m", "input": []}, ("input", "empty_array")),
    ({"model": "m", "input": ["Hi", ""]}, ("input[1]", "empty_string")),
    ({"model": "m", "input": ["Hi", 5]}, ("input[1]", "invalid_type")),
    ({"model": "m", "input": [{"type": "text", "text": "Hi"}]}, ("input[0]", "invalid_type")),
    ({"model": "m", "input": ["a"] * 2049}, ("input", "array_above_max_length")),
    ({"model": "m", "input": [5, "Hi"]}, ("input[1]", "invalid_type")),
    ({"model": "m", "input": [5, -1]}, ("input[1]", "integer_below_min_value")),
    ({"model": "m", "input": [[5], []]}, ("input[1]", "empty_array")),
    ({"model": "m", "input": [[5], [6, 0.5]]}, ("input[1][1]", "invalid_type")),
    ({"model": "m", "input": [[5]] * 2049}, ("input", "array_above_max_length")),
    ({"model": "m", "input": "Hi", "encoding_format": "hex"}, ("encoding_format", "invalid_value")),
    ({"model": "m", "input": "Hi", "dimensions": 0}, ("dimensions", "integer_below_min_value")),
    ({"model": "m", "input": "Hi", "dimensions": "2"}, ("dimensions", "invalid_type")),
    ({"model": "m", "input": "Hi", "user": 5}, ("user", "invalid_type")),
    ({"model": "m", "input": "Hi", "input_type": "query"}, ("input_type", "unknown_parameter")),
    ({"model": "m", "input": "Hi", "stream": None}, ("stream", "unknown_parameter")),
]


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_invalid_parameters_are_rejected(api: Api, body: dict[str, Any], expected: tuple[str, str]) -> None:
    assert error(api.post("/embeddings", body)) == (400, *expected)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"Hi"'])
def test_a_body_that_is_not_an_object_is_rejected(api: Api, body: bytes) -> None:
    assert api.post("/embeddings", body).status_code == 400


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, None, "invalid_prompt")),
        (401, (500, None, "server_error")),
        (403, (500, None, "server_error")),
        (422, (400, None, "invalid_prompt")),
        (429, (429, None, "rate_limit_exceeded")),
        (500, (500, None, "server_error")),
        (503, (503, None, "server_is_overloaded")),
    ],
)
def test_errors_of_the_upstream_are_mapped(
    api: Api, script: Script, caller: Caller, status: int, expected: tuple[int, str | None, str]
) -> None:
    script.then(refusal(status, "Too many words.", headers={"Retry-After": "7"}))
    answer = api.post("/embeddings", {"model": script.model, "input": "Hi"})
    assert error(answer) == expected
    assert answer.headers.get("retry-after") == ("7" if status in {429, 503} else None)
    assert (usage_record(caller).outcome, usage_record(caller).input_tokens) == ("failed", 0)


@pytest.mark.slow
def test_an_unreachable_upstream_is_reported(api: Api, script: Script, caller: Caller) -> None:
    services.add_upstream(name="nobody", base_url="http://127.0.0.1:9/v1", models=[f"{script.model}-gone"])
    answer = api.post("/embeddings", {"model": f"{script.model}-gone", "input": "Hi"})
    assert error(answer) == (503, None, "upstream_unreachable")
    assert usage_record(caller).outcome == "failed"


def test_an_upstream_without_the_endpoint_does_not_support_it(
    api: Api, upstream: ScriptedUpstream, caller: Caller
) -> None:
    answer = api.post("/embeddings", {"model": "chats-only", "input": "Hi"})
    assert error(answer) == (400, "model", "unsupported_value")
    assert answer.json()["error"]["message"] == "The model 'chats-only' does not support embeddings."
    assert (usage_record(caller).outcome, usage_record(caller).input_tokens) == ("failed", 0)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_other_statuses_also_mean_a_missing_endpoint(api: Api, script: Script, status: int) -> None:
    script.then(refusal(status, "Invalid URL (POST /v1/embeddings)"))
    answer = api.post("/embeddings", {"model": script.model, "input": "Hi"})
    assert error(answer) == (400, "model", "unsupported_value")


UNKNOWN = {
    "by its code": b'{"error": {"message": "No.", "code": "model_not_found"}}',
    "by its param": b'{"error": {"message": "No.", "param": "model", "code": null}}',
    "in its words": b'{"object": "error", "message": "The model `NAME` does not exist.", "code": 404}',
    "as a string": b'{"error": "model NAME not found, try pulling it first"}',
}


@pytest.mark.parametrize("wording", UNKNOWN)
def test_a_model_unknown_to_the_upstream_is_not_found(api: Api, script: Script, wording: str) -> None:
    script.then(whole(UNKNOWN[wording].replace(b"NAME", script.model.encode()), status=404))
    answer = api.post("/embeddings", {"model": script.model, "input": "Hi"})
    assert error(answer) == (400, "model", "model_not_found")
    assert answer.json()["error"]["message"] == ModelNotFound(script.model).message


BROKEN: dict[str, Answer] = {
    "an error with status 200": whole({"error": {"message": "Out of memory.", "code": 500}}),
    "no JSON": whole(b"<html>"),
    "no object": whole(b"[]"),
    "a cut": Answer(pieces=[b'{"data"', Cut()], content_type="application/json"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_invalid_answer_is_an_error(api: Api, script: Script, caller: Caller, what: str) -> None:
    script.then(BROKEN[what])
    assert error(api.post("/embeddings", {"model": script.model, "input": "Hi"})) == (500, None, "server_error")
    assert usage_record(caller).outcome == "failed"


@pytest.mark.parametrize("head_first", [True, False])
def test_a_disconnect_cancels_the_upstream_call(api: Api, script: Script, caller: Caller, head_first: bool) -> None:
    script.then(Answer(pieces=[Gate()], content_type="application/json", delayed_head=not head_first))
    with api.open("/embeddings", {"model": script.model, "input": "12345"}):
        received = script.wait_for_call()
    assert received.was_closed()
    eventually(lambda: has_usage_record(caller))
    row = usage_record(caller)
    assert (row.outcome, row.input_tokens, row.estimated) == ("interrupted", 2, True)


def test_another_teams_model_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    with scope.every_team():
        Model.objects.get(name=script.model).teams.set([api.caller.team])
    foreign = outsider.post("/embeddings", {"model": script.model, "input": "Hi"})
    unknown = outsider.post("/embeddings", {"model": "unknown", "input": "Hi"})
    # Both are routed by `*`, to an upstream that only chats; an unexpected call of `script` would fail this test.
    assert (foreign.status_code, foreign.text.replace(script.model, "unknown")) == (400, unknown.text)


def test_a_model_the_key_may_not_use_is_not_found(make_api: MakeApi, script: Script) -> None:
    answer = make_api(allowed_models=["other"]).post("/embeddings", {"model": script.model, "input": "Hi"})
    assert error(answer) == (400, "model", "model_not_found")


def test_embedding_requires_its_scope(make_api: MakeApi, script: Script) -> None:
    body = {"model": script.model, "input": "Hi"}
    rejected = make_api(scopes=["moderations.write", "chat_completions.write"]).post("/embeddings", body)
    assert error(rejected) == (403, None, "insufficient_scope")
    script.then(whole(EMBEDDED))
    assert ok(make_api(scopes=["embeddings.write"]).post("/embeddings", body)) == EMBEDDED


def test_a_key_and_the_post_method_are_required(api: Api) -> None:
    answer = api.post("/embeddings", {"model": "m", "input": "Hi"}, {"Authorization": "Bearer sk-wrong"})
    assert error(answer) == (401, None, "invalid_api_key")
    assert error(api.get("/embeddings")) == (405, None, "method_not_supported")
