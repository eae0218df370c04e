"""Limits of background responses: they wait in the queue for capacity instead of failing."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.db.models import QuerySet

from core.clock import now
from core.periods import bounds
from limits.guard import rebuild_sync
from limits.services import set_budget, set_limits
from responses.models import Response
from server.tasks import wake_blocked_runs
from tenants import scope
from tenants.models import ApiKey, LimitSet, Reservation, UsageRecord
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


def test_queued_runs_are_limited(api: Api, script: Script, no_worker: None) -> None:
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
def test_queued_runs_wait_for_running_ones(api: Api, script: Script, worker: WorkerProcess) -> None:
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


def blocked_row(api: Api, response_id: str) -> Response:
    """Return the row of a response once a limit blocks it."""

    rows = Response.objects.filter(pk=response_id)
    eventually(partial(exists, api, rows.exclude(not_before=None)))
    with scope.team(api.caller.team.pk):
        return rows.get()


def exists(api: Api, rows: QuerySet[Response]) -> bool:
    with scope.team(api.caller.team.pk):
        return rows.exists()


def wakes(api: Api, response_id: str) -> bool:
    """Return whether the periodic task lets workers claim a response."""
    wake_blocked_runs()
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id).not_before is None


@pytest.mark.slow
def test_a_run_without_budget_is_not_claimed_before_the_end_of_the_period(
    api: Api, script: Script, worker: WorkerProcess
) -> None:
    limit(api.caller, budget="0.0000001", period="month")
    describe(script, prices=PriceList.simple(input="1", output="1"))
    waiting = queue(api, script)
    row = blocked_row(api, waiting)
    assert (row.status, row.attempt) == ("queued", 0)
    _, until = bounds("month", now(), "UTC")
    assert row.not_before is not None
    assert abs(row.not_before - until) < timedelta(seconds=10)
    for _ in range(3):
        assert not wakes(api, waiting)
    # Meanwhile, another run was claimed and refused, but not this one.
    blocked_row(api, queue(api, script))
    assert blocked_row(api, waiting).lease_token == row.lease_token


def raise_budget(api: Api, found: LimitSet) -> None:
    set_budget(team=api.caller.team, api_key=api.caller.key, period="month", amount=Decimal(1))


def remove_budget(api: Api, found: LimitSet) -> None:
    set_budget(team=api.caller.team, api_key=api.caller.key, period="month", amount=None)


def delete_limits(api: Api, found: LimitSet) -> None:
    with scope.team(api.caller.team.pk):
        found.delete()


def correct_usage(api: Api, found: LimitSet) -> None:
    with scope.team(api.caller.team.pk):
        UsageRecord.objects.filter(team=api.caller.team).update(cost=0)
    rebuild_sync(api.caller.team.pk)


def revoke_key(api: Api, found: LimitSet) -> None:
    with scope.team(api.caller.team.pk):
        ApiKey.objects.filter(pk=api.caller.key.pk).update(revoked_at=now())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status"),
    [
        (raise_budget, "completed"),
        (remove_budget, "completed"),
        (delete_limits, "completed"),
        (correct_usage, "completed"),
        (revoke_key, "failed"),
    ],
)
def test_a_run_without_budget_continues_after_a_change(
    api: Api, script: Script, worker: WorkerProcess, change: Callable[[Api, LimitSet], None], status: str
) -> None:
    found = limit(api.caller, budget="0.02", period="month")
    # A call may cost 1.6 cents at most, and the first one costs 1 cent.
    describe(script, prices=PriceList.simple(input="0", output="1000"))
    spent = usage(prompt_tokens=1, completion_tokens=10, total_tokens=11)
    script.then(stream(chunk(content="Hello"), chunk(finish="stop"), spent))
    if status == "completed":
        script.say("Hello")
    ok(api.post("/responses", {"model": script.model, "input": "Hi", "max_output_tokens": 16}))
    waiting = queue(api, script, max_output_tokens=16)
    token = blocked_row(api, waiting).lease_token
    assert not wakes(api, waiting)
    change(api, found)
    # A worker with a one second old cache may refuse it once more.
    rows = Response.objects.filter(pk=waiting)
    eventually(lambda: wakes(api, waiting) and exists(api, rows.exclude(ended_at=None)))
    with scope.team(api.caller.team.pk):
        row = rows.get()
    assert row.status == status
    assert row.lease_token <= token + 3


@pytest.mark.slow
def test_a_run_waiting_for_the_next_day_continues_after_its_limit_was_raised(
    api: Api, script: Script, worker: WorkerProcess
) -> None:
    limit(api.caller, requests_per_day=1)
    script.say("Hello").say("Hello")
    assert ended(api, queue(api, script))["status"] == "completed"
    waiting = queue(api, script)
    row = blocked_row(api, waiting)
    assert row.not_before is not None
    assert row.not_before > now() + timedelta(hours=1)
    assert not wakes(api, waiting)
    set_limits(team=api.caller.team, api_key=api.caller.key, values={"requests_per_day": 1000})
    done = Response.objects.filter(pk=waiting, status="completed")
    eventually(lambda: wakes(api, waiting) and exists(api, done))


@pytest.mark.slow
def test_only_the_runs_covered_by_the_budget_continue(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, budget="0.0000001", period="month")
    describe(script, prices=PriceList.simple(input="0", output="1000"))
    script.always(stream(*text("Hello")))
    waiting = [queue(api, script, max_output_tokens=16) for _ in range(4)]
    rows = [blocked_row(api, response_id) for response_id in waiting]
    assert rows[0].needs_budget == Decimal("0.016")
    with worker.suspended():
        set_budget(team=api.caller.team, api_key=api.caller.key, period="month", amount=Decimal("0.04"))
        eventually(lambda: wakes(api, waiting[0]))
        with scope.team(api.caller.team.pk):
            left = Response.objects.filter(pk__in=waiting, not_before__gt=now()).order_by("created_at")
            assert [row.pk for row in left] == waiting[2:]


@pytest.mark.slow
def test_a_run_larger_than_the_limit_fails(api: Api, script: Script, worker: WorkerProcess) -> None:
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
