"""The console needs no `unsafe-eval`: no page violates its Content-Security-Policy, and everything reacts to clicks.

`test_every_page` opens the pages of the console themselves.
"""

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from responses.models import PromptTemplate
from tenants import scope, services
from tenants.models import ApiKey
from tests.admin.crawling import TeamData
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.test_every_page import KEY_PAGES, addressed, status_of
from tests.browser.visiting import Visit, person, visiting
from tests.support.waiting import eventually
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
SIGNED_OUT = ("/account/login/", "/account/signup/", "/account/inactive/", "/account/providers/error/", "/unknown/")
ACCOUNT = (
    "/account/password/change/",
    "/account/2fa/",
    "/account/2fa/totp/activate/",
    "/account/2fa/webauthn/",
    "/account/2fa/webauthn/add/",
    "/account/sessions/",
    "/account/providers/",
)


@pytest.mark.nightly
def test_no_account_page_violates_its_content_security_policy(
    browser: Browser, web: WebProcess, database: None
) -> None:
    opened = 0
    with visiting(browser, web.url) as visit:
        for path in SIGNED_OUT:
            opened += visit.open(path) == 200
    problems = scripts(visit)
    with visiting(browser, web.url, person("administrator")) as visit:
        for path in ACCOUNT:
            opened += status_of(visit, path) == 200
    problems += scripts(visit)
    assert not problems, "\n".join(problems)
    assert opened > 8


def scripts(visit: Visit) -> list[str]:
    """Return the console errors about scripts, because pages that this user may not open cause other errors."""
    return [complaint for complaint in visit.complaints if "Failed to load resource" not in complaint]


@pytest.fixture
def visit(browser: Browser, web: WebProcess, subject: TeamData, database: None) -> Iterator[Visit]:
    """A browser of an administrator. Fails if the console has errors."""
    with visiting(browser, web.url, person("administrator")) as visit:
        visit.wide(1440)
        yield visit
        assert visit.complaints == []


@pytest.mark.nightly
def test_a_chosen_theme_is_kept(visit: Visit) -> None:
    page, root = visit.page, visit.page.locator("html")
    visit.open("/admin/tenants/team/")
    page.locator("#nav-sidebar").get_by_text("unfold_more").click()
    page.locator("a", has_text="Dark").click()
    expect(root).to_have_class("dark")
    page.reload()
    expect(root).to_have_class("dark")
    page.keyboard.press("Control+e")
    expect(root).to_have_class("light")


@pytest.mark.nightly
def test_the_sign_in_page_has_a_switch_for_the_theme(browser: Browser, web: WebProcess) -> None:
    with visiting(browser, web.url) as visit:
        visit.open("/account/login/")
        visit.page.get_by_text("computer", exact=True).first.click()
        visit.page.locator("nav a", has_text="Dark").click()
        expect(visit.page.locator("html")).to_have_class("dark")
        assert visit.complaints == []


@pytest.mark.nightly
def test_a_hidden_sidebar_stays_hidden(visit: Visit) -> None:
    sidebar, switches = visit.page.locator("#nav-sidebar"), visit.page.get_by_text("dock_to_right")
    visit.open("/admin/tenants/team/")
    switches.first.click()
    expect(sidebar).to_be_hidden()
    visit.page.reload()
    expect(sidebar).to_be_hidden()
    switches.first.click()
    expect(sidebar).to_be_visible()
    visit.wide(380)
    expect(sidebar).to_be_hidden()
    switches.last.click()
    expect(sidebar).to_be_visible()


@pytest.mark.nightly
def test_the_command_palette_opens_a_page(visit: Visit) -> None:
    page = visit.page
    field = page.locator("#search-input-command")
    visit.open("/admin/tenants/team/")
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()
    page.get_by_text("Go to a page or an ID").click()
    field.fill("usage records")
    page.keyboard.press("End")
    expect(page.locator("#command-results-list li").first).to_contain_text("Usage records")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/tenants/usagerecord/")


