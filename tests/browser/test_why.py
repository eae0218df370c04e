"""Why did it fail, why did it cost more, what is slow: each answer is at most two clicks from Home.

Each is found with a mouse and with the keyboard alone.
"""

from datetime import timedelta
from decimal import Decimal

import pytest
from playwright.sync_api import Browser, expect

from core.clock import now
from responses.models import Response, Status, Turn
from tenants import scope
from tests.admin.rows import add_call, add_response, add_usage
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import DEVICES, Device
from tests.browser.visiting import person, visiting
from tests.support.api import Caller
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
HOME = "/admin/"
WORDS = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def failed(team: Caller) -> Response:
    """The latest failed response, whose upstream has answered with its own words."""
    error = {"code": "server_error", "message": "The model's server failed (HTTP 500)."}
    response = add_response(team, status=Status.FAILED, error=error, error_code="server_error", model="big-model")
    detail = {"cause": "HTTP 500", "address": "http://10.0.0.7:8000/v1/chat/completions", "status": 500, "body": WORDS}
    span = {"activity": "attempt", "name": "Request 1", "began": 5, "ended": 90, "state": "failed", "detail": detail}
    at = response.created_at
    with scope.team(team.team.pk):
        Turn.objects.create(
            team_id=team.team.pk, response_id=response.pk, number=0, state="failed", started_at=at, ended_at=at,
            spans=[span],
        )  # fmt: skip
    return response


@pytest.mark.parametrize("device_type", DEVICES)
def test_the_reason_of_a_failure_is_at_most_two_clicks_from_home(
    device_type: type[Device], web: WebProcess, browser: Browser, failed: Response
) -> None:
    with visiting(browser, web.url, person("operator")) as visit:
        device = device_type(visit)
        visit.open(HOME)
        device.press(visit.page.get_by_role("link", name="Errors").first)
        device.open_row(visit.page.locator(f'#result_list a[href*="{failed.pk}"]').first)
        expect(visit.page.get_by_role("alert")).to_contain_text(WORDS)
        assert device.clicks <= 2
        assert visit.complaints == []


def test_the_upstreams_own_words_are_one_click_from_home(
    web: WebProcess, browser: Browser, failed: Response, axe: str
) -> None:
    with visiting(browser, web.url, person("operator"), bypass_csp=True) as visit:
        visit.open(HOME)
        visit.page.get_by_role("region", name="Latest failures").get_by_role("link", name="server_error").first.click()
        alert = visit.page.get_by_role("alert")
        expect(alert).to_contain_text(WORDS)
        expect(alert).to_contain_text("10.0.0.7:8000")
        for width in (380, 1280):
            visit.wide(width)
            assert visit.overflow() <= 0, width
        assert violations(visit, axe, "page") == []
        assert visit.complaints == []


@pytest.mark.parametrize("device_type", DEVICES)
def test_the_slowest_tool_of_the_day_is_at_most_two_clicks_from_home(
    device_type: type[Device], web: WebProcess, browser: Browser, team: Caller
) -> None:
    response, at = add_response(team), now()
    add_call(response, name="slowest_of_all", call_id="c1", started_at=at - timedelta(minutes=90), ended_at=at)
    with visiting(browser, web.url, person("operator")) as visit:
        device = device_type(visit)
        visit.open(HOME)
        device.open_page("t", visit.page.locator("#nav-sidebar").get_by_role("link", name="Tool calls"))
        device.press(visit.page.get_by_role("link", name="Sort by p95"))
        table = visit.page.get_by_role("region", name="Tools", exact=True).get_by_role("table")
        expect(table.get_by_role("row").nth(1)).to_contain_text("slowest_of_all")
        expect(table.get_by_role("columnheader", name="p95")).to_have_attribute("aria-sort", "descending")
        assert device.clicks <= 2
        assert visit.complaints == []


@pytest.mark.parametrize("device_type", DEVICES)
def test_why_yesterday_cost_more_is_at_most_two_clicks_from_home(
    device_type: type[Device], web: WebProcess, browser: Browser, team: Caller, axe: str
) -> None:
    yesterday = (now() - timedelta(days=1)).replace(hour=12)
    add_usage(team, occurred_at=yesterday, cost=Decimal(900), model="model-that-cost-more")
    with visiting(browser, web.url, person("operator"), bypass_csp=True) as visit:
        device = device_type(visit)
        visit.open(HOME)
        tiles = visit.page.get_by_role("region", name="Activity in this period")
        device.press(tiles.get_by_role("link", name="Cost").first)
        device.press(visit.page.get_by_role("link", name="Yesterday"))
        table = visit.page.get_by_role("region", name="Change by Model")
        expect(table.get_by_role("row").nth(1)).to_contain_text("model-that-cost-more")
        assert device.clicks <= 2
        for width in (380, 1280):
            visit.wide(width)
            assert visit.overflow() <= 0, width
        assert violations(visit, axe, "page") == []
        assert visit.complaints == []
