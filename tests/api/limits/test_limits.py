"""Rate limits, budgets and concurrency limits of keys, teams and end users, for each way to create a response."""

import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tenants import scope
from tenants.models import Reservation, UsageRecord
from tenants.prices import PriceList
from tests.support.api import Api, MakeApi, error, ok
from tests.support.chunks import calls, chunk, text, usage
from tests.support.limits import limit
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

DURATION = re.compile(r"(\d+h)?(\d+m)?[\d.]+(ms|s)")


def reservations(api: Api) -> list[Reservation]:
    with scope.team(api.caller.team.pk):
        return list(Reservation.objects.filter(team=api.caller.team))


def create(api: Api, script: Script, **body: Any) -> httpx2.Response:
    return api.post("/responses", {"model": script.model, "input": "Hi", **body})


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["key", "team"])
def test_requests_per_minute_are_limited(api: Api, script: Script, of: str) -> None:
    limit(api.caller, of=of, requests_per_minute=2)
    script.say("One").say("Two")
    answers = [create(api, script) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert all(answer.headers["x-ratelimit-limit-requests"] == "2" for answer in answers)
    assert all(DURATION.fullmatch(answer.headers["x-ratelimit-reset-requests"]) for answer in answers)
    refused = answers[2]
    assert error(refused) == (429, None, "rate_limit_exceeded")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    whose = "your API key" if of == "key" else "your team"
    assert f"requests per minute of {whose}: limit 2, used 2" in refused.json()["error"]["message"]
    assert 25 < float(refused.headers["retry-after-ms"]) / 1000 <= 30
    assert int(refused.headers["retry-after"]) in range(26, 31)
    assert "x-should-retry" not in refused.headers


def test_another_team_and_another_key_are_not_affected(api: Api, make_api: MakeApi, script: Script) -> None:
    limit(api.caller, requests_per_minute=1)
    script.say("One").say("Two").say("Three")
    ok(create(api, script))
    assert create(api, script).status_code == 429
    ok(create(make_api(team=api.caller.team), script))
    other = create(make_api(), script)
    assert ok(other)
    assert not [name for name in other.headers if name.startswith("x-ratelimit")]


def test_a_request_without_limits_has_no_reservation(api: Api, script: Script) -> None:
    script.say("Hello")
    ok(create(api, script))
    assert reservations(api) == []


def test_the_first_request_of_a_window_is_never_refused_by_an_estimate(api: Api, script: Script) -> None:
    limit(api.caller, tokens_per_minute=100)
    script.say("Hello")
    ok(create(api, script, input="word " * 60))
    # 10 tokens of the window were used.
    answer = create(api, script, input="word " * 60)
    assert error(answer) == (429, None, "rate_limit_exceeded")


def test_unused_tokens_are_released(api: Api, script: Script) -> None:
    limit(api.caller, tokens_per_minute=1000)
    script.say("One").say("Two")
    ok(create(api, script, max_output_tokens=900))
    second = create(api, script, max_output_tokens=900)
    assert ok(second)
    eventually(lambda: int(api.get("/models").headers["x-ratelimit-remaining-tokens"]) >= 980)


def test_a_request_larger_than_the_limit_gets_its_own_error(api: Api, script: Script) -> None:
    limit(api.caller, tokens_per_minute=100)
    refused = create(api, script, max_output_tokens=101)
    assert error(refused) == (429, None, "request_too_large_for_limit")
    assert refused.headers["x-should-retry"] == "false"
    assert "limit 100, requested 10" in refused.json()["error"]["message"]


def test_an_end_user_has_its_own_limits(api: Api, script: Script) -> None:
    limit(api.caller, end_user="*", requests_per_minute=1)
    limit(api.caller, end_user="vip", requests_per_minute=2)
    script.always(stream(*text("Hello")))
    for end_user, expected in (("a", [200, 429]), ("b", [200, 429]), ("vip", [200, 200, 429])):
        statuses = [create(api, script, safety_identifier=end_user).status_code for _ in expected]
        assert statuses == expected
    assert "end user 'a'" in create(api, script, user="a").json()["error"]["message"]
    ok(create(api, script))


# -- maximums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "sent"), [(None, 50), (20, 20), (80, 50)])
def test_max_output_tokens_is_the_lower_of_request_and_limit(
    api: Api, script: Script, given: int | None, sent: int
) -> None:
    limit(api.caller, max_output_tokens=50)
    script.say("Hello")
    response = ok(create(api, script, max_output_tokens=given))
    assert script.bodies[0]["max_tokens"] == response["max_output_tokens"] == sent


def test_max_tool_calls_is_the_lower_of_request_and_limit(api: Api, script: Script) -> None:
    limit(api.caller, max_tool_calls=2)
    script.say("Hello").say("Hello")
    assert ok(create(api, script))["max_tool_calls"] == 2
    assert ok(create(api, script, max_tool_calls=1))["max_tool_calls"] == 1


# -- concurrency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [False, True])
def test_concurrent_runs_are_limited(api: Api, script: Script, is_streamed: bool) -> None:
    limit(api.caller, concurrent_runs=1)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage())).say("Hello")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(create, api, script, stream=is_streamed)
        gate.wait_until_reached()
        refused = create(api, script)
        assert error(refused) == (429, None, "rate_limit_exceeded")
        assert "concurrent runs of your API key: limit 1, in use 1" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        [held] = reservations(api)
        assert (held.is_run, held.response_id[:5]) == (True, "resp_")
        gate.open()
        assert first.result().status_code == 200
    # The slot is free once the client knows that the run has ended.
    ok(create(api, script))
    eventually(lambda: reservations(api) == [])


