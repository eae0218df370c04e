"""First steps in Chromium: the first request arrives without a reload."""

from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, expect

from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import Visit, person, visiting
from tests.support.api import Caller, MakeCaller
from tests.support.upstream import Script
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1280, "light")])
def test_the_first_request_arrives_without_a_reload(
    width: int, scheme: Any, browser: Browser, web: WebProcess, script: Script, make_caller: MakeCaller, axe: str
) -> None:
    caller = make_caller()
    with visiting(browser, web.url, person("team_lead", caller.team), color_scheme=scheme, bypass_csp=True) as visit:
        visit.wide(width)
        visit.open("/admin/")
        expect(visit.page.get_by_role("heading", name="Get started in three steps")).to_be_visible()
        check(visit, axe)
        request(web, caller, script)
        expect(visit.page.get_by_role("heading", name="Your request arrived")).to_be_visible()
        expect(visit.page.get_by_role("status").get_by_text("Completed")).to_be_visible()
        check(visit, axe)
        visit.page.get_by_role("link", name="Go to Home").click()
        expect(visit.page.get_by_text("Latest responses")).to_be_visible()


def test_later_the_page_shows_only_new_requests(
    browser: Browser, web: WebProcess, script: Script, make_caller: MakeCaller
) -> None:
    caller = make_caller()
    old = request(web, caller, script)
    with visiting(browser, web.url, person("team_lead", caller.team)) as visit:
        visit.open("/admin/")
        visit.page.get_by_role("link", name="First steps", exact=True).click()
        expect(visit.page.get_by_text("Waiting for a request")).to_be_visible()
        new = request(web, caller, script)
        expect(visit.page.get_by_role("link", name=new)).to_be_visible()
        expect(visit.page.get_by_role("link", name=old)).to_have_count(0)
        assert visit.complaints == []


def request(web: WebProcess, caller: Caller, script: Script) -> str:
    """Send a request and return the id of its response."""
    script.say("84")
    client = OpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0)
    return client.responses.create(model=script.model, input="What is 12*7?").id


def check(visit: Visit, axe: str) -> None:
    """Assert that the page is not wider than the window and accessible."""
    assert visit.overflow() <= 0
    assert violations(visit, axe, visit.page.url) == []
