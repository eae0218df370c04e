"""Limits of background responses: they wait in the queue for capacity instead of failing."""

from typing import Any

import pytest

from responses.models import Response
from tenants import scope
from tenants.models import Reservation
from tenants.prices import PriceList
from tests.support.api import Api, error, ok
from tests.support.background import ended
from tests.support.chunks import chunk, text, usage
from tests.support.limits import limit
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess


def queue(api: Api, script: Script, **body: Any) -> str:
    """Create a background response and return its id."""
    return str(ok(api.post("/responses", {"model": script.model, "input": "Hi", "background": True, **body}))["id"])


def reservations(api: Api) -> list[Reservation]:
    with scope.team(api.caller.team.pk):
        return list(Reservation.objects.filter(team=api.caller.team))


def test_queued_runs(api: Api, script: Script, no_worker: None) -> None:
    limit(api.caller, queued_runs=1)
    first = queue(api, script)
    refused = api.post("/responses", {"model": script.model, "input": "Hi", "background": True})
    assert error(refused) == (429, None, "rate_limit_exceeded")
    assert "queued runs of your API key: limit 1, in use 1" in refused.json()["error"]["message"]
    [row] = reservations(api)
    assert (row.id, row.is_queued, row.is_run) == (first, True, False)
    assert ok(api.post(f"/responses/{first}/cancel", {}))["status"] == "cancelled"
    # A cancelled response leaves the queue.
    queue(api, script)


@pytest.mark.slow
def test_runs_wait_for_each_other(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, concurrent_runs=1, queued_runs=5)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage())).say("Hello").say("Hello")
    first = queue(api, script)
    gate.wait_until_reached()
    others = [queue(api, script), queue(api, script)]

    def waits() -> bool:
        with scope.team(api.caller.team.pk):
            return not Response.objects.filter(pk__in=others, not_before=None).exists()

    eventually(waits)
    assert [ok(api.get(f"/responses/{one}"))["status"] for one in others] == ["queued", "queued"]
    gate.open()
    assert [ended(api, one)["status"] for one in (first, *others)] == ["completed"] * 3
    assert len(script.received) == 3
    eventually(lambda: reservations(api) == [])


@pytest.mark.slow
def test_a_run_waits_for_the_budget(api: Api, script: Script, worker: WorkerProcess) -> None:
    found = limit(api.caller, budget="0.0000001")
    describe(script, prices=PriceList.simple(input="1", output="1")).say("Hello")
    waiting = queue(api, script)

    def row() -> Response:
        with scope.team(api.caller.team.pk):
            return Response.objects.get(pk=waiting)

    eventually(lambda: row().not_before)
    assert (row().status, row().attempt) == ("queued", 0)
    with scope.team(api.caller.team.pk):
        found.budgets.update(amount=1)
        Response.objects.filter(pk=waiting).update(not_before=None)
    assert ended(api, waiting)["status"] == "completed"


@pytest.mark.slow
def test_a_run_that_can_never_fit_fails(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, tokens_per_minute=20)
    response = ended(api, queue(api, script, max_output_tokens=21))
    assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")
    assert "too large" in response["error"]["message"]


@pytest.mark.slow
def test_the_usage_of_a_background_run_is_settled(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, tokens_per_minute=10_000, budget="1")
    describe(script, prices=PriceList.simple(input="1", output="1")).then(stream(*text("Hello")))
    first = ended(api, queue(api, script))
    assert first["status"] == "completed"
    spent = (first["usage"]["input_tokens"] + first["usage"]["output_tokens"]) / 1_000_000
    eventually(lambda: [budget["spent"] for budget in ok(api.get("/me"))["budgets"]] == [pytest.approx(spent)])
    eventually(lambda: int(api.get("/models").headers["x-ratelimit-remaining-tokens"]) >= 9_980)
    eventually(lambda: reservations(api) == [])
