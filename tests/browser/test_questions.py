"""The page of a question in Chromium: on a phone, by keyboard, and with wrong values."""

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from engine.calls.questions import Question
from responses.models import Decision
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import Keyboard
from tests.browser.visiting import person, visiting
from tests.support.api import Caller
from tests.support.decisions import add_question, stored
from tests.support.waiting import eventually
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
WIDTHS = (380, 1280)
_OPTIONS = [{"const": "window", "title": "By the window"}, {"const": "bar", "title": "At the bar"}]
_PROPERTIES: dict[str, Any] = {
    "name": {"type": "string", "title": "Name", "description": "For the reservation. " * 8, "maxLength": 40},
    "guests": {"type": "integer", "title": "Number of guests", "minimum": 1, "maximum": 9, "default": 2},
    "price": {"type": "number", "title": "Highest price"},
    "mail": {"type": "string", "format": "email", "title": "Mail address"},
    "at": {"type": "string", "format": "date-time", "title": "Time"},
    "notes": {"type": "string", "title": "Notes", "maxLength": 2000},
    "place": {"type": "string", "title": "Place", "oneOf": _OPTIONS},
    "extras": {"type": "array", "title": "Extras", "description": "With the menu.", "items": {"anyOf": _OPTIONS}},
    "terms": {"type": "boolean", "title": "Accept the terms"},
}
FORM = Question(
    message="Which table do you want?\n" + "Unbroken" * 40,
    schema={"type": "object", "properties": _PROPERTIES, "required": ["name", "guests"]},
)
PAGE = Question(message="Please pay.", url=f"https://shop.example/pay?id={'1' * 200}")


def page_of(decision: Decision) -> str:
    return f"/admin/approvals/{decision.pk}/"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_questions_fit_and_are_accessible(
    scheme: str, width: int, axe: str, browser: Browser, web: WebProcess, team: Caller
) -> None:
    found = []
    answer = {"action": "accept", "content": {"name": "Ada", "extras": ["bar"]}}
    decisions = [add_question(team, FORM), add_question(team, PAGE)]
    decisions.append(add_question(team, FORM, state="answered", answer=answer, decided_by="key:1"))
    # The pages' content security policy would block the script of axe-core.
    with visiting(browser, web.url, person("team_lead", team.team), color_scheme=scheme, bypass_csp=True) as visit:
        visit.wide(width)
        for decision in decisions:
            assert visit.open(page_of(decision)) == 200
            found += violations(visit, axe, page_of(decision))
            if (pixels := visit.overflow()) > 0:
                found.append(f"{page_of(decision)}: {pixels} pixels wider than {width}")
        found += visit.complaints
    assert not found, "\n".join(found)


def test_a_question_is_answered_by_keyboard(browser: Browser, web: WebProcess, team: Caller) -> None:
    decision = add_question(team, FORM)
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        visit.wide(380)
        visit.open(page_of(decision))
        keyboard, page = Keyboard(visit), visit.page
        for field, typed in (("0", "Ada"), ("2", "12.5"), ("3", "ada@mail.example"), ("5", "Quiet.")):
            keyboard.enter(page.locator(f"#id_field_{field}"), typed)
        keyboard.choose(page.locator("#id_field_6"), "At")
        keyboard.press(page.locator("input[name=field_7][value=bar]"))
        keyboard.press(page.locator("#id_field_8"))
        keyboard.press(page.locator("button[value=accept]"))
        expect(visit.page.get_by_text("The answer is sent to the tool.")).to_be_visible()
        assert visit.complaints == []
    content = {
        "name": "Ada",
        "guests": 2,
        "price": 12.5,
        "mail": "ada@mail.example",
        "notes": "Quiet.",
        "place": "bar",
        "extras": ["bar"],
        "terms": True,
    }
    assert stored(decision).answer == {"action": "accept", "content": content}


def test_the_first_wrong_field_has_the_focus(browser: Browser, web: WebProcess, team: Caller) -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "string", "minLength": 2}}
    decision = add_question(team, Question(message="Well?", schema={"type": "object", "properties": properties}))
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        visit.open(page_of(decision))
        # The browser would refuse it before the server does.
        visit.page.locator("#id_field_1").evaluate("field => field.removeAttribute('minlength')")
        visit.page.locator("#id_field_1").fill("y")
        visit.page.get_by_role("button", name="Answer").click()
        expect(visit.page.get_by_text("The number of characters must be at least 2.")).to_be_visible()
        # Not `to_be_focused`, which also needs the focus of the window.
        eventually(lambda: visit.page.evaluate("document.activeElement?.id") == "id_field_1")
    assert stored(decision).state == "asked"


def test_a_question_is_declined_with_empty_required_fields(browser: Browser, web: WebProcess, team: Caller) -> None:
    decision = add_question(team, FORM)
    with visiting(browser, web.url, person("team_lead", team.team)) as visit:
        visit.open(page_of(decision))
        visit.page.get_by_role("button", name="Decline").click()
        expect(visit.page.get_by_text("The tool is told that the question was declined.")).to_be_visible()
    assert stored(decision).answer == {"action": "decline"}
