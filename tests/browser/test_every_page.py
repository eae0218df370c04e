"""Pages of the admin in a real browser, for each role and at three widths: no errors and no overflow.

The tests open a sample of the pages. `python -m benchmarks crawl` opens every page.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Response
from playwright.sync_api import Error as PlaywrightError

from tests.admin.crawling import TeamData, addresses, admin_routes
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import ROLES, WIDTHS, Visit, person, visiting
from tests.support.sampling import rest_at_night, sampled, sized
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
# Fragments, data, downloads and redirects are not pages.
_NOT_PAGES = {
    "admin:autocomplete", "admin:search", "admin:login", "admin:view_on_site", "console:go", "console:palette",
    "console:live_rows", "console:playground_ended", "console:system_now", "console:system_health",
    "console:model_routes_now", "console:target_drain", "console:target_resume",
}  # fmt: skip
_NOTHING_TO_SHOW = ("Download is starting", "ERR_HTTP_RESPONSE_CODE_FAILURE", "ERR_ABORTED", "chrome-error:")
HERE = Path(__file__).parent
# For each page, with an empty cache. Without its fonts, styles and pictures, it may have MAX_BYTES, compressed.
MAX_REQUESTS, MAX_BYTES = 25, 140_000
KEY_PAGES = {
    "home": "/admin/",
    "responses": "/admin/responses/response/?period=30d",
    "response": "/admin/responses/response/{response}/change/",
    "conversation": "/admin/conversations/conversation/{conversation}/change/",
    "keys": "/admin/tenants/apikey/",
    "new key": "/admin/tenants/apikey/add/",
    "team": "/admin/tenants/team/{team}/change/",
    "playground": "/admin/playground/",
    "running jobs": "/admin/live/",
    "approvals": "/admin/approvals/",
    "webhooks": "/admin/responses/webhookdelivery/",
    "audit log": "/admin/tenants/auditevent/",
    "model routes": "/admin/routes/",
}


def addressed(path: str, subject: TeamData) -> str:
    """Fill in the ids of a key page."""
    return path.format(**ids(subject))


def ids(subject: TeamData) -> dict[str, str]:
    """Return the ids for key pages: the busiest response, the longest conversation, the team."""
    rows = {model._meta.model_name: found for model, found in subject.rows.items()}
    return {
        "response": max(rows["response"], key=lambda row: (row.tool_calls, row.turns, row.pk)).pk,
        "conversation": max(rows["conversation"], key=lambda row: row.next_position).pk,
        "team": subject.team.pk,
    }


def pages(subject: TeamData) -> Iterator[str]:
    """Yield one URL of each kind of page, with the first row of platform tables."""
    for place in admin_routes():
        if place.name not in _NOT_PAGES:
            yield from addresses(place, subject)[:1]


@pytest.mark.parametrize("role", rest_at_night(ROLES, first=1))
def test_pages_have_no_errors_or_overflow_at_any_width(
    role: str, browser: Browser, web: WebProcess, subject: TeamData, database: None
) -> None:
    """An administrator opens any page; other roles open what the navigation offers, and the key pages."""
    opened, problems, is_administrator = 0, [], role == "administrator"
    with visiting(browser, web.url, person(role, subject.team)) as visit:
        urls = pages(subject) if is_administrator else offered(visit, subject)
        for url in sampled(urls, 10 if is_administrator else 2, key=role):
            status = status_of(visit, url)
            if status != 200:
                # The crawl tests permissions. Here only server errors count.
                problems += [f"{url}: {status}"] if status >= 500 else []
                visit.complaints = [
                    complaint for complaint in visit.complaints if "Failed to load resource" not in complaint
                ]
                continue
            opened += 1
            problems += defects(visit, url, widths=WIDTHS)
        problems += visit.complaints
    assert not problems, "\n".join(problems)
    assert opened > (sized(3, full=80) if is_administrator else sized(0, full=12))


def offered(visit: Visit, subject: TeamData) -> list[str]:
    """Return the links of the navigation and the key pages."""
    visit.open("/admin/")
    links = visit.page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href') || '')")
    lists = {link for link in links if link.startswith("/admin/") and "?" not in link and link.count("/") < 5}
    return sorted({*lists, *(addressed(path, subject) for path in KEY_PAGES.values())} - {"/admin/logout/"})


def status_of(visit: Visit, url: str) -> int:
    """Return the status of a page; 0 for downloads, data and fragments."""
    try:
        answer = navigate(visit, url)
    except PlaywrightError as error:
        if any(why in str(error) for why in _NOTHING_TO_SHOW):
            return 0
        raise
    if answer is None or "text/html" not in answer.headers.get("content-type", ""):
        return 0
    return answer.status if answer.status != 200 or visit.page.title() else 0


def navigate(visit: Visit, url: str, *, retries: int = 3) -> Response | None:
    """Go to a page. A download just before may interrupt the navigation, which is then repeated."""
    visit.answers.clear()
    try:
        return visit.page.goto(visit.url + url, wait_until="load")
    except PlaywrightError as error:
        if retries and "interrupted by another navigation" in str(error):
            visit.page.wait_for_load_state("load")
            return navigate(visit, url, retries=retries - 1)
        raise


def defects(visit: Visit, url: str, *, widths: tuple[int, ...]) -> list[str]:
    """Return the defects of the open page: overflow, headings, landmarks, weight."""
    found = []
    if (count := len(visit.answers)) > MAX_REQUESTS:
        found.append(f"{url}: {count} requests")
    if (size := visit.bytes_of_code()) > MAX_BYTES:
        found.append(f"{url}: {size} bytes of HTML and scripts")
    for width in widths:
        visit.wide(width)
        if (pixels := visit.overflow()) > 0:
            found.append(f"{url}: {pixels} pixels wider than {width}")
    headings = visit.page.evaluate("[...document.querySelectorAll('h1')].filter(h => h.textContent.trim()).length")
    landmarks = visit.page.evaluate("document.querySelectorAll('main').length")
    skip = visit.page.evaluate("document.querySelector('a')?.getAttribute('href')")
    found += [] if headings else [f"{url}: no heading"]
    found += [] if landmarks == 1 else [f"{url}: {landmarks} main landmarks"]
    return found if skip == "#main-content" else [*found, f"{url}: the first link is {skip}"]


@pytest.mark.nightly
def test_keyboard_focus_is_visible(browser: Browser, web: WebProcess, subject: TeamData, database: None) -> None:
    unseen = []
    with visiting(browser, web.url, person("team_lead", subject.team)) as visit:
        for name, path in sampled(KEY_PAGES.items(), 3, key="focus"):
            visit.open(addressed(path, subject))
            for _ in range(12):
                visit.page.keyboard.press("Tab")
                if shown := visit.page.evaluate(_UNSEEN):
                    unseen.append(f"{name}: {shown}")
    assert not unseen, "\n".join(sorted(set(unseen)))


# Return the focused element if focus does not change its style. Colours of a transition count as a change.
_UNSEEN = """() => {
  const it = document.activeElement;
  if (!it || it === document.body) return "";
  const look = () => { const s = getComputedStyle(it); const b = getComputedStyle(it.parentElement);
    return [s.outlineStyle, s.outlineWidth, s.outlineColor, s.boxShadow, s.borderColor, s.backgroundColor, s.color,
            s.textDecoration, s.opacity, b.boxShadow, b.borderColor, b.outlineStyle].join(); };
  const focused = look();
  it.blur();
  const plain = look();
  it.focus();
  return focused === plain ? it.outerHTML.slice(0, 160) : "";
}"""
