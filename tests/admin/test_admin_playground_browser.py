"""Playground and command palette in a real browser: streaming, and manual outputs of tool calls."""

import re
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from responses.models import Response
from tenants import scope
from tenants.models import ApiKey, KeySource
from tests.admin.rows import add_response
from tests.browser.chromium import CHROMIUM, INSTALL, chromium
from tests.support.api import Caller
from tests.support.sampling import rest_at_night
from tests.support.upstream import Script
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess

FUNCTION = '[{"type": "function", "name": "track", "parameters": {"type": "object", "properties": {}}}]'
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    with pytest.MonkeyPatch.context() as patch, chromium() as running:
        # Playwright keeps an idle event loop in this thread; Django would refuse database access because of it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield running


@pytest.fixture
def page(browser: Browser, web: WebProcess, developer: Client) -> Iterator[Page]:
    """Browser page of a developer; fails at teardown if the console has errors or warnings."""
    context = browser.new_context(base_url=web.url, permissions=["clipboard-read", "clipboard-write"])
    session = developer.cookies[settings.SESSION_COOKIE_NAME].value
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": web.url}])
    context.set_default_timeout(PATIENCE * 1000)
    opened, problems = context.new_page(), list[str]()
    opened.on(
        "console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None
    )
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


def ask(page: Page, model: str, words: str) -> None:
    """Send a message and wait for the end of the response."""
    page.get_by_label("Model", exact=True).fill(model)
    page.get_by_label("Message", exact=True).last.fill(words)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("status").filter(has_text="Done.")).to_be_visible()


def test_a_response_streams_next_to_its_events(page: Page, caller: Caller, script: Script) -> None:
    script.say("It **left**", " yesterday.")
    page.goto("/admin/playground/")
    page.get_by_label("Instructions").fill("Be brief.")
    ask(page, script.model, "Where is <b>my</b> parcel?")
    expect(page.locator(".c-play-user")).to_contain_text("<b>my</b>")
    expect(page.locator(".c-play-message strong")).to_have_text("left")
    expect(page.locator(".c-play-line")).to_contain_text("first token")
    expect(page.locator(".c-play-events code").first).to_have_text("response.created")
    expect(page.locator(".c-play-events code").last).to_have_text("response.completed")
    made = page.locator(".c-play-line a").inner_text()
    with scope.team(caller.team.pk):
        row = Response.objects.get(pk=made)
        assert row.metadata == {"source": "playground"}
        assert row.parameters["instructions"] == "Be brief."
        assert row.api_key.source == KeySource.PLAYGROUND


@pytest.mark.nightly
def test_a_manual_tool_output_continues_the_response(page: Page, caller: Caller, script: Script) -> None:
    script.call(track='{"order": 7}').say("It is in Paris.")
    page.goto("/admin/playground/")
    page.get_by_label("Functions and other tools").fill(FUNCTION)
    ask(page, script.model, "Where is order 7?")
    expect(page.locator(".c-play-call")).to_contain_text('"order": 7')
    page.get_by_label("Output of track").fill('{"city": "Paris"}')
    page.get_by_role("button", name="Send outputs").click()
    expect(page.locator(".c-play-message")).to_contain_text("It is in Paris.")
    assert script.messages[-1][-1]["content"] == '{"city": "Paris"}'


@pytest.mark.nightly
def test_two_models_respond_side_by_side(page: Page, script: Script, other_script: Script) -> None:
    script.say("One.")
    other_script.say("Two.")
    page.goto("/admin/playground/")
    page.get_by_label("Compare with").fill(other_script.model)
    ask(page, script.model, "Which?")
    expect(page.locator(".c-play-lane")).to_have_count(2)
    expect(page.locator(".c-play-message")).to_have_text([re.compile("One"), re.compile("Two")])


def test_an_invalid_tool_definition_is_reported_and_not_sent(page: Page, script: Script) -> None:
    page.goto("/admin/playground/")
    page.get_by_label("Functions and other tools").fill('[{"type": "function", "name": "not a name"}]')
    page.get_by_label("Message", exact=True).last.fill("Hello")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#play-functions-problem")).to_contain_text("needs a name")
    expect(page.locator(".c-play-lane")).to_have_count(0)


def test_leaving_the_page_revokes_its_key(page: Page, caller: Caller, script: Script) -> None:
    script.say("Yes.")
    page.goto("/admin/playground/")
    ask(page, script.model, "Well?")
    page.goto("/admin/")

    def is_revoked() -> bool:
        with scope.team(caller.team.pk):
            return ApiKey.objects.get(source=KeySource.PLAYGROUND).revoked_at is not None

    assert eventually(is_revoked)


@pytest.mark.nightly
def test_the_request_is_copied_as_curl_and_python(page: Page, script: Script) -> None:
    page.goto("/admin/playground/")
    page.get_by_label("Model", exact=True).fill("m")
    page.get_by_label("Message", exact=True).last.fill("It's here")
    for button, words in (("Copy as curl", "It'\\''s here"), ("Copy as Python", 'input": "It\'s here"')):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
        page.wait_for_function("words => navigator.clipboard.readText().then(text => text.includes(words))", arg=words)


@pytest.mark.nightly
def test_entering_an_id_in_the_palette_opens_its_page(page: Page, caller: Caller) -> None:
    response = add_response(caller)
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    page.locator("#search-input-command").fill(response.pk)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/response/{response.pk}/change/")


@pytest.mark.nightly
@pytest.mark.parametrize("width", rest_at_night([380, 2560, 1280], first=1))
def test_no_page_is_wider_than_the_window(page: Page, width: int, caller: Caller) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in ("/admin/playground/", "/admin/search-text/?q=a", "/admin/go/", "/admin/responses/batch/"):
        page.goto(path)
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0, path
