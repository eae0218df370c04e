"""Usage records, costs and budgets of requests that several targets have received."""

from decimal import Decimal
from typing import Any

import pytest

from limits import status_sync
from responses.models import Response, Turn
from tenants import directory, scope
from tenants.models import Reservation
from tenants.prices import PriceList
from tests.support.api import Api, error, ok
from tests.support.chunks import chunk, text
from tests.support.limits import limit
from tests.support.targets import PATHS, Targets, body_of, post, upstream_id
from tests.support.upstream import Answer, Cut, Gate, stream, whole
from tests.support.usage_records import usage_records
from tests.support.waiting import eventually

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
CUT = Answer(pieces=[b": waiting\n\n", Cut()])
LIMITED: dict[str, dict[str, Any]] = {
    "/responses": {"max_output_tokens": 500},
    "/chat/completions": {"max_completion_tokens": 500},
    "/messages": {"max_tokens": 500},
}
endpoints = pytest.mark.parametrize("path", PATHS)


@endpoints
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_each_request_is_recorded_with_its_own_target(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    first = targets.add(prices=PriceList.simple(input="100", output="100")).then(WRONG_KEY)
    second = targets.add(prices=PriceList.simple(input="1", output="2")).say("Hello")
    post(api, path, targets.name, stream=is_streamed)
    failed, answered = usage_records(api.caller, 2)
    assert [row.upstream_id for row in (failed, answered)] == [upstream_id(first), upstream_id(second)]
    assert [row.upstream_model for row in (failed, answered)] == [first.model, second.model]
    assert [row.outcome for row in (failed, answered)] == ["failed", "stop"]
    assert [row.model for row in (failed, answered)] == [targets.name] * 2
    # 7 tokens of input and 3 of output.
    assert [row.cost for row in (failed, answered)] == [Decimal(0), Decimal("0.000013")]


@endpoints
def test_an_answer_that_broke_is_estimated_with_the_prices_of_its_target(api: Api, targets: Targets, path: str) -> None:
    targets.add(prices=PriceList.simple(input="100", output="100")).then(CUT)
    targets.add(prices=PriceList.simple(input="1", output="2")).say("Hello")
    assert post(api, path, targets.name, stream=True).status_code == 200
    failed, answered = usage_records(api.caller, 2)
    assert (failed.outcome, failed.estimated, failed.output_tokens) == ("failed", True, 0)
    assert failed.cost == Decimal(failed.input_tokens) / 10_000
    assert (answered.estimated, answered.cost) == (False, Decimal("0.000013"))


def test_the_response_names_the_target_that_answered(api: Api, targets: Targets) -> None:
    targets.add(prices=PriceList.simple(input="100", output="100")).then(WRONG_KEY)
    second = targets.add(prices=PriceList.simple(input="1", output="2")).say("Hello")
    made = api.create(model=targets.name, input="Hi")
    with scope.team(api.caller.team.pk):
        row, turn = Response.objects.get(pk=made["id"]), Turn.objects.get(response_id=made["id"])
    assert (row.model, row.upstream_id, row.upstream_model) == (targets.name, upstream_id(second), second.model)
    assert row.cost == Decimal("0.000013")
    # The reason why the first target did not answer is in the timeline.
    assert f"up-{targets.scripts[0].model}: HTTP 401" in str(turn.spans)


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_an_interrupted_answer_is_recorded_with_its_own_target(api: Api, targets: Targets, path: str) -> None:
    targets.add(prices=PriceList.simple(input="100", output="100")).then(WRONG_KEY)
    second = targets.add(prices=PriceList.simple(input="1", output="2"))
    second.then(stream(chunk(content="Hel"), gate := Gate(), chunk(finish="stop")))
    # An unstored run stops when its client disconnects.
    with api.stream(path, **body_of(path, targets.name, store=False)) as live:
        while "Hel" not in str(live.next()):
            pass
    gate.wait_until_reached()
    failed, interrupted = usage_records(api.caller, 2)
    gate.open()
    assert (failed.outcome, failed.cost) == ("failed", Decimal(0))
    assert (interrupted.outcome, interrupted.upstream_id) == ("interrupted", upstream_id(second))


@endpoints
def test_a_hard_budget_reserves_the_most_expensive_target(api: Api, targets: Targets, path: str) -> None:
    limit(api.caller, budget="0.01")
    targets.add(prices=PriceList.simple(input="1", output="1"))
    targets.add(prices=PriceList.simple(input="10000", output="10000"))
    answer = post(api, path, targets.name)
    assert answer.status_code in {400, 429}
    assert targets.scripts[0].received == []


CHEAP = PriceList.simple(input="1", output="1")
# Of one request with at most 500 tokens of output, whose input has less than 500 bytes.
MOST_OF_ONE = Decimal("0.001")


@endpoints
def test_under_a_hard_budget_the_cost_of_a_further_request_is_reserved_as_well(
    api: Api, targets: Targets, path: str
) -> None:
    limit(api.caller, budget=str(3 * MOST_OF_ONE))
    first, second = targets.two(prices=CHEAP, context_window=10_000)
    first.then(CUT)
    second.say("Hello")
    assert "Hello" in post(api, path, targets.name, stream=True, **LIMITED[path]).text
    lost, answered = usage_records(api.caller, 2)
    # The first server may charge for more than was received.
    assert lost.estimated
    assert lost.cost < lost.budget_cost < MOST_OF_ONE
    assert (answered.budget_cost, answered.cost) == (None, Decimal("0.00001"))
    eventually(lambda: spent(api) == lost.budget_cost + answered.cost)
    with scope.team(api.caller.team.pk):
        assert not Reservation.objects.exists()


@endpoints
def test_no_further_request_is_sent_if_the_budget_has_no_room_for_it(api: Api, targets: Targets, path: str) -> None:
    limit(api.caller, budget=str(MOST_OF_ONE))
    first, second = targets.two(prices=CHEAP, context_window=10_000)
    first.then(CUT)
    # The request is the only one, so that no other one can make room.
    assert "error" in post(api, path, targets.name, stream=True, **LIMITED[path]).text
    assert second.received == []
    (lost,) = usage_records(api.caller, 1)
    assert lost.budget_cost > 0
    eventually(lambda: spent(api) == lost.budget_cost)


def spent(api: Api) -> Decimal | None:
    """Return the used amount of the only budget once nothing is reserved."""
    (budget,) = status_sync(directory.principal(api.caller.secret)).budgets
    return None if budget.reserved else budget.spent


@endpoints
def test_a_request_that_is_not_charged_is_repeated_under_a_hard_budget(api: Api, targets: Targets, path: str) -> None:
    limit(api.caller, budget="1")
    first, second = targets.two(prices=PriceList.simple(input="1", output="1"), context_window=10_000)
    first.then(WRONG_KEY)
    second.then(stream(*text("Hello")))
    assert "Hello" in str(ok(post(api, path, targets.name)))


def test_a_target_without_a_price_is_refused_under_a_hard_budget(api: Api, targets: Targets) -> None:
    limit(api.caller, budget="1")
    targets.add(prices=PriceList.simple(input="1", output="1"))
    targets.add()
    assert error(post(api, "/responses", targets.name))[2] == "price_unknown"
