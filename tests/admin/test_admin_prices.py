"""Prices in the admin: the price list, published prices on a model's page, and costs with unknown parts."""

import csv
import io
import uuid
from collections.abc import Iterator
from decimal import Decimal

import pytest
from django.test import Client

from responses.rollups import aggregate
from tenants import scope, services
from tenants.models import AuditEvent, Model, Price, Upstream, UsageRecord
from tenants.prices import Dimension, PriceList
from tests.admin.rows import text
from tests.support.api import Caller

PRICES = "/admin/tenants/price/"


@pytest.fixture
def model(database: None) -> Iterator[Model]:
    """A model of an upstream with OpenAI's address, which nothing calls. One of its published prices is wrong."""
    upstream = Upstream.objects.create(name=f"openai {uuid.uuid4().hex}", base_url="https://api.openai.com/v1")
    made = Model.objects.create(name="gpt-5", upstream=upstream)
    services.set_prices(made, PriceList.simple(input="9", source="genai-prices 0").entries)
    yield made
    with scope.every_team():
        Upstream.objects.filter(pk=upstream.pk).delete()


def test_the_price_list_shows_the_published_price(admin: Client, model: Model) -> None:
    page = text(admin.get(PRICES, {"q": model.upstream.name}))
    assert ("Input $9.00 per million" in page, "$1.25" in page) == (True, True)
    assert f'href="/admin/tenants/model/{model.pk}/change/">gpt-5</a>' in page


def test_the_price_of_a_hosted_tool_is_entered_without_a_model(admin: Client) -> None:
    name = f"tool {uuid.uuid4().hex}"
    form = {"dimension": "tool_call", "tool": name, "amount": "10", "per": "1000", "above_tokens": "0"}
    assert admin.post(f"{PRICES}add/", {**form, "cache_seconds": "0"}).status_code == 302
    made = Price.objects.get(tool=name)
    assert (made.model, made.amount, made.source) == (None, Decimal(10), "entered")
    assert "hosted tools" in text(admin.get(PRICES, {"q": name}))
    made.delete()


@pytest.mark.slow
def test_a_model_shows_and_adopts_published_prices(admin: Client, model: Model) -> None:
    url = f"/admin/tenants/model/{model.pk}/change/"
    assert "Input $1.25 per million instead of $9.00" in text(admin.get(url))
    admin.post(f"/admin/models/{model.pk}/prices/")
    assert model.prices().usual(Dimension.INPUT) == Decimal("1.25")
    assert "The prices are those that OpenAI publishes" in text(admin.get(url))
    with scope.every_team():
        event = AuditEvent.objects.filter(target=f"model:{model.pk}", action="prices.updated").latest("pk")
    assert event.actor.startswith("user:")


def test_only_operators_adopt_published_prices(lead: Client, model: Model) -> None:
    assert lead.post(f"/admin/models/{model.pk}/prices/").status_code in {302, 403, 404}
    assert model.prices().usual(Dimension.INPUT) == 9


@pytest.mark.usefixtures("rollups")
def test_costs_that_do_not_include_all_calls_are_a_lower_bound(lead: Client, caller: Caller) -> None:
    columns = {"object_id": "x", "upstream_id": "u", "upstream_model": "m", "outcome": "stop", "endpoint": "responses"}
    with scope.every_team():
        for name, cost in (("priced", Decimal(3)), ("unpriced", None), ("mixed", Decimal(2)), ("mixed", None)):
            UsageRecord.objects.create(team=caller.team, model=name, cost=cost, **columns)
    aggregate.roll_up()
    page = text(lead.get("/admin/usage/", {"metric": "cost", "group": "model", "range": "24h"}))
    for words in ("at least $5.00", "2 without a price", ">$3.00<", "at least $2.00", "No price"):
        assert words in page, words
    answer = text(lead.get("/admin/usage/", {"metric": "cost", "group": "model", "range": "24h", "format": "csv"}))
    lines = {(row["group"], row["cost"], row["calls without a price"]) for row in csv.DictReader(io.StringIO(answer))}
    assert lines == {("priced", "3", "0"), ("unpriced", "No price", "1"), ("mixed", "2", "1")}
    pivot = text(lead.get("/admin/usage/pivot/", {"metric": "cost", "range": "24h"}))
    assert ("at least $5.00" in pivot, "2 without a price" in pivot) == (True, True)
