"""One browser and one team with data for all tests of this directory."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from pytest_django import DjangoDbBlocker

from seeding.seed import Seeded, SeedOptions, seed
from tenants import scope
from tenants.models import ApiKey
from tests.admin.crawling import TeamData
from tests.admin.every_row import team_with_every_row
from tests.browser.accessibility import axe_script
from tests.browser.chromium import chromium
from tests.support.api import Caller
from tests.support.targets import Targets, several_targets
from tests.support.upstream import ScriptedUpstream
from tests.support.web import WebProcess


@pytest.fixture(scope="module")
def browser(seeded: Seeded) -> Iterator[Browser]:
    """The installed Chromium, for one module.

    While it runs, this thread has an idle event loop and cannot start another one, so data is seeded first.
    """
    with pytest.MonkeyPatch.context() as patch, chromium() as running:
        # Playwright keeps an idle event loop in this thread; Django would refuse database access because of it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield running


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core. The pages' content security policy would block it: `bypass_csp` of the browser."""
    return axe_script()


@pytest.fixture
def targets(upstream: ScriptedUpstream, database: None) -> Iterator[Targets]:
    """A model of this test."""
    with several_targets(upstream) as made:
        yield made


@pytest.fixture(scope="session")
def seeded(web: WebProcess, django_db_blocker: DjangoDbBlocker) -> Seeded:
    """A team with data of several weeks."""
    with django_db_blocker.unblock():
        return seed(SeedOptions(responses=90, teams=1, seed=11, label="Test"))


@pytest.fixture
def team(seeded: Seeded, database: None) -> Caller:
    """The seeded team, with one of its keys."""
    team = seeded.tenants[0].team
    with scope.team(team.pk):
        return Caller(team=team, key=ApiKey.objects.filter(team=team)[0], secret="")


@pytest.fixture(scope="session")
def subject(seeded: Seeded, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The rows of the seeded team, and some of the platform that `seed` does not create."""
    with django_db_blocker.unblock():
        return team_with_every_row(seeded.tenants[0].team)
