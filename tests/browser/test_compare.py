"""Comparison of two responses in Chromium: from Home by click and by keyboard, on a phone, and without violations."""

from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from conversations.models import Section
from core.clock import now
from responses.models import Response, Status
from tests.admin.rows import add_items, add_response, add_turns, assistant_message, function_call_item, user_message
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import DEVICES, Device, Keyboard
from tests.browser.visiting import person, visiting
from tests.support.api import Caller
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
_UNBROKEN = "Unbroken" * 60


@pytest.fixture
def pair(team: Caller) -> tuple[Response, Response]:
    """A good run, and the latest response of the team: a failed run with the same input."""
    instructions = {"instructions": f"Be brief. {_UNBROKEN}", "tools": [{"type": "function", "name": _UNBROKEN[:64]}]}
    options = {"sent": ["instructions", "temperature"], "include": []}
    common: dict[str, Any] = {"options": options, "input_preview": "Where is the parcel?", "model": "compared"}
    at = now() - timedelta(seconds=30)
    good = add_response(team, parameters={**instructions, "temperature": 0.2}, created_at=at, **common)
    bad = add_response(
        team,
        parameters={**instructions, "temperature": 1.5},
        status=Status.FAILED,
        error={"code": "server_error", "message": "The upstream failed."},
        error_code="server_error",
        **common,
    )
    for response, city in ((good, "Lisbon"), (bad, "Berlin")):
        add_items(response, Section.INPUT, *(user_message(f"Question {number}") for number in range(40)))
        add_items(response, Section.OUTPUT, function_call_item("look_up", f'{{"city": "{city}"}}'))
        add_turns(response, 1)
    add_items(good, Section.OUTPUT, assistant_message(_UNBROKEN))
    return good, bad


def comparison(left: Response, right: Response) -> str:
    return f"/admin/compare/?a={left.pk}&b={right.pk}"


@pytest.mark.parametrize("device_type", DEVICES)
def test_the_comparison_with_a_good_run_is_at_most_four_clicks_from_home(
    device_type: type[Device], browser: Browser, web: WebProcess, team: Caller, pair: tuple[Response, Response]
) -> None:
    good, bad = pair
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        device, page = device_type(visit), visit.page
        visit.open("/admin/")
        device.press(page.get_by_role("link", name="Errors").first)
        device.open_row(page.locator(f'#result_list a[href*="{bad.pk}"]').first)
        device.press(page.get_by_role("link", name="Compare with…"))
        device.press(page.get_by_role("link", name="Good run with the same input"))
        expect(page).to_have_url(f"{web.url}{comparison(bad, good)}#first-difference")
        first = page.locator("#first-difference")
        expect(first).to_be_in_viewport()
        expect(first).to_contain_text("First difference")
        expect(first.locator("mark").first).to_have_text("Berlin")
        assert device.clicks <= 4
        assert visit.complaints == []


def test_two_rows_of_the_list_are_compared(
    browser: Browser, web: WebProcess, team: Caller, pair: tuple[Response, Response]
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        page = visit.page
        visit.open("/admin/responses/response/?period=1h&model=compared")
        for response in pair:
            page.locator(f'input[name=_selected_action][value="{response.pk}"]').check()
        page.locator("select[name=action]").select_option(label="Compare")
        page.get_by_role("button", name="Run").click()
        expect(page).to_have_url(f"{web.url}{comparison(*pair)}#first-difference")
        expect(page.locator("#first-difference")).to_be_in_viewport()


def test_the_comparison_needs_only_the_keyboard(
    browser: Browser, web: WebProcess, team: Caller, pair: tuple[Response, Response]
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        page = visit.page
        visit.open(comparison(*pair))
        Keyboard(visit).press(page.get_by_role("link", name="Go to the first difference"))
        expect(page.locator("#first-difference")).to_be_in_viewport()
        # The next Tab stop is in the first difference.
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#difference-2")).to_be_in_viewport()
        assert page.url.endswith("#difference-2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_and_are_accessible(
    scheme: Any, axe: str, browser: Browser, web: WebProcess, team: Caller, pair: tuple[Response, Response]
) -> None:
    good, bad = pair
    found = []
    with visiting(browser, web.url, person("team_lead", team.team), color_scheme=scheme, bypass_csp=True) as visit:
        for width in (380, 1280):
            visit.wide(width)
            for url in (comparison(good, bad), f"/admin/compare/?a={bad.pk}", "/admin/compare/"):
                assert visit.open(url) == 200
                found += violations(visit, axe, url)
                if (pixels := visit.overflow()) > 0:
                    found.append(f"{url}: {pixels} pixels wider than {width}")
        found += visit.complaints
    assert not found, "\n".join(found)
