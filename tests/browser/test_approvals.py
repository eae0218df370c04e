"""The inbox of approvals in Chromium: on a phone, by keyboard, and while others decide."""

from datetime import timedelta

import orjson
import pytest
from playwright.sync_api import Browser, expect

from conversations.models import Section
from core.clock import now
from core.ids import new_id
from responses.models import Decision
from tenants import scope
from tests.admin.rows import add_items
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import Keyboard, Mouse
from tests.browser.visiting import person, visiting
from tests.support.api import Caller
from tests.support.decisions import add_decision, stored
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
WIDTHS = (380, 1280)
INBOX = "/admin/approvals/"
_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"title": "Title", "description": "One line that names the event."},
        "guests": {"type": "array", "items": {"type": "object"}},
    },
}
_ARGUMENTS = {
    "title": "Dinner with the whole team",
    "guests": [{"name": "Ann", "is_vegetarian": True}, {"name": "Unbroken" * 40, "is_vegetarian": False}],
    "notes": "Please reserve a table by the window. " * 30,
    "api_key": "sk-secret",
    "budget": None,
}


@pytest.fixture
def decision(team: Caller) -> Decision:
    """An open decision with arguments of every kind."""
    decision = add_decision(team, arguments=orjson.dumps(_ARGUMENTS).decode())
    tool = {"name": "note", "input_schema": _SCHEMA, "description": "Writes a note."}
    add_items(decision.response, Section.OUTPUT, {"type": "mcp_list_tools", "server_label": "box", "tools": [tool]})
    return decision


@pytest.fixture
def interrupted(team: Caller) -> Decision:
    """An open decision about a call whose outcome is unknown."""
    return add_decision(team, id=new_id("dec"), kind="unknown_outcome", turn=0, attempt=1, request="", definition="")


def page_of(decision: Decision) -> str:
    return f"{INBOX}{decision.pk}/"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_and_are_accessible(
    scheme: str,
    width: int,
    axe: str,
    browser: Browser,
    web: WebProcess,
    team: Caller,
    decision: Decision,
    interrupted: Decision,
) -> None:
    found = []
    pages = [page_of(decision), page_of(interrupted)]
    urls = [INBOX, f"{INBOX}?state=decided", f"{INBOX}?state=expired", *pages, "/admin/"]
    urls.append(f"/admin/responses/response/{decision.response_id}/change/")
    # The pages' content security policy would block the script of axe-core.
    with visiting(browser, web.url, person("team_lead", team.team), color_scheme=scheme, bypass_csp=True) as visit:
        visit.wide(width)
        for url in urls:
            assert visit.open(url) == 200
            found += violations(visit, axe, url)
            if (pixels := visit.overflow()) > 0:
                found.append(f"{url}: {pixels} pixels wider than {width}")
        found += visit.complaints
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_decision_is_at_most_two_clicks_from_home(
    width: int, browser: Browser, web: WebProcess, team: Caller, decision: Decision
) -> None:
    # Home shows those that expire first.
    with scope.team(team.team.pk):
        Decision.objects.filter(pk=decision.pk).update(expires_at=now() + timedelta(minutes=10))
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        mouse = Mouse(visit)
        visit.wide(width)
        visit.open("/admin/")
        mouse.press(visit.page.locator(f'a[href="{page_of(decision)}"]'))
        mouse.press(visit.page.get_by_role("button", name="Approve"))
        expect(visit.page.get_by_text("The call was approved.")).to_be_visible()
        assert visit.page.url.endswith(INBOX)
        assert mouse.clicks <= 2
        assert visit.complaints == []
    assert stored(decision).state == "granted"


def test_a_decision_needs_only_the_keyboard(
    browser: Browser, web: WebProcess, team: Caller, decision: Decision
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        keyboard, page = Keyboard(visit), visit.page
        visit.open("/admin/")
        keyboard.open_page("a", page.get_by_role("link", name="Approvals"))
        keyboard.open_row(page.locator(f"#call-{decision.pk}"))
        page.wait_for_url(f"**{page_of(decision)}")
        keyboard.press(page.locator("main summary").first)
        expect(page.locator("main details .c-args-text")).to_be_visible()
        keyboard.enter(page.locator("textarea[name=reason]"), "Too expensive.")
        keyboard.press(page.locator("button[value=no]"))
        expect(page.get_by_text("The call was denied.")).to_be_visible()
    row = stored(decision)
    assert (row.state, row.reason) == ("denied", "Too expensive.")


def test_an_unknown_outcome_needs_only_the_keyboard(
    browser: Browser, web: WebProcess, team: Caller, interrupted: Decision
) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        keyboard = Keyboard(visit)
        visit.wide(380)
        visit.open(page_of(interrupted))
        keyboard.enter(visit.page.locator("textarea[name=result]"), "Receipt 7")
        keyboard.press(visit.page.locator("button[value=done]"))
        expect(visit.page.get_by_text("The response continues with the result.")).to_be_visible()
        assert visit.complaints == []
    assert stored(interrupted).answer == {"outcome": "done", "result": "Receipt 7"}


def test_a_decision_of_somebody_else_is_shown(
    browser: Browser, web: WebProcess, team: Caller, decision: Decision
) -> None:
    lead = person("team_lead", team.team)
    with visiting(browser, web.url, lead) as slow, visiting(browser, web.url, person("operator")) as fast:
        slow.open(page_of(decision))
        fast.open(page_of(decision))
        fast.page.get_by_role("button", name="Approve").click()
        expect(fast.page.get_by_text("The call was approved.")).to_be_visible()
        slow.page.get_by_role("button", name="Deny").click()
        expect(slow.page.get_by_text("has already been decided")).to_be_visible()
        expect(slow.page.get_by_role("button", name="Deny")).to_have_count(0)
    assert stored(decision).state == "granted"


def test_the_inbox_follows_what_happens(browser: Browser, web: WebProcess, team: Caller, decision: Decision) -> None:
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        visit.open(INBOX)
        row = visit.page.locator(f"#call-{decision.pk}")
        row.focus()
        other = add_decision(team)
        expect(visit.page.locator(f"#call-{other.pk}")).to_be_visible()
        # The refresh keeps the focus.
        assert row.evaluate("element => element === document.activeElement")
        assert visit.complaints == []
