"""axe-core finds nothing on any page, for each role, in light and dark mode, with panels, tabs, menus and errors shown.

The tests open a sample of the pages. `python -m benchmarks crawl` opens every page.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tenants import services
from tests.admin.crawling import TeamData
from tests.browser.accessibility import findings
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.page_states import addressed_states, show_errors, states
from tests.browser.test_every_page import pages, status_of
from tests.browser.visiting import ROLES, Visit, person, visiting
from tests.support.api import Caller
from tests.support.sampling import rest_at_night, sampled, sized
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
KEYS_OF_TWO_PAGES = 101


@pytest.mark.parametrize("role", rest_at_night(ROLES, first=1))
def test_no_page_violates_an_accessibility_rule(
    role: str,
    axe: str,
    browser: Browser,
    web: WebProcess,
    subject: TeamData,
    database: None,
    record_property: Callable[[str, object], None],
) -> None:
    """The administrator sees each page in all its states, other roles see each page that they may open."""
    found: dict[str, list[str]] = defaultdict(list)
    seen, count = set[str](), 0
    urls = ["/admin/", *sampled(pages(subject), 4, key=f"axe {role}")]
    with visiting(browser, web.url, person(role, subject.team), bypass_csp=True) as visit:
        for name in shown(visit, urls, in_all_states=role == "administrator"):
            seen.add(name.partition(",")[0])
            count += 1
            for line in findings(visit, axe):
                found[line].append(name)
    record_property("pages", len(seen))
    record_property("states", count)
    assert not found, "\n".join(f"{line}\n    on {len(names)}: {names[:3]}" for line, names in found.items())
    assert len(seen) >= sized(1, full=20)


def shown(visit: Visit, urls: list[str], *, in_all_states: bool) -> Iterator[str]:
    """Show each page that the user may open, on request in each of its states, and yield its name."""
    for url in urls:
        if status_of(visit, url) != 200:
            continue
        if not in_all_states:
            yield f"{url}, as loaded"
            continue
        more = addressed_states(visit)
        for state in states(visit):
            yield f"{url}, {state}"
        if show_errors(visit):
            yield f"{url}, with errors"
        for other in more:
            if status_of(visit, other) == 200:
                yield f"{url}, at {other}"


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["administrator", "team_lead"])
def test_pages_of_a_team_without_data_violate_no_rule(
    role: str, axe: str, browser: Browser, web: WebProcess, subject: TeamData, caller: Caller
) -> None:
    found = []
    lists = [url for url in pages(subject) if url.count("/") <= 4]
    with visiting(browser, web.url, person(role, caller.team), bypass_csp=True) as visit:
        for url in sampled(lists, 4, key=f"empty {role}"):
            address = url if role == "team_lead" else f"{url}?team__id__exact={caller.team.pk}"
            if status_of(visit, address) == 200:
                found += [f"{address}: {line}" for line in findings(visit, axe)]
    assert not found, "\n".join(found)


def test_dialogs_violate_no_rule(
    axe: str, browser: Browser, web: WebProcess, subject: TeamData, database: None
) -> None:
    found = []
    with visiting(browser, web.url, person("administrator"), bypass_csp=True) as visit:
        for url in ("/admin/", "/admin/tenants/apikey/", "/admin/tenants/apikey/add/"):
            visit.open(url)
            visit.page.keyboard.press("?")
            visit.page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
            found += findings(visit, axe)
            visit.page.keyboard.press("Escape")
            visit.page.keyboard.press("Control+k")
            visit.page.locator("#search-input-command").fill("key")
            visit.page.locator("#search-input-command").press("End")
            visit.page.locator("#command-results a").first.wait_for()
            found += findings(visit, axe)
            visit.page.keyboard.press("Escape")
            visit.page.keyboard.press("Escape")
            visit.page.locator("[x-bind\\:aria-expanded=openUserLinks]").click()
            found += findings(visit, axe)
    assert not found, "\n".join(found)


@pytest.mark.nightly
def test_a_list_of_two_pages_violates_no_rule(axe: str, browser: Browser, web: WebProcess, caller: Caller) -> None:
    """A list of two pages also has a link that shows all rows; lists of more than 200 rows do not."""
    for number in range(KEYS_OF_TWO_PAGES):
        services.create_key(team=caller.team, spec=services.KeySpec(name=f"key {number}"))
    with visiting(browser, web.url, person("administrator"), bypass_csp=True) as visit:
        visit.open(f"/admin/tenants/apikey/?team__id__exact={caller.team.pk}")
        assert findings(visit, axe) == []
