"""Layout at four widths: the columns of the response list, and pages with names as long as their columns allow."""

import re
from collections.abc import Iterator

import pytest
from django.db import models
from playwright.sync_api import Browser, expect
from pytest_django import DjangoDbBlocker

from conversations.models import Section
from seeding.seed import Seeded, SeedOptions, seed
from tenants import scope, services
from tenants.models import Connector, Model, Upstream
from tests.admin.crawling import TeamData
from tests.admin.rows import add_call, add_items, add_response, assistant_message, function_call_item, user_message
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.test_every_page import pages, status_of
from tests.browser.test_page_measures import CUT_LISTS, MAX_ROW, ROW_HEIGHTS
from tests.browser.visiting import Visit, person, visiting
from tests.support.api import Caller
from tests.support.sampling import rest_at_night, sampled, sized
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
WIDTHS = (380, 768, 1280, 1440)
LIST = "/admin/responses/response/?period=30d"
_NAMES = {
    "name", "model", "upstream_model", "end_user", "filename", "embedding_model", "description", "wire_name", "url",
}  # fmt: skip
_UNBROKEN = "Unbroken" * 100


@pytest.fixture(scope="module")
def named(web: WebProcess, seeded: Seeded, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The rows of a second team; the test gives them long names."""
    with django_db_blocker.unblock():
        team = seed(SeedOptions(responses=60, teams=1, seed=12, label="Long")).tenants[0].team
        key = services.create_key(team=team, spec=services.KeySpec(name="long"))
        caller = Caller(team=team, key=key.key, secret="")
        response = add_response(caller, input_preview=_UNBROKEN[:120], output_preview=_UNBROKEN[:120])
        add_items(response, Section.INPUT, user_message(_UNBROKEN))
        add_items(response, Section.OUTPUT, function_call_item(_UNBROKEN[:64], f'{{"a": "{_UNBROKEN}"}}'))
        add_items(response, Section.OUTPUT, assistant_message(_UNBROKEN))
        add_call(response)
        return TeamData.of(team, markers=[])


def lengthen(subject: TeamData) -> None:
    """Give the rows of a team names as long as their columns allow."""
    with scope.every_team():
        for model, rows in subject.rows.items():
            fields = [f for f in model._meta.concrete_fields if f.name in _NAMES and isinstance(f, models.CharField)]
            for row in rows:
                for field in fields:
                    if getattr(row, field.attname):
                        # Some names must be unique.
                        name = (str(row.pk) + _UNBROKEN * 2)[: field.max_length]
                        model._default_manager.filter(pk=row.pk).update(**{field.attname: name})


@pytest.mark.nightly
def test_long_names_do_not_break_a_page(browser: Browser, web: WebProcess, named: TeamData, database: None) -> None:
    found = []
    urls = [LIST, "/admin/", *sampled(pages(named), 4, key="layout")]
    with visiting(browser, web.url, person("team_lead", named.team)) as visit:
        before = {url: heights for url in urls if (heights := heights_of(visit, url))}
        lengthen(named)
        for url, heights in before.items():
            assert status_of(visit, url) == 200
            for width, height in heights.items():
                visit.wide(width)
                if (pixels := visit.overflow()) > 0:
                    found.append(f"{url}: {pixels} pixels wider than {width}")
                if (higher := page_height(visit)) > 1.5 * height + 600:
                    found.append(f"{url}: {higher} pixels high instead of {height} at {width}")
    assert len(before) > sized(1, full=20)
    assert not found, "\n".join(found)


@pytest.fixture
def platform_names(named: TeamData, database: None) -> Iterator[None]:
    """An upstream, a model and a connector with names of 200 characters, or as long as their columns allow."""
    lengthen(named)
    name, url = _UNBROKEN[:200], f"https://host.example/{_UNBROKEN[:170]}"
    with scope.every_team():
        upstream = Upstream.objects.create(name=name[:120], base_url=url)
        model = Model.objects.create(name=name, upstream=upstream, upstream_model=name)
        connector = Connector.objects.create(name=name[:64], title=name[:120], url=url)
    yield
    with scope.every_team():
        for row in (connector, model, upstream):
            row.delete()


@pytest.mark.parametrize("role", ["team_lead", "administrator"])
def test_lists_cut_long_names(
    role: str, browser: Browser, web: WebProcess, named: TeamData, platform_names: None
) -> None:
    """Rows of lists stay low, all columns are visible, and a tooltip has the text that a cell cuts."""
    found, cut = [], 0
    team_lists = {f"{url}?period=30d" for url in pages(named) if re.fullmatch(r"/admin/[a-z]+/[a-z]+/", url)}
    platform_lists = [f"/admin/tenants/{name}/?q=Unbroken" for name in ("upstream", "model", "connector")]
    with visiting(browser, web.url, person(role, named.team)) as visit:
        for url in platform_lists if role == "administrator" else sampled(sorted(team_lists), 8, key="long names"):
            visit.wide(1280)
            if status_of(visit, url) != 200:
                continue
            found += [f"{url}: {entry}" for entry in visit.page.evaluate(CUT_LISTS)]
            heights = visit.page.evaluate(ROW_HEIGHTS)
            found += [f"{url}: a row of {height} pixels" for height in heights if height > MAX_ROW]
            names = visit.page.locator("#result_list").get_by_text("UnbrokenUnbroken").all()
            for name in names[:4]:
                cut += 1
                name.hover()
                full = name.evaluate("it => it.closest('[title]')?.title")
                found += (
                    [] if full and "UnbrokenUnbroken" in full else [f"{url}: {name.inner_text()[:40]} has no tooltip"]
                )
            visit.wide(380)
            found += [f"{url}: {pixels} pixels wider than 380"] if (pixels := visit.overflow()) > 0 else []
    assert not found, "\n".join(found)
    assert cut >= 3


def heights_of(visit: Visit, url: str) -> dict[int, int]:
    """Return the height of a page at each width, or an empty list if the URL is not a page."""
    if status_of(visit, url) != 200:
        return {}
    found = {}
    for width in WIDTHS:
        visit.wide(width)
        found[width] = page_height(visit)
    return found


def page_height(visit: Visit) -> int:
    """Return the height of the page."""
    return int(visit.page.evaluate("document.documentElement.scrollHeight"))


@pytest.mark.nightly
@pytest.mark.parametrize("width", rest_at_night([1280, 1440], first=1))
def test_the_response_list_shows_its_figures(
    width: int, browser: Browser, web: WebProcess, named: TeamData, database: None
) -> None:
    with visiting(browser, web.url, person("team_lead", named.team)) as visit:
        visit.wide(width)
        visit.open(LIST)
        frame = visit.page.locator(".c-list-scroll")
        assert frame.evaluate("it => it.scrollWidth - it.clientWidth") == 0
        titles = ["Time", "Status", "Input", "Output", "Team", "Model", "Tokens", "Cost", "Duration", "First token"]
        for title in titles:
            header = visit.page.get_by_role("columnheader", name=title, exact=True)
            expect(header).to_be_in_viewport(ratio=1)
            assert header.evaluate("it => it.scrollWidth - it.clientWidth") == 0, f"{title} is cut"
        cut = visit.page.locator(":is(td.c-list-tokens, td.c-list-cost, td.c-list-duration, td.c-list-ttft)")
        assert (
            cut.evaluate_all("all => all.filter(it => it.scrollWidth > it.clientWidth).map(it => it.innerText)") == []
        )


def test_a_row_has_its_chosen_columns_and_its_items(
    browser: Browser, web: WebProcess, named: TeamData, database: None
) -> None:
    with visiting(browser, web.url, person("team_lead", named.team)) as visit:
        visit.wide(1280)
        visit.open(LIST)
        visit.page.get_by_text("Columns").click()
        visit.page.get_by_label("Tool calls").check()
        visit.page.get_by_label("First token").uncheck()
        visit.page.get_by_role("button", name="Apply").click()
        expect(visit.page.get_by_role("columnheader", name="Tool calls")).to_be_visible()
        expect(visit.page.get_by_role("columnheader", name="First token")).to_have_count(0)
        assert "period=30d" in visit.page.url
        row = visit.page.locator("#result_list tbody").first
        row.get_by_role("button", name="Show the items").press("Enter")
        expect(row.get_by_role("heading", name="Input")).to_be_visible()
        row.get_by_role("button", name="Show the items").press("Enter")
        expect(row.get_by_role("heading", name="Input")).to_be_hidden()
        assert visit.complaints == []


@pytest.mark.parametrize("period", rest_at_night(["30d", "1h", "24h", "7d"], first=1))
def test_labels_of_the_histogram_do_not_overlap(
    period: str, browser: Browser, web: WebProcess, named: TeamData, database: None
) -> None:
    with visiting(browser, web.url, person("team_lead", named.team)) as visit:
        for width in sampled(WIDTHS, 1, key=period):
            visit.wide(width)
            visit.open(f"/admin/responses/response/?period={period}")
            expect(visit.page.locator(".c-bars")).to_be_visible()
            assert visit.page.locator(".c-bars").evaluate(_OVERLAPS) == [], f"{period} at {width}"
            assert min(visit.page.locator(".c-bars .c-hit").evaluate_all(_WIDTHS)) >= 5


_OVERLAPS = """chart => {
  const frame = chart.getBoundingClientRect();
  const boxes = [...chart.querySelectorAll('.c-marks span')].map(it => it.getBoundingClientRect()).filter(b => b.width);
  return boxes.flatMap((box, i) => i && box.left < boxes[i - 1].right + 3 || box.right > frame.right + 1 ? [i] : []);
}"""
_CUT = "cells => cells.filter(it => it.scrollWidth > it.clientWidth).map(it => it.innerText)"
_WIDTHS = "bars => bars.map(it => it.getBoundingClientRect().width)"
