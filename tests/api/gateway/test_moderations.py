"""`POST /v1/moderations`: validated, routed, passed on and recorded."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from tenants import scope, services
from tenants.models import UsageRecord
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.upstream import Answer, Gate, Script, ScriptedUpstream, refusal, whole
from tests.support.waiting import eventually

TEXT = {"type": "text", "text": "12345"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
JUDGED = {
    "id": "modr-1",
    "model": "omni-moderation-latest",
    "results": [
        {
            "flagged": True,
            "categories": {"violence": True, "harassment": False},
            "category_scores": {"violence": 0.97, "harassment": 0.01},
            "category_applied_input_types": {"violence": ["text"], "harassment": []},
        }
    ],
}


@pytest.fixture(scope="session")
def moderator() -> Iterator[ScriptedUpstream]:
    """A scripted upstream that only moderates.

    It has the same URL for all tests, because web processes remember the route of a model for a second.
    """
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/moderations", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def script(moderator: ScriptedUpstream, database: None) -> Iterator[Script]:
    """The answers of the default model."""
    with moderator.script("omni-moderation-latest") as script:
        services.add_upstream(name="judge", base_url=moderator.url, models=[script.model])
        yield script


@pytest.fixture
def other(moderator: ScriptedUpstream, database: None) -> Iterator[Script]:
    """The answers of another model."""
    with moderator.script() as script:
        services.add_upstream(name="judge", base_url=moderator.url, models=[script.model])
        yield script


def ledger(caller: Caller) -> UsageRecord:
    """Return the only usage record of the team."""
    with scope.team(caller.team.pk):
        return UsageRecord.objects.get()


def is_written(caller: Caller) -> bool:
    """Return True if the team has a usage record."""
    with scope.team(caller.team.pk):
        return UsageRecord.objects.exists()


@pytest.mark.parametrize("given", ["Hi", "", ["Hi", "there"], [TEXT, IMAGE]])
def test_request_and_answer_are_passed_on(api: Api, script: Script, given: Any) -> None:
    script.then(whole(JUDGED))
    assert ok(api.post("/moderations", {"input": given})) == JUDGED
    assert script.bodies == [{"input": given, "model": "omni-moderation-latest"}]


def test_null_selects_the_default_model(api: Api, script: Script) -> None:
    script.then(whole(JUDGED))
    assert ok(api.post("/moderations", {"input": "Hi", "model": None})) == JUDGED


def test_a_model_can_be_named(api: Api, other: Script) -> None:
    other.then(whole(JUDGED))
    ok(api.post("/moderations", {"input": "Hi", "model": other.model}))
    assert other.bodies == [{"input": "Hi", "model": other.model}]


def test_the_sdk_parses_the_answer(client: OpenAI, script: Script) -> None:
    script.then(whole(JUDGED))
    judged = client.moderations.create(input="I will hurt you.")
    assert (judged.id, judged.results[0].flagged) == ("modr-1", True)
    assert (judged.results[0].categories.violence, judged.results[0].category_scores.violence) == (True, 0.97)


@pytest.mark.parametrize(
    ("given", "tokens"), [("12345", 2), (["12345", "678"], 2), ([TEXT, IMAGE], 2), ([IMAGE], 0), ("", 0)]
)
def test_a_usage_record_with_estimated_tokens_is_written(
    api: Api, script: Script, caller: Caller, given: Any, tokens: int
) -> None:
    script.then(whole(JUDGED))
    answer = api.post("/moderations", {"input": given})
    row = ledger(caller)
    assert (row.endpoint, row.outcome, row.object_id) == ("moderations", "stop", "modr-1")
    assert (row.model, row.input_tokens, row.estimated) == (script.model, tokens, True)
    assert (row.api_key_id, row.request_id) == (caller.key.pk, answer.headers["x-request-id"])


def test_token_counts_of_the_upstream_are_recorded(api: Api, script: Script, caller: Caller) -> None:
    script.then(whole({**JUDGED, "usage": {"prompt_tokens": 6, "total_tokens": 6}}))
    ok(api.post("/moderations", {"input": "Hi"}))
    assert (ledger(caller).input_tokens, ledger(caller).estimated) == (6, False)


BAD: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({}, ("input", "missing_required_parameter")),
    ({"input": None}, ("input", "invalid_type")),
    ({"input": 5}, ("input", "invalid_type")),
    ({"input": {}}, ("input", "invalid_type")),
    ({"input": []}, ("input", "empty_array")),
    ({"input": [5]}, ("input[0]", "invalid_type")),
    ({"input": [[5]]}, ("input[0]", "invalid_type")),
    ({"input": ["Hi", TEXT]}, ("input[1]", "invalid_type")),
    ({"input": ["Hi"] * 2049}, ("input", "array_above_max_length")),
    ({"input": [TEXT, "Hi"]}, ("input[1]", "invalid_type")),
    ({"input": [{"type": "text"}]}, ("input[0].text", "missing_required_parameter")),
    ({"input": [{"text": "Hi"}]}, ("input[0]", "invalid_value")),
    ({"input": [{"type": "audio"}]}, ("input[0]", "invalid_value")),
    ({"input": [{"type": "text", "text": 5}]}, ("input[0].text", "invalid_type")),
    ({"input": [{"type": "text", "text": "Hi", "x": 1}]}, ("input[0].x", "unknown_parameter")),
    ({"input": [{"type": "image_url"}]}, ("input[0].image_url", "missing_required_parameter")),
    ({"input": [{"type": "image_url", "image_url": {}}]}, ("input[0].image_url.url", "missing_required_parameter")),
    ({"input": [{"type": "image_url", "image_url": {"url": ""}}]}, ("input[0].image_url.url", "empty_string")),
    ({"input": "Hi", "model": ""}, ("model", "empty_string")),
    ({"input": "Hi", "model": 5}, ("model", "invalid_type")),
    ({"input": "Hi", "threshold": 0.5}, ("threshold", "unknown_parameter")),
]


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_invalid_input_is_refused(api: Api, body: dict[str, Any], expected: tuple[str, str]) -> None:
    assert error(api.post("/moderations", body)) == (400, *expected)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, None, "invalid_prompt")),
        (401, (500, None, "server_error")),
        (429, (429, None, "rate_limit_exceeded")),
        (500, (500, None, "server_error")),
        (503, (503, None, "server_is_overloaded")),
    ],
)
def test_upstream_errors_are_mapped(
    api: Api, script: Script, caller: Caller, status: int, expected: tuple[int, str | None, str]
) -> None:
    script.then(refusal(status, "No."))
    assert error(api.post("/moderations", {"input": "Hi"})) == expected
    assert (ledger(caller).outcome, ledger(caller).input_tokens) == ("failed", 0)


def test_an_upstream_without_the_endpoint_is_unsupported(api: Api, upstream: ScriptedUpstream, caller: Caller) -> None:
    answer = api.post("/moderations", {"model": "chats-only", "input": "Hi"})
    assert error(answer) == (400, "model", "unsupported_value")
    assert answer.json()["error"]["message"] == "The model 'chats-only' does not support moderations."
    assert ledger(caller).outcome == "failed"


def test_a_disconnect_ends_the_upstream_call(api: Api, script: Script, caller: Caller) -> None:
    script.then(Answer(pieces=[Gate()], content_type="application/json"))
    with api.open("/moderations", {"input": "12345"}):
        received = script.wait_for_call()
    assert received.was_closed()
    eventually(lambda: is_written(caller))
    assert (ledger(caller).outcome, ledger(caller).input_tokens) == ("interrupted", 2)


def test_the_default_model_must_be_allowed_for_the_key(make_api: MakeApi) -> None:
    answer = make_api(allowed_models=["other"]).post("/moderations", {"input": "Hi"})
    assert error(answer) == (400, "model", "model_not_found")
    assert "omni-moderation-latest" in answer.json()["error"]["message"]


def test_moderation_requires_its_scope(make_api: MakeApi, script: Script) -> None:
    refused = make_api(scopes=["embeddings.write"]).post("/moderations", {"input": "Hi"})
    assert error(refused) == (403, None, "insufficient_scope")
    script.then(whole(JUDGED))
    assert ok(make_api(scopes=["moderations.write"]).post("/moderations", {"input": "Hi"})) == JUDGED


def test_a_key_and_the_post_method_are_required(api: Api) -> None:
    answer = api.post("/moderations", {"input": "Hi"}, {"Authorization": "Bearer sk-wrong"})
    assert error(answer) == (401, None, "invalid_api_key")
    assert error(api.get("/moderations")) == (405, None, "method_not_supported")
