"""Usage records, costs and budgets of requests that several targets have received."""

from decimal import Decimal

import pytest

from responses.models import Response, Turn
from tenants import scope
from tenants.prices import PriceList
from tests.support.api import Api, error, ok
from tests.support.chunks import chunk, text
from tests.support.limits import limit
from tests.support.targets import PATHS, Targets, body_of, post, upstream_id
from tests.support.upstream import Answer, Cut, Gate, stream, whole
from tests.support.usage_records import usage_records

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
CUT = Answer(pieces=[b": waiting\n\n", Cut()])
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


@endpoints
def test_a_request_that_may_be_charged_is_not_repeated_under_a_hard_budget(
    api: Api, targets: Targets, path: str
) -> None:
    limit(api.caller, budget="1")
    prices = PriceList.simple(input="1", output="1")
    first, second = targets.two(prices=prices, context_window=10_000)
    first.then(CUT)
    post(api, path, targets.name, stream=True)
    assert second.received == []


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
