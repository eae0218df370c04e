"""A lead invites a colleague in Chromium."""

import uuid

import pytest
from playwright.sync_api import Browser, expect

from seeding.seed import Seeded
from tenants.models import Invite
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import person, visiting
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
_MAX_CLICKS = 4
_COUNT_CLICKS = "addEventListener('click', event => event.isTrusted && sessionStorage.clicks++, true)"


@pytest.mark.parametrize("width", [380, 1280])
def test_a_lead_invites_a_colleague_as_lead_in_at_most_four_clicks(
    width: int, browser: Browser, web: WebProcess, seeded: Seeded
) -> None:
    team, address = seeded.tenants[0].team, f"{uuid.uuid4().hex}@example.com"
    with visiting(browser, web.url, person("team_lead", team)) as visit:
        visit.wide(1280)
        visit.open("/admin/")
        visit.page.evaluate("sessionStorage.clicks = 0")
        visit.page.add_init_script(_COUNT_CLICKS)
        visit.page.evaluate(_COUNT_CLICKS)
        visit.page.locator(".c-home-teams").get_by_role("link", name=team.name).click()
        visit.page.locator("main a[href*='tab=members']").first.click()
        visit.wide(width)
        visit.page.get_by_label("Username or e-mail address").fill(address)
        # Chosen by keyboard, as the first letter selects an option of a select.
        visit.page.locator(".c-line-form select[name=role]").first.select_option("team_lead")
        visit.page.get_by_role("button", name="Add or invite").click()
        expect(visit.page.get_by_role("region", name="Open invitations")).to_contain_text(address)
        assert visit.overflow() == 0
        clicks = int(visit.page.evaluate("+sessionStorage.clicks"))
        assert 0 < clicks <= _MAX_CLICKS
        assert visit.complaints == []
    invite = Invite.objects.get(email=address)
    assert [(project["id"], project["role"]) for project in invite.projects] == [(team.pk, "owner")]
