"""Hard budgets and costs other than those of answers: hosted searches and interrupted requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import orjson
import pytest

from tenants import scope
from tenants.models import Reservation, Team, UsageRecord
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, error, ok
from tests.support.chunks import chunk
from tests.support.limits import limit
from tests.support.mcp_requests import calling
from tests.support.model_capabilities import describe
from tests.support.search_engine import SearchServer, engine, search_server
from tests.support.upstream import Answer, Cut, Gate, Script, stream
from tests.support.waiting import eventually

ASKED: dict[str, Any] = {"input": "Do cats purr?", "tools": [{"type": "web_search"}], "max_output_tokens": 100}
SEARCH = ("web_search", orjson.dumps({"queries": ["cats"]}).decode())
PRICE = Decimal("0.01")
# Closes the connection when the request has arrived.
BROKEN = Answer(pieces=[Cut()], delayed_head=True, done=False)


@pytest.fixture
def search_engine(reaching: Api) -> Iterator[SearchServer]:
    """The search engine of the team."""
    with search_server() as running:
        engine(reaching.caller.team, running)
        yield running


def priced(script: Script) -> Script:
    """Set the price of a token to a millionth of a dollar, and of a search to a hundredth."""
    tokens = [PriceEntry(dimension=each, amount=Decimal(1), per=1_000_000) for each in ("input", "output")]
    searches = PriceEntry(dimension="tool_call", tool="web_search", amount=PRICE, per=1)
    return describe(script, prices=PriceList([*tokens, searches]))


def records(api: Api) -> list[UsageRecord]:
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.filter(team=api.caller.team).order_by("occurred_at", "id"))


def rows(api: Api) -> list[Reservation]:
    with scope.team(api.caller.team.pk):
        return list(Reservation.objects.filter(team=api.caller.team))


def budget(api: Api) -> dict[str, Any]:
    (found,) = ok(api.get("/me"))["budgets"]
    return dict(found)


def test_searches_beyond_the_budget_are_refused(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    limit(reaching.caller, budget="0.025")
    priced(script).then(calling(SEARCH, SEARCH, SEARCH)).say("They do.")
    response = reaching.create(model=script.model, **ASKED)
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "failed", "completed"]
    assert "the call was not made. You exceeded the budget of your API key" in script.messages[1][-1]["content"]
    assert len(search_engine.queries) == 2
    total = sum(record.cost or 0 for record in records(reaching))
    assert 2 * PRICE < total <= Decimal("0.025")
    eventually(lambda: (budget(reaching)["spent"], budget(reaching)["reserved"]) == (float(total), 0))


def test_a_search_is_reserved_before_it_starts(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    limit(reaching.caller, budget="1")
    search_engine.opened.clear()
    priced(script).then(calling(SEARCH)).say("They do.")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(reaching.create, model=script.model, **ASKED)
        eventually(lambda: search_engine.queries)
        assert [row.amount for row in rows(reaching) if row.amount] == [PRICE]
        assert budget(reaching)["reserved"] == float(PRICE)
        search_engine.opened.set()
        assert answer.result()["status"] == "completed"
    eventually(lambda: rows(reaching) == [])


@pytest.mark.parametrize("limits", [{"concurrent_runs": 5}, {"budget": "1", "is_hard": False}])
def test_a_search_reserves_nothing_without_a_hard_budget(
    reaching: Api, script: Script, search_engine: SearchServer, limits: dict[str, Any]
) -> None:
    limit(reaching.caller, **limits)
    search_engine.opened.clear()
    priced(script).then(calling(SEARCH)).say("They do.")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(reaching.create, model=script.model, **ASKED)
        eventually(lambda: search_engine.queries)
        assert [row for row in rows(reaching) if not row.is_run] == []
        search_engine.opened.set()
        answer.result()


def test_a_failed_search_releases_its_reservation(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    limit(reaching.caller, budget="1")
    search_engine.status = 500
    priced(script).then(calling(SEARCH)).say("Nobody knows.")
    assert reaching.create(model=script.model, **ASKED)["output"][0]["status"] == "failed"
    spent = sum(record.cost or 0 for record in records(reaching))
    assert spent < PRICE
    eventually(lambda: (budget(reaching)["spent"], budget(reaching)["reserved"]) == (float(spent), 0))


@pytest.mark.parametrize("stored", [True, False])
def test_a_cancelled_search_is_charged(
    reaching: Api, script: Script, search_engine: SearchServer, stored: bool
) -> None:
    limit(reaching.caller, budget="1")
    with scope.team(reaching.caller.team.pk):
        Team.objects.filter(pk=reaching.caller.team.pk).update(disconnect_grace_seconds=0)
    search_engine.opened.clear()
    priced(script).then(calling(SEARCH))
    with reaching.open("/responses", {"model": script.model, "stream": True, "store": stored, **ASKED}):
        eventually(lambda: search_engine.queries)
    eventually(lambda: [one.outcome for one in records(reaching) if one.endpoint == "web_search"] == ["interrupted"])
    search_engine.opened.set()
    total = sum(record.cost or 0 for record in records(reaching))
    assert total > PRICE
    eventually(lambda: (budget(reaching)["spent"], budget(reaching)["reserved"]) == (float(total), 0))
    assert rows(reaching) == []


def test_a_request_that_may_be_charged_is_not_repeated_under_a_budget(api: Api, script: Script) -> None:
    limit(api.caller, budget="1")
    priced(script).then(BROKEN)
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "max_output_tokens": 100})
    assert (answer.status_code, len(script.received)) == (503, 1)
    [record] = records(api)
    # The upstream may have generated as much as it was allowed to.
    assert record.budget_cost is not None
    assert (record.cost or 0) < Decimal("0.0001") <= record.budget_cost
    eventually(lambda: budget(api)["spent"] == float(record.budget_cost or 0))


def test_a_chat_completion_that_may_be_charged_is_not_repeated_under_a_budget(api: Api, script: Script) -> None:
    limit(api.caller, budget="1")
    priced(script).then(BROKEN)
    messages = [{"role": "user", "content": "Hi"}]
    answer = api.post("/chat/completions", {"model": script.model, "messages": messages, "max_completion_tokens": 100})
    assert (answer.status_code, len(script.received)) == (503, 1)
    [record] = records(api)
    assert (record.budget_cost or 0) >= Decimal("0.0001")


@pytest.mark.slow
def test_other_failed_requests_are_repeated_under_a_budget(api: Api, script: Script) -> None:
    limit(api.caller, budget="1")
    priced(script).then(Answer(pieces=[b"{}"], status=500, content_type="application/json", done=False)).say("Hello")
    api.create(model=script.model, input="Hi", max_output_tokens=100)
    assert [record.budget_cost for record in records(api)] == [None, None]
    eventually(lambda: budget(api)["reserved"] == 0)


@pytest.mark.slow
def test_an_interrupted_request_is_repeated_without_a_budget(api: Api, script: Script) -> None:
    limit(api.caller, concurrent_runs=5)
    api.create(model=priced(script).then(BROKEN).say("Hello").model, input="Hi")
    assert len(script.received) == 2


def test_a_budget_counts_the_full_reservation_of_an_interrupted_stream(api: Api, script: Script) -> None:
    limit(api.caller, budget="1")
    gate = Gate()
    priced(script).then(stream(chunk(content="Hel"), gate))
    body = {"model": script.model, "input": "Hi", "stream": True, "store": False, "max_output_tokens": 100}
    with api.open("/responses", body):
        gate.wait_until_reached()
    [record] = eventually(lambda: records(api))
    assert record.outcome == "interrupted"
    assert (record.cost or 0) < Decimal("0.0001") <= (record.budget_cost or 0)
    eventually(lambda: budget(api)["spent"] == float(record.budget_cost or 0))


def test_the_requested_tier_determines_the_reservation(api: Api, script: Script) -> None:
    limit(api.caller, budget="0.005")
    tokens = [PriceEntry(dimension=each, amount=Decimal(1), per=1_000_000) for each in ("input", "output")]
    fast = PriceEntry(dimension="output", amount=Decimal(100), per=1_000_000, service_tier="priority")
    describe(script, prices=PriceList([*tokens, fast])).say("Hello")
    body = {"model": script.model, "input": "Hi", "max_output_tokens": 100}
    for tier in ("priority", "auto"):
        answer = api.post("/responses", {**body, "service_tier": tier})
        assert error(answer) == (429, None, "insufficient_quota")
    api.create(**body, service_tier="default")
