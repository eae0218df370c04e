"""The page of a route in a real browser, wide and narrow, by mouse and by keyboard, with and without scripts."""

import pytest
from playwright.sync_api import Browser, Locator, expect

from tenants.models import Model, Upstream
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import Visit, person, visiting
from tests.support.chunks import calls
from tests.support.targets import Targets
from tests.support.upstream import Script, refusal, stream
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


def opened(visit: Visit, targets: Targets) -> None:
    """Open the page of the model, coming from the list of routes."""
    visit.open("/admin/routes/")
    visit.page.get_by_role("link", name=f"Edit the route of {targets.name}", exact=True).click()
    expect(visit.page.get_by_role("button", name="Save")).to_be_visible()


def target(visit: Visit, script: Script) -> Locator:
    """Return a target on the page."""
    return visit.page.locator("[data-route-target]", has=visit.page.get_by_role("link", name=f"up-{script.model}"))


def priorities(targets: Targets) -> list[int]:
    """Return the stored priorities of the targets."""
    servers = [Upstream.objects.get(name=f"up-{script.model}") for script in targets.scripts]
    return [Model.objects.get(upstream=server).priority for server in servers]


@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_route_is_edited_tested_and_saved(
    width: int, scheme: str, axe: str, browser: Browser, web: WebProcess, targets: Targets
) -> None:
    first, second = targets.two()
    third = targets.add()
    long = f"{targets.name}-with-a-long-name-that-has-no-space-in-it"
    targets.add(name=long)
    for script in (first, second):
        script.always(stream(*calls(add_numbers="{}")))
    third.always(refusal(400, "A-message-of-a-server-without-a-space-" * 8))
    options = {"color_scheme": scheme, "bypass_csp": True}
    with visiting(browser, web.url, person("operator"), **options) as visit:
        visit.wide(width)
        opened(visit, targets)
        page = visit.page
        page.get_by_role("button", name=f"Move up-{second.model} up").click()
        expect(page.get_by_role("status").first).to_contain_text("50 % of new requests")
        target(visit, first).get_by_label("Weight").fill("3")
        target(visit, first).get_by_label("Weight").press("Tab")
        expect(page.get_by_role("status").first).to_contain_text(f"75 % of new requests go to up-{first.model}")
        page.locator("#add_fallback").select_option(long)
        page.get_by_role("button", name="Add fallback model").click()
        expect(page.get_by_role("status").first).to_contain_text(f"then fallback model {long}")
        page.get_by_role("button", name="Test", exact=True).click()
        expect(target(visit, third)).to_contain_text("HTTP 400: A-message-of-a-server")
        expect(target(visit, first)).to_contain_text("Streaming passed")
        assert visit.overflow() <= 0
        assert violations(visit, axe, "route") == []
        assert priorities(targets)[:3] == [0, 1, 2]
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text(f"The route of {targets.name} was saved.")).to_be_visible()
        assert priorities(targets)[:3] == [0, 0, 2]
        assert visit.overflow() <= 0
        assert visit.complaints == []


def test_targets_are_dragged_between_priorities(browser: Browser, web: WebProcess, targets: Targets) -> None:
    first, second = targets.two()
    with visiting(browser, web.url, person("operator")) as visit:
        visit.wide(1280)
        opened(visit, targets)
        page = visit.page
        handle = target(visit, second).locator("[data-route-handle]")
        handle.drag_to(page.locator('[data-route-drop="join:0"]'))
        expect(page.get_by_role("status").first).to_contain_text("50 % of new requests")
        target(visit, first).locator("[data-route-handle]").drag_to(page.locator('[data-route-drop="after:0"]'))
        expect(page.get_by_role("status").first).to_contain_text(f"All new requests go to up-{second.model}")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("was saved.")).to_be_visible()
        assert priorities(targets) == [1, 0]
        assert visit.complaints == []


def test_the_page_works_with_the_keyboard(browser: Browser, web: WebProcess, targets: Targets) -> None:
    _, second = targets.two()
    with visiting(browser, web.url, person("operator")) as visit:
        opened(visit, targets)
        page = visit.page
        page.get_by_role("button", name=f"Move up-{second.model} up").focus()
        for shown in ("50 % of new requests", f"All new requests go to up-{second.model}"):
            # The button keeps the focus when the form is replaced.
            page.keyboard.press("Enter")
            expect(page.get_by_role("status").first).to_contain_text(shown)
        weight = target(visit, second).get_by_label("Weight")
        weight.fill("0")
        weight.press("Enter")
        expect(page.get_by_role("status").first).not_to_contain_text(f"up-{second.model}")
        page.get_by_role("button", name="Save").press("Enter")
        expect(page.get_by_text("was saved.")).to_be_visible()
        assert priorities(targets) == [1, 0]


def test_the_buttons_work_without_scripts(browser: Browser, web: WebProcess, targets: Targets) -> None:
    _, second = targets.two()
    with visiting(browser, web.url, person("operator"), java_script_enabled=False) as visit:
        opened(visit, targets)
        visit.page.get_by_role("button", name=f"Move up-{second.model} up").click()
        expect(visit.page.get_by_role("status").first).to_contain_text("50 % of new requests")
        visit.page.get_by_role("button", name="Save").click()
        expect(visit.page.get_by_text("was saved.")).to_be_visible()
        assert priorities(targets) == [0, 0]
