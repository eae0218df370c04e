"""Requests that are forwarded unchanged: the next target answers if one fails before the client has anything."""

from decimal import Decimal
from typing import Any

import httpx2
import orjson
import pytest

from tenants import scope
from tenants.models import Team
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, error, ok
from tests.support.limits import limit
from tests.support.targets import Targets, upstream_id
from tests.support.upstream import Answer, Cut, Gate, stream, whole
from tests.support.usage_records import usage_records
from tests.support.vector_stores import StoreClient

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
DOWN = whole({"error": {"message": "Down.", "type": "server_error"}}, status=503)
NO_SUCH_PATH = Answer(pieces=[b"404: Not Found"], status=404, content_type="text/plain", done=False)
INVALID = whole({"error": {"message": "Bad value.", "type": "invalid_request_error"}}, status=400)
ERROR_WITH_200 = whole({"error": {"message": "Down.", "type": "server_error"}})
CUT = Answer(pieces=[b'{"object": ', Cut()], content_type="application/json", done=False)
"""A document that breaks off."""

EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
    "model": "secret-name",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "secret-name",
    "choices": [{"text": "Hello", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
SPEECH = Answer(pieces=[b"ID3 Hello"], content_type="audio/mpeg", done=False)
ANSWERS = {
    "/embeddings": whole(EMBEDDED),
    "/moderations": whole({"id": "modr-1", "model": "secret-name", "results": []}),
    "/images/generations": whole({"created": 1, "data": [{"b64_json": "SGVsbG8="}]}),
    "/images/edits": whole({"created": 1, "data": [{"b64_json": "SGVsbG8="}]}),
    "/audio/transcriptions": whole({"text": "Hello"}),
    "/audio/translations": whole({"text": "Hello"}),
    "/audio/speech": SPEECH,
    "/completions": whole(COMPLETION),
}
endpoints = pytest.mark.parametrize("path", ANSWERS)
FORMS = ("/images/edits", "/audio/transcriptions", "/audio/translations")


@pytest.fixture
def targets(forwarding_targets: Targets) -> Targets:
    """A model of this test, to which it adds targets."""
    return forwarding_targets


def ask(api: Api, path: str, model: str) -> httpx2.Response:
    """Send a request to one of the endpoints."""
    if path in FORMS:
        name = "image" if path == "/images/edits" else "file"
        fields = {"model": model, **({"prompt": "A hat"} if name == "image" else {})}
        return api.request("POST", path, data=fields, files=[(name, ("a.bin", b"content", "audio/wav"))])
    given = {
        "/images/generations": {"prompt": "A hat"},
        "/completions": {"prompt": "Once"},
        "/audio/speech": {"input": "Hi", "voice": "alloy"},
    }
    return api.post(path, {"model": model, **given.get(path, {"input": "Hi"})})


@endpoints
@pytest.mark.parametrize(
    "failure", [WRONG_KEY, NO_SUCH_PATH, ERROR_WITH_200], ids=["401", "no such path", "error with 200"]
)
def test_a_target_that_fails_is_replaced(api: Api, targets: Targets, path: str, failure: Answer) -> None:
    first, second = targets.two()
    first.then(failure)
    second.then(ANSWERS[path])
    answer = ask(api, path, targets.name)
    assert answer.status_code == 200, answer.text
    assert "secret-name" not in answer.text
    (received,), (repeated,) = first.received, second.received
    assert repeated.files == received.files
    assert bool(repeated.files) is (path in FORMS)
    assert {**repeated.body, "model": first.model} == received.body
    assert repeated.body["model"] == second.model


@pytest.mark.slow
@endpoints
def test_a_target_that_is_down_is_asked_twice(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(DOWN, DOWN)
    second.then(ANSWERS[path])
    assert ask(api, path, targets.name).status_code == 200


@pytest.mark.slow
def test_a_target_that_cannot_be_reached_is_replaced(api: Api, targets: Targets) -> None:
    targets.unreachable()
    targets.add().then(ANSWERS["/embeddings"])
    assert ok(ask(api, "/embeddings", targets.name))["model"] == targets.name


@endpoints
def test_a_document_that_breaks_off_is_replaced(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(CUT)
    second.then(ANSWERS[path])
    answer = ask(api, path, targets.name)
    assert answer.status_code == 200, answer.text
    assert b'{"object": {' not in answer.content


@endpoints
def test_the_clients_own_error_is_not_repeated(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(INVALID)
    answer = ask(api, path, targets.name)
    assert (answer.status_code, "Bad value." in answer.text) == (400, True)
    assert second.received == []


@endpoints
def test_the_last_error_is_returned_if_all_targets_fail(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(WRONG_KEY)
    second.then(NO_SUCH_PATH)
    answer = ask(api, path, targets.name)
    status, param, code = error(answer)
    assert (status, param, code) == (400, "model", "unsupported_value")
    assert f"The model '{targets.name}' does not support" in answer.text
    assert [row.outcome for row in usage_records(api.caller, 2)] == ["failed", "failed"]


@pytest.mark.slow
def test_a_target_that_does_not_begin_to_answer_is_replaced(short_timeout_api: Api, targets: Targets) -> None:
    gate = Gate()
    targets.add().then(Answer(pieces=[gate], content_type="application/json", done=False, delayed_head=True))
    targets.add().then(ANSWERS["/embeddings"])
    assert ask(short_timeout_api, "/embeddings", targets.name).status_code == 200
    gate.open()
    # Of the first target, nothing is known.
    assert [row.outcome for row in usage_records(short_timeout_api.caller, 2)] == ["failed", "stop"]


@endpoints
def test_each_request_is_recorded_with_its_own_target(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(WRONG_KEY)
    second.then(ANSWERS[path])
    assert ask(api, path, targets.name).status_code == 200
    failed, answered = usage_records(api.caller, 2)
    assert [row.upstream_id for row in (failed, answered)] == [upstream_id(first), upstream_id(second)]
    assert [row.outcome for row in (failed, answered)] == ["failed", "stop"]


def test_the_cost_is_that_of_the_target_that_answered(api: Api, targets: Targets) -> None:
    targets.add(prices=PriceList.simple(input="100")).then(CUT)
    targets.add(prices=PriceList.simple(input="1")).then(ANSWERS["/embeddings"])
    ok(ask(api, "/embeddings", targets.name))
    failed, answered = usage_records(api.caller, 2)
    # The upstream may charge for the answer that broke off.
    assert (failed.estimated, failed.cost) == (True, Decimal(failed.input_tokens) / 10_000)
    assert (answered.estimated, answered.cost) == (False, Decimal("0.000005"))


PER_CALL = PriceList(
    [
        PriceEntry(dimension="input", amount=Decimal(1)),
        PriceEntry(dimension="call", amount=Decimal(1), per=1),
    ]
)
"""A call costs a dollar."""


@pytest.mark.parametrize(("budget", "has_room"), [("1.5", False), ("3", True)])
def test_a_request_that_may_be_charged_is_only_repeated_if_the_hard_budget_has_room(
    api: Api, targets: Targets, budget: str, has_room: bool
) -> None:
    limit(api.caller, budget=budget)
    first, second = targets.two(prices=PER_CALL)
    first.then(CUT)
    if has_room:
        second.then(ANSWERS["/embeddings"])
    assert ask(api, "/embeddings", targets.name).status_code == (200 if has_room else 500)
    assert len(second.received) == int(has_room)
    assert len(usage_records(api.caller, 1 + has_room)) == 1 + has_room


def test_a_request_that_is_not_charged_is_repeated_under_a_hard_budget(api: Api, targets: Targets) -> None:
    limit(api.caller, budget="1.5")
    first, second = targets.two(prices=PER_CALL)
    first.then(WRONG_KEY)
    second.then(ANSWERS["/embeddings"])
    ok(ask(api, "/embeddings", targets.name))


def test_a_hard_budget_reserves_the_most_expensive_target(api: Api, targets: Targets) -> None:
    limit(api.caller, budget="0.01")
    targets.add(prices=PriceList.simple(input="1"))
    targets.add(prices=PriceList.simple(input="100000"))
    assert ask(api, "/embeddings", targets.name).status_code in {400, 429}
    assert targets.scripts[0].received == []


def chunk(text: str, **fields: Any) -> dict[str, Any]:
    """Return a chunk of a streamed completion."""
    choice = {**COMPLETION["choices"][0], "text": text, "finish_reason": None}
    return {**COMPLETION, "choices": [choice], "usage": None, **fields}


def streamed(api: Api, model: str) -> httpx2.Response:
    return api.post("/completions", {"model": model, "prompt": "Once", "stream": True})


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [orjson.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    "failure",
    [
        WRONG_KEY,
        stream({"error": {"message": "Down.", "code": 503}}),
        Answer(pieces=[b": waiting\n\n", Cut()]),
    ],
    ids=["401", "event", "cut"],
)
def test_a_stream_that_has_not_begun_is_answered_by_the_next_target(
    api: Api, targets: Targets, failure: Answer
) -> None:
    first, second = targets.two()
    first.then(failure)
    second.then(stream(chunk("Hello"), chunk("", choices=[], usage=COMPLETION["usage"])))
    answer = streamed(api, targets.name)
    assert answer.status_code == 200
    assert [(event["model"], event["choices"][0]["text"]) for event in events(answer)] == [(targets.name, "Hello")]
    assert answer.text.endswith("data: [DONE]\n\n")
    failed, answered = usage_records(api.caller, 2)
    assert (answered.input_tokens, answered.output_tokens, answered.upstream_id) == (3, 2, upstream_id(second))
    assert failed.upstream_id == upstream_id(first)


def test_a_stream_that_has_begun_is_not_repeated(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(stream(chunk("Hel"), Cut()))
    answer = streamed(api, targets.name)
    assert [next(iter(event)) for event in events(answer)] == ["id", "error"]
    assert second.received == []


def test_input_tokens_are_counted_by_the_next_target(api: Api, targets: Targets) -> None:
    first, second = targets.two(token_counting="tokenize")
    first.then(WRONG_KEY)
    second.then(whole({"count": 1234}))
    counted = ok(api.post("/responses/input_tokens", {"model": targets.name, "input": "Hi"}))
    assert counted["input_tokens"] == 1234
    assert [script.bodies[0]["model"] for script in (first, second)] == [first.model, second.model]


def test_input_tokens_are_not_counted_by_a_fallback_model(api: Api, targets: Targets) -> None:
    targets.add(token_counting="tokenize").then(WRONG_KEY)
    fallback = targets.add(name=f"{targets.name}-small", fallback_for=targets.name, token_counting="tokenize")
    counted = ok(api.post("/responses/input_tokens", {"model": targets.name, "input": "Hi"}))
    assert counted["input_tokens"] < 100
    assert fallback.received == []


def test_the_answer_names_the_fallback_model(api: Api, targets: Targets) -> None:
    targets.add().then(WRONG_KEY)
    name = f"{targets.name}-small"
    targets.add(name=name, fallback_for=targets.name).then(ANSWERS["/embeddings"])
    assert ok(ask(api, "/embeddings", targets.name))["model"] == name


@pytest.mark.slow
def test_a_vector_store_uses_the_next_target_but_no_fallback_model(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    fallback = targets.add(name=f"{targets.name}-small", fallback_for=targets.name)
    with scope.team(api.caller.team.pk):
        Team.objects.filter(pk=api.caller.team.pk).update(embedding_model=targets.name)
    store = StoreClient(api, ok(api.post("/vector_stores", {"name": "Library"}))["id"])
    first.always(WRONG_KEY)
    second.then(ANSWERS["/embeddings"]).always(WRONG_KEY)
    assert store.entry(store.add("a.txt", "Hello"))["status"] == "completed"
    assert api.post(f"{store.path}/search", {"query": "Hello"}).status_code >= 400
    assert fallback.received == []


def test_requests_are_shared_by_targets_of_one_priority(api: Api, targets: Targets) -> None:
    first, second = targets.two(priority=0)
    for script in (first, second):
        script.always(ANSWERS["/embeddings"])
    for _ in range(24):
        ok(ask(api, "/embeddings", targets.name))
    assert len(first.received) > 0
    assert len(second.received) > 0
