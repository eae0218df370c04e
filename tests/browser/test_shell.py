"""Frame of the console's pages in a browser: skip link, sidebar, filters and keyboard shortcuts."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.crawling import TeamData
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import Visit, person, visiting
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
RESPONSES = "/admin/responses/response/?period=30d"


@pytest.fixture
def visit(browser: Browser, web: WebProcess, subject: TeamData, database: None) -> Iterator[Visit]:
    """A browser of an administrator. Fails if the console has errors."""
    with visiting(browser, web.url, person("administrator")) as visit:
        visit.wide(1280)
        yield visit
        assert visit.complaints == []


def test_the_first_key_skips_to_the_content(visit: Visit) -> None:
    visit.open(RESPONSES)
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Skip to content")).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("main")).to_be_focused()
    # The window shows the beginning of the content.
    top = visit.page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 <= top < visit.page.evaluate("innerHeight") / 2
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.closest('main') !== null")


def test_few_elements_precede_the_content(visit: Visit) -> None:
    visit.open("/admin/tenants/team/")
    pressed = 0
    while not visit.page.evaluate("document.activeElement.closest('main') !== null"):
        visit.page.keyboard.press("Tab")
        pressed += 1
        assert pressed <= 20


def test_rows_are_used_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.open(RESPONSES)
    rows = page.locator("#result_list tbody > tr:first-child")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".c-current-row")).to_have_count(1)
    expect(rows.nth(1)).to_have_class("c-current-row")
    page.keyboard.press("x")
    expect(rows.nth(1).locator(".action-select")).to_be_checked()
    page.keyboard.press("/")
    page.keyboard.type("jj?")
    expect(page.locator("#searchbar")).to_have_value("jj?")
    expect(page.locator("#shortcuts")).to_be_hidden()
    rows.nth(0).locator(".c-list-time a").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/responses/response/resp_*/change/**")


def test_shortcuts_are_listed_and_open_pages(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/tenants/team/")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_be_visible()
    expect(dialog.locator("[data-shortcut-pages] div").filter(has_text="Responses")).to_contain_text("g r")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_url("**/admin/")


def test_a_chart_is_one_stop_of_the_tab_key(visit: Visit) -> None:
    page = visit.page
    # A chart of today has a single bar in the first hour of the day.
    visit.open("/admin/?span=7d")
    bars = page.locator(".c-plot svg").first.locator("[tabindex]")
    assert bars.count() > 2
    # From a link before the chart, without all stops of the page.
    page.get_by_role("link", name="View details").first.focus()
    page.keyboard.press("Tab")
    expect(bars.nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(bars.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(bars.last).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.c-plot') === null")
    page.keyboard.press("Shift+Tab")
    expect(bars.last).to_be_focused()


def test_groups_of_the_sidebar_stay_as_they_were_left(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/")
    files = page.locator("#nav-sidebar").get_by_role("link", name="Files")
    expect(files).to_be_hidden()
    page.locator("#nav-sidebar summary", has_text="Build").click()
    page.locator("#nav-sidebar summary", has_text="Activity").click()
    expect(files).to_be_visible()
    visit.open("/admin/tenants/apikey/")
    expect(files).to_be_visible()
    expect(page.locator("#nav-sidebar").get_by_role("link", name="Tool calls")).to_be_hidden()
    expect(page.locator("#nav-sidebar").get_by_role("link", name="API keys")).to_be_visible()


def test_filters_are_set_in_a_panel_and_removed_by_their_chips(visit: Visit, subject: TeamData) -> None:
    page = visit.page
    visit.open(RESPONSES)
    panel = page.locator("#changelist-filter")
    panel.locator("summary").click()
    # Teams are searched on the server, by scripts that only the open panel loads.
    expect(panel.locator(".select2-container").first).to_be_visible()
    panel.get_by_label("Model").fill("no-such-model")
    panel.get_by_role("button", name="Apply filters").click()
    expect(page.get_by_role("heading", name="No responses match")).to_be_visible()
    page.get_by_role("link", name="Remove the filter Model").click()
    expect(page.locator(".c-filter-chips")).to_have_count(0)
    expect(page.locator("#result_list tbody").first).to_be_visible()


def test_the_field_to_fill_in_has_the_focus(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/search-text/")
    assert page.evaluate("document.activeElement.name") == "q"
    visit.open("/admin/tenants/team/add/")
    # The browser would refuse an empty name before the server does.
    page.locator("form[id]:has(#id_name)").evaluate("form => { form.noValidate = true; }")
    page.locator("[name=_save]").click()
    expect(page.get_by_text("This field is required.").first).to_be_visible()
    assert page.evaluate("document.activeElement.matches('[aria-invalid=true]')")