def test_a_list_reacts_to_keys_filters_and_selected_rows(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/responses/response/?period=30d")
    page.keyboard.press("/")
    expect(page.locator("#searchbar")).to_be_focused()
    page.locator("#changelist-filter summary").click()
    expect(page.locator("#filter-form")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#filter-form")).to_be_hidden()

    actions, run = page.locator("#changelist-actions"), page.get_by_role("button", name="Run")
    expect(actions).to_be_hidden()
    page.locator("#result_list .action-select").first.check()
    expect(actions).to_be_visible()
    expect(run).to_be_hidden()
    page.get_by_label("Select action to run").select_option(index=1)
    expect(run).to_be_visible()


@pytest.mark.nightly
def test_actions_of_a_row_are_in_a_menu_beside_it(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/tenants/apikey/")
    button = page.get_by_role("button", name="Actions").first
    button.click()
    revoke = page.locator(".c-row-actions:popover-open a", has_text="Revoke")
    expect(revoke).to_be_visible()
    eventually(lambda: 0 < top(revoke) - top(button) < 100)
    page.get_by_role("heading").first.click()
    expect(revoke).to_be_hidden()


def top(shown: Locator) -> float:
    """Return how far an element is from the top of the window."""
    box = shown.bounding_box()
    assert box is not None
    return box["y"]


@pytest.mark.nightly
def test_actions_of_a_page_are_in_a_menu_on_narrow_screens(visit: Visit, subject: TeamData) -> None:
    key = subject.rows[ApiKey][0]
    visit.open(f"/admin/tenants/apikey/{key.pk}/change/")
    revoke = visit.page.get_by_role("link", name="Revoke").first
    expect(revoke).to_be_visible()
    visit.wide(800)
    expect(revoke).to_be_hidden()
    visit.page.locator("a", has_text="more_horiz").first.click()
    expect(revoke).to_be_visible()


def test_parts_of_a_response_can_be_copied_and_shown_raw(visit: Visit, subject: TeamData) -> None:
    page = visit.page
    visit.open(addressed(KEY_PAGES["response"], subject))
    link = page.locator("a", has_text="Copy link")
    address = link.get_attribute("href")
    link.click()
    eventually(lambda: clipboard(page) == address)
    expect(link).to_be_visible()  # it says "Copied" for a moment
    message = page.locator("article[x-data]").first
    message.get_by_role("button", name="Raw text").click()
    expect(message).to_have_attribute("data-raw", "true")


def clipboard(page: Page) -> str:
    """Return the text in the clipboard."""
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.nightly
def test_without_a_clipboard_the_text_is_selected(visit: Visit, subject: TeamData) -> None:
    page = visit.page
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    path = addressed(KEY_PAGES["response"], subject)
    visit.open(path)
    response_id = path.split("/")[-3]
    page.get_by_role("button", name=f"Copy {response_id}").click()
    page.wait_for_function("() => getSelection().toString()")
    assert page.evaluate("getSelection().toString()") == response_id


def test_the_key_form_shows_the_fields_of_the_chosen_options(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/tenants/apikey/add/")
    scopes = page.locator(".c-scopes")
    page.locator(".c-preset input:not([value=custom])").first.check()
    expect(scopes).to_be_hidden()
    page.locator(".c-preset input[value=custom]").check()
    expect(scopes).to_be_visible()
    expires = page.locator("[name=expires_on]")
    expect(expires).to_be_hidden()
    page.locator("[name=lifetime]").select_option("custom")
    expect(expires).to_be_visible()


@pytest.mark.nightly
def test_the_first_steps_can_be_copied(browser: Browser, web: WebProcess, database: None) -> None:
    team = services.create_team(name=f"New {uuid.uuid4().hex[:6]}", actor="system")
    with visiting(browser, web.url, person("team_lead", team)) as visit:
        visit.open("/admin/")
        visit.page.get_by_role("button", name="Copy", exact=True).click()
        eventually(lambda: clipboard(visit.page).startswith("curl "))
        assert visit.complaints == []


@pytest.mark.nightly
def test_a_form_is_sent_to_its_own_address(visit: Visit) -> None:
    path = "/admin/responses/prompttemplate/add/?name=greeting"
    visit.open(path)
    expect(visit.page.locator("#prompttemplate_form")).to_have_attribute("action", path)


@pytest.mark.nightly
def test_page_numbers_are_links(browser: Browser, web: WebProcess, database: None) -> None:
    team = services.create_team(name=f"Prompts {uuid.uuid4().hex[:6]}", actor="system")
    with scope.team(team.pk):
        PromptTemplate.objects.bulk_create(
            PromptTemplate(id=f"pmpt_{uuid.uuid4().hex}", team=team, name=f"prompt {number}") for number in range(101)
        )
    with visiting(browser, web.url, person("team_lead", team)) as visit:
        visit.open("/admin/responses/prompttemplate/#list")
        visit.page.get_by_role("link", name="2", exact=True).click()
        visit.page.wait_for_url(re.compile(r"\?p=2#list$"))
        assert visit.complaints == []
