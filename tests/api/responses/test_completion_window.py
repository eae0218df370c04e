"""`background_options.completion_window` of `POST /v1/responses`: the run may wait for a cheaper time."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from core.clock import now
from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, MakeApi, error, ok
from tests.support.background import ended, text_of
from tests.support.limits import limit
from tests.support.model_capabilities import describe
from tests.support.streams import types
from tests.support.targets import Targets
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.workers import MakeWorker

LONG = {"background": True, "background_options": {"completion_window": "8h"}}


def cheaper_soon(*, minutes: int = 30) -> PriceList:
    """Return prices that are lower from some minutes later, for an hour."""
    first = now() + timedelta(minutes=minutes)
    hours = f"{first:%H:%M}-{first + timedelta(hours=1):%H:%M}"
    usual = PriceList.simple(input="4", output="8").entries
    lower = (PriceEntry(dimension=entry.dimension, amount=Decimal(1), hours=hours) for entry in usual)
    return PriceList([*usual, *lower])


@pytest.fixture
def cheaper_later(script: Script) -> Script:
    """A script whose model is cheaper in half an hour."""
    return describe(script, prices=cheaper_soon())


def wait(api: Api, script: Script, **body: Any) -> str:
    """Create a response that waits for the cheaper time, and return its id."""
    made = api.create(model=script.model, input="Hi", **LONG, **body)
    assert made["status"] == "queued"
    return str(made["id"])


def row(api: Api, response_id: str) -> Response:
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def bring_forward(api: Api, *response_ids: str) -> None:
    """Let the time come for which responses wait."""
    with scope.team(api.caller.team.pk):
        Response.objects.filter(pk__in=response_ids).update(not_before=now())


def test_a_run_waits_for_the_cheaper_time_without_a_worker(api: Api, cheaper_later: Script) -> None:
    response_id = wait(api, cheaper_later)
    stored = row(api, response_id)
    assert stored.not_before is not None
    assert timedelta(minutes=29) < stored.not_before - stored.created_at < timedelta(minutes=31)
    assert (stored.lease_until, stored.attempt, stored.planned_start) == (None, 0, stored.not_before)
    polled = api.get(f"/responses/{response_id}")
    assert polled.json()["status"] == "queued"
    assert polled.headers["openai-poll-after-ms"] == "60000"


@pytest.mark.slow
def test_a_waiting_run_survives_restarts_and_starts_at_its_time(
    api: Api, cheaper_later: Script, make_worker: MakeWorker
) -> None:
    cheaper_later.say("Hello").say("Now")
    response_id = wait(api, cheaper_later)
    make_worker().stop()
    make_worker()
    # A run that does not wait is executed first, although it was created later.
    other = api.create(model=cheaper_later.model, input="Hi", background=True)["id"]
    assert ended(api, other)["status"] == "completed"
    assert (row(api, response_id).lease_token, len(cheaper_later.received)) == (1, 1)
    with api.follow(response_id) as live:
        assert live.next()["type"] == "response.created"
        assert live.next()["type"] == "response.queued"
        bring_forward(api, response_id)
        assert types(live.rest())[-1] == "response.completed"
    assert text_of(api.retrieve(response_id)) == ["Now"]
    with scope.team(api.caller.team.pk):
        (record,) = UsageRecord.objects.filter(object_id=response_id)
    # At the time of the call, the usual prices applied.
    assert {price["amount"] for price in record.prices or ()} == {"4", "8"}


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("window", ["2h", "8h"])
def test_a_run_starts_at_once_if_no_time_is_cheaper(api: Api, script: Script, window: str) -> None:
    describe(script.say("Hello"), prices=PriceList.simple(input="4", output="8"))
    options = {"completion_window": window}
    made = api.create(model=script.model, input="Hi", background=True, background_options=options)
    assert text_of(ended(api, made["id"])) == ["Hello"]


def test_a_time_beyond_the_window_does_not_count(api: Api, script: Script) -> None:
    describe(script, prices=cheaper_soon(minutes=119))
    options = {"completion_window": "2h"}
    made = api.create(model=script.model, input="Hi", background=True, background_options=options)
    assert row(api, made["id"]).not_before is None


def test_a_waiting_run_can_be_cancelled_by_its_team_only(api: Api, cheaper_later: Script, make_api: MakeApi) -> None:
    response_id, stranger = wait(api, cheaper_later), make_api()
    assert stranger.post(f"/responses/{response_id}/cancel", b"").status_code == 404
    assert stranger.get(f"/responses/{response_id}").status_code == 404
    assert api.retrieve(response_id)["status"] == "queued"
    assert ok(api.post(f"/responses/{response_id}/cancel", b""))["status"] == "cancelled"
    with api.follow(response_id) as live:
        assert types(live.rest()) == ["response.created", "response.queued"]
    assert cheaper_later.received == []


def test_a_waiting_run_can_be_deleted(api: Api, cheaper_later: Script, make_api: MakeApi) -> None:
    response_id = wait(api, cheaper_later)
    assert make_api().delete(f"/responses/{response_id}").status_code == 404
    ok(api.delete(f"/responses/{response_id}"))
    assert api.get(f"/responses/{response_id}").status_code == 404
    assert cheaper_later.received == []


@pytest.mark.slow
def test_a_waiting_run_counts_as_queued_and_not_as_running(api: Api, cheaper_later: Script, worker: object) -> None:
    limit(api.caller, concurrent_runs=1, queued_runs=1)
    response_id = wait(api, cheaper_later.say("Hello"))
    refused = api.post("/responses", {"model": cheaper_later.model, "input": "Hi", **LONG})
    assert error(refused) == (429, None, "rate_limit_exceeded")
    assert "queued runs of your API key: limit 1, in use 1" in refused.json()["error"]["message"]
    # The only place of a run is free.
    assert api.create(model=cheaper_later.model, input="Hi")["status"] == "completed"
    assert row(api, response_id).planned_start is not None


def test_a_waiting_run_is_not_ahead_of_others_in_the_queue(api: Api, cheaper_later: Script, no_worker: None) -> None:
    wait(api, cheaper_later)
    other = api.create(model=cheaper_later.model, input="Hi", background=True)["id"]
    assert api.get(f"/responses/{other}").headers["x-queue-position"] == "1"


@pytest.mark.parametrize("background", [None, False])
@pytest.mark.parametrize("window", ["2h", "8h"])
def test_a_window_requires_a_background_response(
    api: Api, script: Script, window: str, background: bool | None
) -> None:
    options = {"completion_window": window}
    body = {"model": script.model, "input": "Hi", "background": background, "background_options": options}
    param = "background_options.completion_window"
    assert error(api.post("/responses", body)) == (400, param, "invalid_value")


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_run_with_a_window_uses_the_targets_for_flex(api: Api, targets: Targets) -> None:
    usual, flex = targets.add(), targets.add(serves="flex").say("Hello")
    made = api.create(model=targets.name, input="Hi", **LONG)
    assert text_of(ended(api, made["id"])) == ["Hello"]
    assert (len(usual.received), len(flex.received)) == (0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_run_waits_for_the_target_that_becomes_cheaper(api: Api, targets: Targets) -> None:
    targets.add(priority=0, prices=PriceList.simple(input="3", output="3"))
    cheap = targets.add(priority=0, prices=cheaper_soon()).say("Hello")
    made = api.create(model=targets.name, input="Hi", **LONG)
    assert row(api, made["id"]).planned_start is not None
    bring_forward(api, made["id"])
    assert text_of(ended(api, made["id"])) == ["Hello"]
    eventually(lambda: len(cheap.received) == 1)
