"""The admin in a real browser: common tasks of an administrator, and every page at three widths."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from conversations.models import Section
from responses.models import Response, Status
from tests.admin.rows import (
    add_call,
    add_events,
    add_items,
    add_response,
    add_turns,
    assistant_message,
    function_call_item,
    page_url,
    user_message,
)
from tests.browser.chromium import CHROMIUM, INSTALL, chromium
from tests.support.api import Caller
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess

PASSWORD = "correct horse battery"
WIDTHS = (380, 1280, 2560)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


@dataclass(kw_only=True)
class Visit:
    """A signed-in browser page; `complaints` are the errors and warnings of its console."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open a page and wait until it has loaded."""
        self.page.goto(self.url + path, wait_until="load")

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def listen(self, message: ConsoleMessage) -> None:
        """Record errors and warnings."""
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{self.page.url}: {message.text}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    with pytest.MonkeyPatch.context() as patch, chromium() as running:
        # Playwright keeps an idle event loop in this thread; Django would refuse database access because of it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield running


@pytest.fixture
def visit(browser: Browser, web: WebProcess, database: None) -> Iterator[Visit]:
    """An administrator who has just signed in. Fails if the console has errors or warnings."""
    name = f"admin-{uuid.uuid4().hex}"
    User.objects.create_superuser(name, password=PASSWORD)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE * 1000)
    visit = Visit(page=context.new_page(), url=web.url)
    visit.page.on("console", visit.listen)
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.open("/admin/login/")
    visit.page.get_by_label("Username").fill(name)
    visit.page.get_by_label("Password").fill(PASSWORD)
    visit.page.get_by_role("button", name="Log in").click()
    expect(visit.page.get_by_role("heading", name="Home")).to_be_visible()
    yield visit
    context.close()
    assert visit.complaints == []


@pytest.fixture
def response(caller: Caller) -> Response:
    """A failed response with items, calls, turns and events."""
    error = {"code": "server_error", "message": "The upstream broke. " * 20}
    made = add_response(
        caller, status=Status.FAILED, error=error, error_code="server_error", input_preview="word " * 24, model="m" * 60
    )
    add_items(made, Section.INPUT, user_message("Where is my parcel? " * 30), user_message("x" * 3000))
    add_items(
        made,
        Section.OUTPUT,
        function_call_item("look_up_order", '{"order": "' + "9" * 500 + '"}'),
        assistant_message("It left.\n\nSoon."),
    )
    add_call(made, name="look_up_order", output="shipped " * 100)
    add_turns(made, 2)
    add_events(made, 40)
    return made


@pytest.mark.nightly
def test_long_contents_of_a_response_do_not_widen_its_page(visit: Visit, response: Response) -> None:
    wide = {}
    visit.open(page_url(response))
    for width in WIDTHS:
        visit.page.set_viewport_size({"width": width, "height": 900})
        wide[width] = visit.overflow()
    assert {width: pixels for width, pixels in wide.items() if pixels > 0} == {}


@pytest.mark.nightly
def test_dark_mode_has_a_dark_background(visit: Visit, response: Response) -> None:
    visit.page.emulate_media(color_scheme="dark")
    for path in ("/admin/", page_url(response)):
        visit.open(path)
        background = visit.page.evaluate("getComputedStyle(document.querySelector('#main')).backgroundColor")
        assert float(re.findall(r"[\d.]+", background)[0]) < 0.3, background


def row_link(visit: Visit, response: Response) -> Locator:
    """Return the link to a response in the list."""
    return visit.page.locator(f"#result_list a[href*='{response.pk}']").first


def test_a_response_is_found_by_id_and_shows_its_tabs(visit: Visit, response: Response) -> None:
    visit.page.get_by_role("link", name=re.compile("Responses$")).click()
    visit.page.locator("#searchbar").fill(response.pk)
    visit.page.keyboard.press("Enter")
    row_link(visit, response).click()
    expect(visit.page.get_by_role("alert")).to_contain_text("The upstream broke.")
    expect(visit.page.get_by_text("It left.", exact=True)).to_be_visible()
    visit.page.get_by_role("tab", name="Timeline").click()
    expect(visit.page.get_by_text("Turn 2")).to_be_visible()


@pytest.mark.nightly
def test_the_copy_button_copies_the_id(visit: Visit, response: Response) -> None:
    visit.open(page_url(response))
    visit.page.get_by_role("button", name=f"Copy {response.pk}").click()
    assert eventually(lambda: visit.page.evaluate("navigator.clipboard.readText()")) == response.pk


@pytest.mark.nightly
def test_filters_apply_to_the_list_of_responses(visit: Visit, response: Response, caller: Caller) -> None:
    other = add_response(caller)
    visit.open("/admin/responses/response/?period=1h")
    visit.page.locator("#changelist-filter summary").click()
    visit.page.locator("input[name=error_code]").fill("server_error")
    visit.page.get_by_role("button", name="Apply filters").click()
    expect(row_link(visit, response)).to_be_visible()
    expect(row_link(visit, other)).to_have_count(0)


def test_a_key_is_created_copied_used_and_revoked(visit: Visit, caller: Caller) -> None:
    visit.open("/admin/tenants/apikey/add/")
    visit.page.get_by_role("combobox", name="Team").select_option(label=caller.team.name)
    visit.page.get_by_label("Name").fill("checkout")
    visit.page.get_by_role("button", name="Create key").click()
    visit.page.get_by_role("button", name="Copy", exact=True).click()
    expect(visit.page.get_by_role("button", name="Copied")).to_be_visible()
    secret = eventually(lambda: visit.page.evaluate("navigator.clipboard.readText()"))
    assert visit.page.locator("#secret").inner_text() == secret
    assert models(visit.url, secret) == 200

    visit.page.reload()
    expect(visit.page.get_by_text("ACTIVE", exact=False).first).to_be_visible()
    assert secret not in visit.page.content()

    visit.page.get_by_role("link", name=re.compile("Revoke")).click()
    visit.page.get_by_role("button", name="Revoke key").click()
    expect(visit.page.get_by_text("was revoked.")).to_be_visible()
    eventually(lambda: models(visit.url, secret) == 401)


def models(url: str, secret: str) -> int:
    """Return the status of an API request with this key."""
    return httpx2.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {secret}"}, timeout=PATIENCE).status_code
