"""A lead invites a colleague in Chromium."""

import uuid

import pytest
from playwright.sync_api import Browser, expect

from seeding.seed import Seeded
from tenants.models import Invite
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import Device, Keyboard, Mouse
from tests.browser.visiting import person, visiting
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


@pytest.mark.parametrize(("device_type", "width"), [(Mouse, 380), (Keyboard, 1280)])
def test_a_lead_invites_a_colleague_as_lead_in_at_most_four_clicks(
    device_type: type[Device], width: int, browser: Browser, web: WebProcess, seeded: Seeded
) -> None:
    team, address = seeded.tenants[0].team, f"{uuid.uuid4().hex}@example.com"
    with visiting(browser, web.url, person("team_lead", team)) as visit:
        device = device_type(visit)
        visit.wide(1280)
        visit.open("/admin/")
        device.press(visit.page.locator(".c-home-teams").get_by_role("link", name=team.name))
        device.press(visit.page.locator("main a[href*='tab=members']").first)
        visit.wide(width)
        device.enter(visit.page.get_by_label("Username or e-mail address"), address)
        device.choose(visit.page.locator(".c-line-form select[name=role]").first, "Team lead")
        device.press(visit.page.get_by_role("button", name="Add or invite"))
        expect(visit.page.get_by_role("region", name="Open invitations")).to_contain_text(address)
        assert visit.overflow() == 0
        assert device.clicks <= 4
        assert visit.complaints == []
    invite = Invite.objects.get(email=address)
    assert [(project["id"], project["role"]) for project in invite.projects] == [(team.pk, "owner")]
