"""Costs of calls: recorded together with the tokens, with the prices at that time, exact to the last digit."""

from decimal import Decimal
from typing import Any

import pytest

from core.errors import Failure
from engine.calls.toolbox import Toolbox
from engine.events.response_body import failed
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response
from tenants import scope
from tenants.models import Price, UsageRecord
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, Caller
from tests.support.chunks import calls, chunk, text, usage
from tests.support.model_capabilities import describe
from tests.support.stored_runs import begin
from tests.support.upstream import Script, stream

PRICES = PriceList.simple(input="0.4", cached_input="0.1", cache_write="0.5", output="1.6")
NOTED = [
    {"dimension": "input", "amount": "0.4", "quantity": "4", "cost": "0.0000016"},
    {"dimension": "cached_input", "amount": "0.1", "quantity": "4", "cost": "0.0000004"},
    {"dimension": "cache_write", "amount": "0.5", "quantity": "3", "cost": "0.0000015"},
    {"dimension": "output", "amount": "1.6", "quantity": "5", "cost": "0.000008"},
]
# 4 tokens at 0.4, 4 at 0.1, 3 at 0.5 and 5 at 1.6 dollars for a million.
COST = Decimal("0.0000115")


@pytest.fixture
def priced(script: Script) -> Script:
    """A model with prices for everything."""
    return describe(script, prices=PRICES)


def counted() -> Any:
    """An answer whose usage has 4 tokens read from the cache and 3 written to it."""
    details = {"cached_tokens": 4, "cache_write_tokens": 3}
    told = usage(prompt_tokens=11, completion_tokens=5, prompt_tokens_details=details)
    return stream(chunk(content="Hello"), chunk(finish="stop"), told)


def kept(caller: Caller) -> tuple[Response, list[UsageRecord]]:
    """Return the team's only response and its usage records."""
    with scope.team(caller.team.pk):
        return Response.objects.get(), list(UsageRecord.objects.order_by("id"))


def test_a_call_records_its_cost_and_its_prices(api: Api, priced: Script, caller: Caller) -> None:
    priced.then(counted())
    api.create(model=priced.model, input="Hi")
    response, [row] = kept(caller)
    assert (response.cost, row.cost, row.prices) == (COST, COST, NOTED)


def test_a_new_price_does_not_change_recorded_costs(api: Api, priced: Script, caller: Caller) -> None:
    priced.then(counted())
    api.create(model=priced.model, input="Hi")
    Price.objects.filter(model__name=priced.model).update(amount=Decimal(9))
    _, [row] = kept(caller)
    assert (row.cost, row.prices) == (COST, NOTED)


def test_the_cost_of_a_response_is_the_sum_of_its_turns(api: Api, script: Script, caller: Caller) -> None:
    described = describe(script, prices=PriceList.simple(input="0.0003", output="0.0007"))
    described.then(stream(*calls(nowhere='{"a":1}'))).then(stream(*text("Done")))
    api.create(model=described.model, input="Hi", tools=[{"type": "function", "name": "other", "parameters": {}}])
    response, rows = kept(caller)
    expected = [Decimal(3 * row.input_tokens + 7 * row.output_tokens) / 10**10 for row in rows]
    assert [row.cost for row in rows] == expected
    assert len(rows) == 2
    assert response.cost == sum(expected) > 0


def test_a_call_without_a_price_has_no_cost(api: Api, script: Script, caller: Caller) -> None:
    script.then(counted())
    api.create(model=script.model, input="Hi")
    response, [row] = kept(caller)
    assert (response.cost, row.cost, row.prices) == (None, None, None)


def test_an_interrupted_call_has_an_estimated_cost(api: Api, priced: Script, caller: Caller) -> None:
    priced.then(stream(chunk(content="Hello there"), done=False))
    api.post("/responses", {"model": priced.model, "input": "Hi"})
    response, [row] = kept(caller)
    assert (row.outcome, row.estimated) == ("failed", True)
    assert row.cost == response.cost == Decimal(4 * row.input_tokens + 16 * row.output_tokens) / 10**7 > 0


def test_chat_completions_have_the_same_cost(api: Api, priced: Script, caller: Caller) -> None:
    priced.then(counted())
    messages = [{"role": "user", "content": "Hi"}]
    with api.stream("/chat/completions", model=priced.model, messages=messages) as answer:
        answer.rest()
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.get().cost == COST


def test_a_resumed_run_adds_to_the_cost(caller: Caller) -> None:
    begun = begin(caller, input="Hi")
    with scope.team(caller.team.pk):
        response = Response.objects.get()
        response.options["prices"], response.cost = PRICES.stored(), COST
        response.save()
        taken = resume.load(response_id=begun.who.response_id)
        run = taken.build(RunFactory(), Toolbox()).run
        _, change = taken.recorder.plan(run.end_idle(failed(Failure(code="server_error", message="No."))))
    assert taken.identity.prices == PRICES
    assert change.update is not None
    assert change.update.cost == COST


def test_the_reported_service_tier_determines_the_price(api: Api, script: Script, caller: Caller) -> None:
    flex = PriceEntry(dimension="input", amount=Decimal("0.2"), service_tier="flex")
    described = describe(script, prices=PriceList([*PRICES.entries, flex]))
    told = usage(prompt_tokens=10, completion_tokens=5)
    described.then(stream({**chunk(content="Hello"), "service_tier": "flex"}, chunk(finish="stop"), told))
    api.create(model=described.model, input="Hi", service_tier="priority")
    _, [row] = kept(caller)
    # 10 tokens at 0.2 and 5 at 1.6 dollars for a million: a tier without its own price has the general price.
    assert (row.service_tier, row.cost) == ("flex", Decimal("0.00001"))
    assert [each.get("service_tier") for each in row.prices or ()] == ["flex", None]


def test_a_tier_without_a_price_has_no_cost(api: Api, script: Script, caller: Caller) -> None:
    flex = PriceEntry(dimension="input", amount=Decimal("0.2"), service_tier="flex")
    described = describe(script, prices=PriceList([*PRICES.entries, flex]))
    told = usage(prompt_tokens=10, completion_tokens=5)
    described.then(stream({**chunk(content="Hello"), "service_tier": "priority"}, chunk(finish="stop"), told))
    api.create(model=described.model, input="Hi")
    response, [row] = kept(caller)
    assert (row.service_tier, row.cost, response.cost) == ("priority", None, None)


def test_kinds_of_tokens_are_recorded(api: Api, priced: Script, caller: Caller) -> None:
    told = usage(
        prompt_tokens=100,
        completion_tokens=50,
        prompt_tokens_details={"cached_tokens": 10, "audio_tokens": 20, "image_tokens": 30},
        completion_tokens_details={"audio_tokens": 40, "reasoning_tokens": 5},
    )
    priced.then(stream(chunk(content="Hello"), chunk(finish="stop"), told))
    api.create(model=priced.model, input="Hi")
    _, [row] = kept(caller)
    kinds = (row.input_audio_tokens, row.input_image_tokens, row.output_audio_tokens, row.reasoning_tokens)
    assert kinds == (20, 30, 40, 5)
