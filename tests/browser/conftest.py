"""One browser and one team with data for all tests of this folder."""

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
    """Chromium, as it is installed. Not longer than a module: while it is there, this thread has a loop that stands
    still, in which nothing else can have one. So what is seeded comes first."""
    with pytest.MonkeyPatch.context() as patch, chromium() as running:
        # Playwright's loop stands still while a test runs, which Django cannot know: it sees a loop and refuses.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield running


@pytest.fixture(scope="session")
def seeded(web: WebProcess, django_db_blocker: DjangoDbBlocker) -> Seeded:
    """A team as weeks of use leave it behind."""
    with django_db_blocker.unblock():
        return seed(SeedOptions(responses=90, teams=1, seed=11, label="Test"))


@pytest.fixture(scope="session")
def subject(seeded: Seeded, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The rows of that team."""
    with django_db_blocker.unblock():
        return TeamData.of(seeded.tenants[0].team, markers=[])