def test_a_failed_request_releases_its_slot(api: Api, script: Script) -> None:
    limit(api.caller, concurrent_runs=1)
    assert create(api, script, max_output_tokens=1).status_code == 400
    assert create(api, script, previous_response_id="resp_x").status_code == 400
    script.say("Hello")
    ok(create(api, script))


def test_open_streams_are_limited(api: Api, script: Script) -> None:
    limit(api.caller, open_streams=1)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage())).say("Hello").say("Hello")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(create, api, script, stream=True)
        gate.wait_until_reached()
        assert "open streams" in create(api, script, stream=True).json()["error"]["message"]
        ok(create(api, script))
        gate.open()
        assert first.result().status_code == 200
    assert create(api, script, stream=True).status_code == 200


# -- budgets -----------------------------------------------------------------------------------------------------------


def priced(script: Script, *, output: str = "1") -> Script:
    """Set the prices of the model; a million input tokens cost a dollar."""
    return describe(script, prices=PriceList.simple(input="1", output=output))


@pytest.mark.slow
def test_a_hard_budget_is_never_exceeded(api: Api, script: Script) -> None:
    # A dollar per million tokens: each call costs 10 tokens, 0.00001 dollars.
    limit(api.caller, budget="0.001")
    priced(script).always(stream(*text("Hello")))
    statuses = [create(api, script, max_output_tokens=16).status_code for _ in range(100)]
    assert 429 in statuses
    assert statuses == sorted(statuses)
    with scope.team(api.caller.team.pk):
        spent = sum(record.cost or 0 for record in UsageRecord.objects.filter(team=api.caller.team))
    assert spent <= Decimal("0.001")
    refused = create(api, script, max_output_tokens=16)
    assert error(refused) == (429, None, "insufficient_quota")
    assert refused.json()["error"]["type"] == "insufficient_quota"
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


def test_requests_in_progress_reserve_the_budget(api: Api, script: Script) -> None:
    limit(api.caller, budget="0.0015")
    gate = Gate()
    priced(script).then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage())).say("Hello")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(create, api, script, max_output_tokens=1000)
        gate.wait_until_reached()
        refused = create(api, script, max_output_tokens=1000)
        assert (refused.status_code, len(script.bodies)) == (429, 1)
        assert "is reserved by requests in progress" in refused.json()["error"]["message"]
        gate.open()
        assert first.result().status_code == 200
    ok(create(api, script, max_output_tokens=1000))


def test_an_unset_output_limit_is_derived_from_the_budget(api: Api, script: Script) -> None:
    limit(api.caller, budget="0.001")
    priced(script).then(
        stream(chunk(content="Hel"), chunk(finish="length"), usage(prompt_tokens=7, completion_tokens=3))
    )
    response = ok(create(api, script))
    assert response["max_output_tokens"] is None
    assert 16 <= script.bodies[0]["max_tokens"] < 1000
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_model_without_a_price_is_refused(api: Api, script: Script) -> None:
    limit(api.caller, budget="1")
    refused = create(api, script)
    assert error(refused)[::2] == (400, "price_unknown")


@pytest.mark.parametrize("way", ["json", "stream"])
def test_a_budget_used_up_between_two_turns_fails_the_run(api: Api, script: Script, way: str) -> None:
    limit(api.caller, budget="0.001")
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    priced(script).then(stream(*calls(nothing="{}")[:-1], usage(prompt_tokens=400, completion_tokens=590)))
    answer = create(api, script, stream=way == "stream", tools=[look], max_output_tokens=600)
    if way == "json":
        assert error(answer) == (429, None, "insufficient_quota")
        assert answer.headers["x-should-retry"] == "false"
    [stored] = ok(api.get("/responses"))["data"]
    assert (stored["status"], stored["error"]["code"]) == ("failed", "insufficient_quota")
    eventually(lambda: reservations(api) == [])
