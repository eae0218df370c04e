"""JSON as a tree: fold, search and copy the path by keyboard, megabytes of it, and as text without scripts."""

import time
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from conversations.models import Section
from responses.models import Response, ToolCall
from responses.webhooks.models import WebhookDelivery
from tenants import scope
from tests.admin.rows import add_call, add_items, add_response, function_call_item, page_url, user_message
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import person, visiting
from tests.support.api import Caller
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
ARGUMENTS = '{"city": "Lisbon", "days": [1, 2, {"a b": null}], "note": "<img src=x onerror=alert(1)>"}'


@pytest.fixture
def response(team: Caller) -> Response:
    """A response with a tool call."""
    made = add_response(team, parameters={"instructions": "Be brief."}, options={"sent": [], "include": []})
    add_items(made, Section.INPUT, user_message("Where is the parcel?"))
    add_items(made, Section.OUTPUT, function_call_item("look_up", ARGUMENTS))
    add_call(made, name="look_up", arguments=ARGUMENTS)
    return made


def test_a_document_is_folded_searched_and_copied_by_keyboard(
    browser: Browser, web: WebProcess, team: Caller, response: Response
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        page = visit.page
        visit.open(page_url(response, tab="request"))
        tree = page.get_by_role("tree")
        root = tree.get_by_role("treeitem").first
        expect(root).to_have_attribute("aria-expanded", "true")
        root.focus()
        page.keyboard.press("ArrowLeft")
        expect(root).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        expect(page.locator(":focus")).to_contain_text("instructions")
        page.get_by_role("searchbox", name="Search the JSON").fill("PARCEL")
        expect(page.get_by_text("1 match")).to_be_visible()
        page.keyboard.press("Enter")
        expect(tree.locator(".is-match")).to_contain_text("Where is the parcel?")
        page.get_by_role("button", name="Copy path").press("Enter")
        expect(page.get_by_text("Copied input[0].content[0].text")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "input[0].content[0].text"
        page.get_by_role("button", name="Text", exact=True).click()
        expect(page.locator("pre").filter(has_text="Where is the parcel?")).to_be_visible()
        expect(tree).to_be_hidden()
        assert visit.complaints == []


def test_arguments_of_tools_and_bodies_of_webhooks_are_trees(
    browser: Browser, web: WebProcess, team: Caller, response: Response
) -> None:
    with scope.team(team.team.pk):
        call = ToolCall.objects.get(response=response)
        delivery = WebhookDelivery.objects.filter(team=team.team).first()
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        page = visit.page
        visit.open(f"/admin/responses/toolcall/{call.pk}/change/")
        expect(page.get_by_role("tree").first).to_contain_text("Lisbon")
        visit.open(page_url(response))
        page.get_by_role("button", name="Show as a tree").first.click()
        expect(page.get_by_role("tree")).to_contain_text("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Open all").click()
        expect(page.get_by_role("tree")).to_contain_text("a b: null")
        if delivery is not None:
            visit.open(f"/admin/responses/webhookdelivery/{delivery.pk}/change/")
            expect(page.get_by_role("tree").first).to_contain_text(delivery.event_type)
        assert visit.complaints == []


def test_megabytes_do_not_freeze_the_page(browser: Browser, web: WebProcess, team: Caller, response: Response) -> None:
    add_items(response, Section.OUTPUT, *(function_call_item("f", f'{{"n": "{"x" * 4000}{n}"}}') for n in range(900)))
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        page = visit.page
        visit.open(page_url(response, tab="response"))
        page.get_by_role("link", name="Load", exact=True).click()
        tree = page.get_by_role("tree")
        expect(tree).to_be_visible()
        assert tree.locator("li").count() < 200
        page.evaluate(_WATCH_FRAMES)
        page.get_by_role("searchbox", name="Search the JSON").fill("x899")
        expect(page.get_by_text("1 match", exact=True)).to_be_visible()
        started = time.perf_counter()
        page.keyboard.press("Enter")
        expect(tree.locator(".is-match")).to_contain_text("arguments")
        assert time.perf_counter() - started < 10
        assert page.evaluate("window.longestFrame") < 2000
        assert visit.complaints == []


def test_the_text_is_shown_without_scripts(browser: Browser, web: WebProcess, team: Caller, response: Response) -> None:
    lead = person("team_lead", team.team)
    with visiting(browser, web.url, lead, java_script_enabled=False) as visit:
        visit.open(page_url(response, tab="request"))
        expect(visit.page.locator("pre").filter(has_text="Where is the parcel?")).to_be_visible()
        expect(visit.page.get_by_role("tree")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_trees_fit_and_are_accessible(
    scheme: Any, axe: str, browser: Browser, web: WebProcess, team: Caller, response: Response
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team), color_scheme=scheme, bypass_csp=True) as visit:
        visit.wide(380)
        visit.open(page_url(response, tab="request"))
        visit.page.get_by_role("button", name="Open all").click()
        assert violations(visit, axe, "tree") == []
        assert visit.overflow() <= 0


# Record the longest time between two frames.
_WATCH_FRAMES = """() => {
  window.longestFrame = 0;
  let last = performance.now();
  const frame = (at) => {
    window.longestFrame = Math.max(window.longestFrame, at - last);
    last = at;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
