"""Model routes in a real browser, wide and narrow: the page refreshes itself, and targets are drained with a click."""

import pytest
from playwright.sync_api import Browser, expect

from tenants.models import Model
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import person, visiting
from tests.support.api import Api, ok
from tests.support.targets import Targets, post
from tests.support.upstream import refusal
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


@pytest.mark.parametrize("width", [380, 1280])
def test_a_target_is_drained_and_resumed_at_any_width(
    width: int, browser: Browser, web: WebProcess, api: Api, targets: Targets
) -> None:
    first, second = targets.add(weight=2), targets.add()
    targets.add(name=f"{targets.name}-with-a-long-name-that-has-no-space-in-it", fallback_for=targets.name)
    first.then(refusal(401, "Wrong key."))
    second.say("Hello")
    with visiting(browser, web.url, person("operator")) as visit:
        visit.wide(width)
        visit.open("/admin/routes/")
        card = visit.page.locator("section", has=visit.page.get_by_role("heading", name=targets.name, exact=True))
        ok(post(api, "/responses", targets.name))
        # The page refreshes itself.
        expect(card.get_by_text("HTTP 401")).to_be_visible()
        assert visit.overflow() <= 0
        card.get_by_role("button", name=f"Drain up-{first.model}").click()
        expect(card.get_by_role("button", name=f"Resume up-{first.model}")).to_be_visible()
        assert visit.overflow() <= 0
        card.get_by_role("button", name=f"Resume up-{first.model}").click()
        expect(card.get_by_role("button", name=f"Drain up-{first.model}")).to_be_visible()
        assert visit.complaints == []
    assert Model.objects.get(upstream__name=f"up-{first.model}").weight == 2
