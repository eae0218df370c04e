"""The benchmark of the console requests every page."""

import pytest
from django.urls import resolve
from pytest_django import DjangoDbBlocker

from benchmarks.console.routes import NOT_MEASURED, paths_of_routes
from seeding.seed import SeedOptions, seed
from tests.admin.crawling import TeamData, admin_routes
from tests.admin.every_row import team_with_every_row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def subject(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """A team with rows for every page."""
    with django_db_blocker.unblock():
        return team_with_every_row(seed(SeedOptions(responses=45, teams=1, seed=5)).tenants[0].team)


def test_the_benchmark_requests_every_page_of_the_console(subject: TeamData) -> None:
    measured = {
        resolve(path.partition("?")[0]).view_name for paths in paths_of_routes(subject).values() for path in paths
    }
    missing = {route.name for route in admin_routes()} - measured - NOT_MEASURED.keys()
    assert missing == set()


def test_routes_that_the_benchmark_leaves_out_exist(subject: TeamData) -> None:
    assert NOT_MEASURED.keys() - {route.name for route in admin_routes()} == set()
