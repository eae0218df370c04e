"""`manage.py prepare_demo`: the models of the demo upstream."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction
from pytest_django import Settings

from tenants import scope, services
from tenants.models import Model, Team


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
