"""Passkeys in a real browser: registration and sign-in."""

import uuid

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from tests.admin.test_admin_browser import PASSWORD, browser  # noqa: F401 - a fixture
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
_KEY = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def test_a_passkey_signs_in_without_a_password(browser, web: WebProcess, database: None) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    name = f"admin-{uuid.uuid4().hex}"
    User.objects.create_superuser(name, password=PASSWORD)
    # WebAuthn requires a domain name, not an IP address.
    url = web.url.replace("127.0.0.1", "localhost")
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    session.send("WebAuthn.addVirtualAuthenticator", {"options": _KEY})

    page.goto(f"{url}/account/2fa/webauthn/add/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in", exact=True).click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Name").fill("laptop")
    page.get_by_label("Passwordless").check()
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("Security key added.")).to_be_visible()

    page.context.clear_cookies()
    page.goto(f"{url}/admin/")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    page.close()
