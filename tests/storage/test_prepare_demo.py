"""`manage.py prepare_demo`: the models of the demo upstream."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction
from pytest_django import Settings

from tenants import scope, services
from tenants.models import Model, Team
from tenants.prices import Maxima, PriceList


@pytest.fixture
def rolled_back(database: None) -> Iterator[None]:
    """Undo all changes, because the command changes objects that other tests may have."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def test_models_that_the_demo_upstream_no_longer_has_are_disabled(
    rolled_back: None, settings: Settings, tmp_path: Path
) -> None:
    settings.STATE_DIR = tmp_path
    url = "http://127.0.0.1:9/v1"
    services.add_upstream(name="demo", base_url=url, models=["demo", "demo-image", "added"])
    with scope.every_team():
        Team.objects.filter(pk=services.ensure_team(name="demo").pk).update(image_model="demo-image")
        call_command("prepare_demo", demo_upstream=url)
        enabled = Model.objects.filter(upstream__name="demo", enabled=True).values_list("name", flat=True)
        assert set(enabled) == {"demo", "demo-reasoning", "demo-embedding", "added"}
        assert Team.objects.get(name="demo").image_model == ""


def test_demo_models_have_prices_and_keep_those_of_an_operator(
    rolled_back: None, settings: Settings, tmp_path: Path
) -> None:
    settings.STATE_DIR = tmp_path
    url = "http://127.0.0.1:9/v1"
    services.add_upstream(name="demo", base_url=url, models=["demo"])
    chosen = PriceList.simple(input="7", output="9")
    services.set_prices(Model.objects.get(name="demo", upstream__name="demo"), chosen.entries)
    with scope.every_team():
        call_command("prepare_demo", demo_upstream=url)
    prices = {model.name: model.prices() for model in Model.objects.filter(upstream__name="demo", enabled=True)}
    assert prices.pop("demo") == chosen
    assert prices
    assert all(listed.entries for listed in prices.values())


def test_the_key_of_the_first_start_may_have_a_hard_budget(
    rolled_back: None, settings: Settings, tmp_path: Path
) -> None:
    settings.STATE_DIR = tmp_path
    with scope.every_team():
        call_command("prepare_demo", demo_upstream="http://127.0.0.1:9/v1")
    maxima = Maxima(input_tokens=1000, output_tokens=1000)
    models = Model.objects.filter(upstream__name="demo", enabled=True).exclude(name="demo-embedding")
    costs = {model.name: model.prices().worst_cost(maxima) for model in models}
    costs["demo-embedding"] = Model.objects.get(name="demo-embedding").prices().worst_cost(Maxima(input_tokens=1000))
    assert len(costs) == 3
    assert all(costs.values())
