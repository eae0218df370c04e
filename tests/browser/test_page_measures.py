"""Measures of the pages: nothing lies outside of the window, rows of lists are low, a status has one spelling."""

import re
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import pytest
from playwright.sync_api import Browser
from pytest_django import DjangoDbBlocker

from responses.webhooks.events import EVENT_TYPES
from responses.webhooks.models import WebhookEndpoint
from tenants import scope
from tenants.models import Model, ModelVisibility, Team
from tests.admin.crawling import TeamData
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.test_every_page import pages, status_of
from tests.browser.visiting import person, visiting
from tests.support.sampling import sampled
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
NARROW, WIDE = 380, 1280
MAX_ROW = 100
"""Height of a row of a list in pixels: a name of two lines, and a line below it."""
# Lists that name what their page is about, and those that were reported.
ALWAYS = [
    "/admin/tenants/apikey/", "/admin/responses/webhookendpoint/", "/admin/tenants/model/", "/admin/tenants/price/add/",
    "/admin/responses/response/?period=30d", "/admin/responses/toolcall/?period=30d", "/admin/tenants/connector/",
    "/admin/tenants/usagerecord/?period=30d", "/admin/tenants/upstream/", "/admin/tenants/team/",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Measures of a page: what lies outside of windows of both widths, and its lists and statuses in the wide one."""

    outside: list[str]
    cut: list[str]
    heights: list[int]
    statuses: list[str]


@pytest.fixture(scope="module")
def crowded(subject: TeamData, django_db_blocker: DjangoDbBlocker) -> Iterator[TeamData]:
    """A webhook with all events, and a model that thirty teams may use."""
    endpoint = {"url": "https://hooks.example/a", "secret": "whsec_a", "event_types": [*EVENT_TYPES], "name": "all"}
    with django_db_blocker.unblock():
        with scope.every_team():
            added = WebhookEndpoint.objects.create(team=subject.team, **endpoint)
            teams = [Team.objects.create(name=f"Research and teaching {uuid.uuid4().hex[:6]}") for _ in range(30)]
            model = Model.objects.order_by("pk")[0]
            shown = [ModelVisibility.objects.create(model=model, team=team) for team in teams]
        yield subject
        with scope.every_team():
            added.delete()
            for row in shown:
                row.delete()


def only_own(subject: TeamData, url: str) -> str:
    """Return the URL of a list with the rows of the test only: other tests store names of any length."""
    path, _, query = url.partition("?")
    if path == "/admin/tenants/model/":
        with scope.every_team():
            return f"{path}?q={Model.objects.order_by('pk')[0].name}"
    if path.split("/")[3] not in {"toolcall", "usagerecord", "response", "apikey", "webhookendpoint"}:
        return url
    return f"{path}?{query}&team__id__exact={subject.team.pk}"


@pytest.fixture(scope="module")
def always(crowded: TeamData) -> list[str]:
    """The URLs of the pages that are always measured, with the rows of the test only."""
    return [only_own(crowded, url) for url in ALWAYS]


@pytest.fixture(scope="module")
def lists(crowded: TeamData) -> list[str]:
    """The URLs of some other lists."""
    urls = [url for url in pages(crowded) if re.fullmatch(r"/admin/[a-z]+/[a-z]+/", url)]
    return [only_own(crowded, url) for url in sampled(urls, 8, key="lists")]


@pytest.fixture(scope="module")
def with_statuses(crowded: TeamData) -> list[str]:
    """The URLs of other pages with many statuses."""
    response = crowded.rows[next(model for model in crowded.rows if model._meta.model_name == "response")][0]
    tabs = [f"/admin/responses/response/{response.pk}/change/?tab={tab}" for tab in ("timeline", "attempts", "usage")]
    return ["/admin/", "/admin/live/", "/admin/approvals/?state=decided", *tabs]


@pytest.fixture(scope="module")
def measured(
    browser: Browser, web: WebProcess, crowded: TeamData, always: list[str], lists: list[str], with_statuses: list[str]
) -> dict[str, Measures]:
    """The measures of each page that is served. Each page is opened once: opening it takes longer than measuring it."""
    found = {}
    with visiting(browser, web.url, person("administrator")) as visit:
        for url in dict.fromkeys([*always, *with_statuses, *lists, *sampled(pages(crowded), 12, key="measures")]):
            visit.wide(WIDE)
            if status_of(visit, url) != HTTPStatus.OK:
                continue
            page = visit.page
            outside = [f"{WIDE}: {entry}" for entry in page.evaluate(_OUTSIDE)]
            cut, heights, statuses = (page.evaluate(script) for script in (CUT_LISTS, ROW_HEIGHTS, _STATUSES))
            visit.wide(NARROW)
            outside += [f"{NARROW}: {entry}" for entry in page.evaluate(_OUTSIDE)]
            found[url] = Measures(outside=outside, cut=cut, heights=heights, statuses=statuses)
    return found


def test_nothing_lies_outside_of_the_window(measured: dict[str, Measures], always: list[str]) -> None:
    assert {*always} <= measured.keys()
    found = [f"{url}: {entry}" for url, measures in measured.items() for entry in measures.outside]
    assert not found, "\n".join(found)


def test_lists_show_all_columns_in_low_rows(measured: dict[str, Measures], always: list[str], lists: list[str]) -> None:
    found = []
    assert {*always} <= measured.keys()
    for url in (url for url in [*always, *lists] if url in measured):
        found += [f"{url}: {entry}" for entry in measured[url].cut]
        found += [f"{url}: a row of {height} pixels" for height in measured[url].heights if height > MAX_ROW]
    assert not found, "\n".join(found)


def test_a_status_has_one_spelling_on_all_pages(
    measured: dict[str, Measures], always: list[str], with_statuses: list[str]
) -> None:
    spellings: dict[str, dict[str, str]] = defaultdict(dict)
    for url in [*always, *with_statuses]:
        for text in measured[url].statuses:
            spellings[text.lower().replace("_", " ")][text] = url
    assert len(spellings) > 5
    assert {key: found for key, found in spellings.items() if len(found) > 1} == {}
    # Codes of errors and names of events stay as the API spells them.
    words = [text for found in spellings.values() for text in found if not re.search("[._]", text)]
    assert [text for text in words if text[0].islower()] == []


# Return visible elements whose right edge lies outside of the window and that no container scrolls.
_OUTSIDE = """() => {
  const scrolls = (it) => {
    for (let box = it.parentElement; box && box !== document.body; box = box.parentElement) {
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(box).overflowX)) return true;
    }
    return false;
  };
  const cut = [...document.querySelectorAll('main *, #page *')].filter((it) => {
    const box = it.getBoundingClientRect();
    const style = getComputedStyle(it);
    const isShown = it.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
    return box.width > 1 && box.height > 1 && isShown && style.position !== 'fixed' && box.right > innerWidth + 1
      && box.left < innerWidth * 2 && !it.closest('svg') && !scrolls(it);
  });
  const end = (it) => Math.round(it.getBoundingClientRect().right);
  return cut.slice(0, 3).map((it) => `${it.tagName} ${it.className} ends at ${end(it)}`);
}"""
# Return the lists that have to be scrolled to see their last column.
CUT_LISTS = """() => [...document.querySelectorAll('#result_list')].flatMap((list) => {
  const right = Math.round(list.getBoundingClientRect().right);
  let box = list.parentElement;
  while (box && !/auto|scroll|hidden/.test(getComputedStyle(box).overflowX)) box = box.parentElement;
  const end = Math.round(box ? box.getBoundingClientRect().right : innerWidth);
  return right > end + 1 ? [`the list ends at ${right}, its container at ${end}`] : [];
})"""
ROW_HEIGHTS = "() => [...document.querySelectorAll('#result_list tbody tr')].map((it) => Math.round(it.offsetHeight))"
_STATUSES = """() => [...document.querySelectorAll('.c-tag, .c-fall-state, .c-live-state')]
  .filter((it) => it.offsetParent).map((it) => it.innerText.trim()).filter((text) => /^[a-z _.]+$/i.test(text))"""
