"""The console needs no `unsafe-eval`: no page violates its Content-Security-Policy, and everything reacts to clicks."""

import pytest
from playwright.sync_api import Browser

from tests.admin.crawling import TeamData
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.test_every_page import pages, status_of
from tests.browser.visiting import Visit, person, visiting
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
SIGNED_OUT = ("/account/login/", "/account/signup/", "/account/inactive/", "/account/providers/error/", "/unknown/")
ACCOUNT = (
    "/account/password/change/",
    "/account/2fa/",
    "/account/2fa/totp/activate/",
    "/account/2fa/webauthn/",
    "/account/2fa/webauthn/add/",
    "/account/sessions/",
    "/account/providers/",
)


def test_no_page_violates_its_policy(browser: Browser, web: WebProcess, subject: TeamData, database: None) -> None:
    opened = 0
    with visiting(browser, web.url) as visit:
        for path in SIGNED_OUT:
            opened += visit.open(path) == 200
    problems = scripts(visit)
    with visiting(browser, web.url, person("administrator")) as visit:
        for path in (*ACCOUNT, *pages(subject)):
            opened += status_of(visit, path) == 200
    problems += scripts(visit)
    assert not problems, "\n".join(problems)
    assert opened > 120


def scripts(visit: Visit) -> list[str]:
    """Return the complaints about scripts. Pages that this user may not open answer with errors."""
    return [complaint for complaint in visit.complaints if "Failed to load resource" not in complaint]
