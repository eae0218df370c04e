"""One browser and one team with data for all tests of this directory."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from pytest_django import DjangoDbBlocker

from responses.seeding.seed import Seeded, SeedOptions, seed
from tests.admin.crawling import TeamData
from tests.browser.chromium import chromium
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
def seeded(web: WebProcess, django_db_blocker: DjangoDbBlocker) -> Seeded:
    """A team with data of several weeks."""
    with django_db_blocker.unblock():
        return seed(SeedOptions(responses=90, teams=1, seed=11, label="Test"))


@pytest.fixture(scope="session")
def subject(seeded: Seeded, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The rows of the seeded team."""
    with django_db_blocker.unblock():
        return TeamData.of(seeded.tenants[0].team, markers=[])
