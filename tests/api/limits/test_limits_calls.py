"""Limits of forwarded calls: chat completions, embeddings, images, audio and others."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tenants import scope
from tenants.models import Reservation, UsageRecord
from tenants.prices import PriceList
from tests.support.api import Api, MakeApi, error, ok
from tests.support.chunks import chunk, text, usage
from tests.support.limits import limit
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.waiting import eventually


def chat(api: Api, script: Script, **body: Any) -> httpx2.Response:
    messages = [{"role": "user", "content": "Hi"}]
    return api.post("/chat/completions", {"model": script.model, "messages": messages, **body})


def rows(api: Api) -> list[Reservation]:
    with scope.team(api.caller.team.pk):
        return list(Reservation.objects.filter(team=api.caller.team))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_requests_per_minute_apply_to_chat_completions(
    api: Api, make_api: MakeApi, script: Script, is_streamed: bool
) -> None:
    limit(api.caller, requests_per_minute=1)
    script.always(stream(*text("Hello")))
    first = chat(api, script, stream=is_streamed)
    assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    refused = chat(api, script, stream=is_streamed)
    assert error(refused) == (429, None, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-limit-requests"] == "1"
    assert chat(make_api(), script).status_code == 200


@pytest.mark.slow
def test_concurrent_chat_completions_are_limited(api: Api, script: Script) -> None:
    limit(api.caller, concurrent_runs=1)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage())).say("Hello")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(chat, api, script, stream=True)
        gate.wait_until_reached()
        assert "concurrent runs" in chat(api, script).json()["error"]["message"]
        # The other row records the call if its process dies.
        [held] = [row for row in rows(api) if row.is_run]
        assert (held.is_run, held.response_id, held.lease_until is not None) == (True, "", True)
        gate.open()
        assert first.result().status_code == 200
    ok(chat(api, script))
    eventually(lambda: rows(api) == [])


@pytest.mark.slow
def test_the_budget_applies_to_chat_completions(api: Api, script: Script) -> None:
    limit(api.caller, budget="0.0005")
    describe(script, prices=PriceList.simple(input="1", output="1")).always(stream(*text("Hello")))
    statuses = [chat(api, script, max_completion_tokens=10).status_code for _ in range(60)]
    assert statuses == sorted(statuses)
    assert 429 in statuses
    with scope.team(api.caller.team.pk):
        spent = sum(record.cost or 0 for record in UsageRecord.objects.filter(team=api.caller.team))
    assert Decimal("0.0003") < spent <= Decimal("0.0005")
    assert error(chat(api, script, max_completion_tokens=10)) == (429, None, "insufficient_quota")


@pytest.mark.parametrize(("given", "sent"), [({}, 20), ({"max_tokens": 50}, 20), ({"max_completion_tokens": 9}, 9)])
def test_chat_completions_are_limited_to_the_maximum_output(
    api: Api, script: Script, given: dict[str, int], sent: int
) -> None:
    limit(api.caller, max_output_tokens=20)
    script.say("Hello")
    assert chat(api, script, **given).status_code == 200
    assert script.bodies[0]["max_tokens"] == sent
    assert "max_completion_tokens" not in script.bodies[0]


def test_a_failed_call_releases_its_reservations(api: Api, script: Script) -> None:
    limit(api.caller, concurrent_runs=1, budget="1")
    describe(script, prices=PriceList.simple(input="1", output="1"))
    script.then(refusal(400)).say("Hello")
    assert chat(api, script).status_code == 400
    assert chat(api, script).status_code == 200
    eventually(lambda: rows(api) == [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embeddings", {"input": "Hi"}),
        ("/moderations", {"input": "Hi"}),
        ("/images/generations", {"prompt": "A cat"}),
        ("/audio/speech", {"input": "Hi", "voice": "alloy"}),
        ("/completions", {"prompt": "Hi"}),
        ("/responses/compact", {"input": "Hi"}),
        ("/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_every_endpoint_that_calls_a_model_counts_as_a_request(
    api: Api, script: Script, path: str, body: dict[str, Any]
) -> None:
    limit(api.caller, requests_per_minute=1)
    script.always(refusal(400))
    first = api.post(path, {"model": script.model, **body})
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    refused = api.post(path, {"model": script.model, **body})
    assert (refused.status_code, refused.headers["x-ratelimit-remaining-requests"]) == (429, "0")
    assert int(refused.headers["retry-after"]) in range(50, 61)


def test_an_invalid_request_reserves_nothing(api: Api, script: Script) -> None:
    limit(api.caller, requests_per_minute=1)
    for path in ("/embeddings", "/chat/completions", "/responses"):
        invalid = api.post(path, {"model": script.model})
        assert (invalid.status_code, invalid.headers["x-ratelimit-remaining-requests"]) == (400, "1")
    assert api.get("/responses").headers["x-ratelimit-remaining-requests"] == "1"
    assert api.get("/responses/resp_x").headers["x-ratelimit-remaining-requests"] == "1"


def test_creating_objects_counts_as_a_request_but_reading_does_not(api: Api) -> None:
    limit(api.caller, requests_per_minute=1)
    conversation = ok(api.post("/conversations", {}))
    assert api.get(f"/conversations/{conversation['id']}").headers["x-ratelimit-remaining-requests"] == "0"
    assert error(api.post("/conversations", {})) == (429, None, "rate_limit_exceeded")
    ok(api.delete(f"/conversations/{conversation['id']}"))
