"""Running jobs in a real browser: live updates, and actions with and without scripts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from responses.models import ToolCall
from tenants import scope
from tests.browser.chromium import CHROMIUM, INSTALL, chromium
from tests.support.api import Api, Caller
from tests.support.chunks import chunk
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import PATIENCE, half_a_second
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
# When an element first had a text, in milliseconds; checked in every frame that the browser draws.
SEEN = (
    "([where, words]) => { const e = document.querySelector(where); return e && e.textContent === words && Date.now() }"
)


@dataclass(kw_only=True)
class Visit:
    """A signed-in browser page; `complaints` are the errors of its console."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open a page and wait until it has loaded."""
        self.page.goto(self.url + path, wait_until="load")

    def seen(self, where: str, words: str) -> datetime:
        """Return when the page first showed this text."""
        handle = self.page.wait_for_function(SEEN, arg=[where, words], polling="raf")
        return datetime.fromtimestamp(handle.json_value() / 1000, UTC)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    with pytest.MonkeyPatch.context() as patch, chromium() as running:
        # Playwright keeps an idle event loop in this thread; Django would refuse database access because of it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield running


@pytest.fixture
def visit(browser: Browser, reaching_web: WebProcess, lead: Client) -> Iterator[Visit]:
    """A browser page of the team's lead. Fails if the console has errors."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    session = lead.cookies[settings.SESSION_COOKIE_NAME].value
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": reaching_web.url}])
    visit = Visit(page=context.new_page(), url=reaching_web.url)
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("console", lambda entry: visit.complaints.append(entry.text) if entry.type == "error" else None)
    yield visit
    context.close()
    assert visit.complaints == []


def call(response_id: str, team_id: str) -> ToolCall:
    """Return the stored call of `wait`."""
    with scope.team(team_id):
        return ToolCall.objects.get(response_id=response_id, name__endswith="wait")


@pytest.mark.usefixtures("worker")
def test_a_background_run_updates_live_and_is_cancelled(
    visit: Visit, reaching: Api, script: Script, served: McpServer, caller: Caller
) -> None:
    gate = Gate()
    script.then(calling(("box__wait", "{}"))).then(stream(chunk(content="Hal"), gate))
    visit.open("/admin/live/")
    expect(visit.page.locator("[data-live-link=live]")).to_have_text("live")
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [tool(served)]}
    response_id = reaching.create(**body)["id"]
    row, cell = visit.page.locator(f'[data-run="{response_id}"]'), f'[data-run="{response_id}"] [data-cell="%s"]'
    called = visit.seen(cell % "step", "turn 1 · box__wait")
    started_at = call(response_id, caller.team.pk).started_at
    row.get_by_role("button", name="Turns and tool calls").click()
    expect(row.locator(".c-live-chip")).to_have_count(2)
    served.opened.set()
    returned = visit.seen(cell % "step", "turn 2")
    ended_at = call(response_id, caller.team.pk).ended_at
    assert ended_at is not None
    limit = half_a_second(lambda: reaching.get("/models"))
    assert called - started_at < limit
    assert returned - ended_at < limit
    gate.wait_until_reached()
    expect(row.locator('[data-cell="preview"]')).to_have_text("Hal")
    expect(row.get_by_role("button", name="Turns and tool calls")).to_have_attribute("aria-expanded", "true")
    row.get_by_role("link", name="Cancel").click()
    visit.page.get_by_role("button", name="Cancel run").click()
    expect(visit.page.locator("[data-live-message]")).to_have_text(f"{response_id} was cancelled.")
    expect(row.locator('[data-cell="state"]')).to_have_text("Cancelled")
    expect(row).to_have_count(0, timeout=10_000)
    assert reaching.retrieve(response_id)["status"] == "cancelled"
    assert script.received[1].was_closed()


@pytest.mark.nightly
def test_the_page_polls_without_a_websocket(
    visit: Visit, reaching: Api, script: Script, lead: Client, no_worker: None
) -> None:
    visit.page.add_init_script("WebSocket = class { constructor() { setTimeout(() => this.onclose({ code: 1006 })) } }")
    visit.open("/admin/live/")
    response_id = reaching.create(model=script.model, input="Go.", background=True)["id"]
    row = visit.page.locator(f'[data-run="{response_id}"]')
    expect(row.locator('[data-cell="state"]')).to_have_text("Queued")
    expect(visit.page.locator("[data-live-link=asking]")).to_have_text("every 2 s")
    lead.post(f"/admin/live/{response_id}/cancel/")
    expect(row).to_have_count(0, timeout=10_000)


@pytest.mark.nightly
def test_a_run_is_cancelled_without_scripts(
    browser: Browser, reaching_web: WebProcess, reaching: Api, script: Script, lead: Client, no_worker: None
) -> None:
    response_id = reaching.create(model=script.model, input="Go.", background=True)["id"]
    session = lead.cookies[settings.SESSION_COOKIE_NAME].value
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": reaching_web.url}])
    page = context.new_page()
    page.goto(f"{reaching_web.url}/admin/live/")
    page.locator(f'[data-run="{response_id}"]').get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Cancel run").click()
    expect(page.get_by_text(f"{response_id} was cancelled.")).to_be_visible()
    context.close()
    assert reaching.retrieve(response_id)["status"] == "cancelled"


@pytest.mark.usefixtures("worker")
def test_a_transcript_grows_during_the_run(visit: Visit, reaching: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="<b>Hal"), gate, chunk(content="lo</b>"), chunk(finish="stop")))
    response_id = reaching.create(model=script.model, input="Go.", background=True)["id"]
    gate.wait_until_reached()
    visit.open(f"/admin/responses/response/{response_id}/change/")
    expect(visit.page.locator("[data-follow-items] .c-follow-text")).to_have_text("<b>Hal")
    with visit.page.expect_navigation():
        gate.open()
    expect(visit.page.locator("[data-follow]")).to_have_count(0)
    expect(visit.page.get_by_text("Completed").first).to_be_visible()
