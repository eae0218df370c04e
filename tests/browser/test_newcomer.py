"""The way of a newcomer, as one would go it: from signing in to reading in the audit log what one has done."""

import asyncio
import re
import threading
import uuid
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from openai import AuthenticationError, OpenAI
from playwright.sync_api import Browser, Page, expect
from pytest_django import DjangoDbBlocker

from demo_upstream.server import running
from tenants import services
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import PASSWORD, Visit, visiting
from tests.support.waiting import eventually
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def demo_model(web: WebProcess, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The name of a model for which the demo upstream answers."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address: list[str] = []

    async def serve() -> None:
        async with running() as url:
            address.append(url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    name = f"demo-{uuid.uuid4().hex[:6]}"
    with django_db_blocker.unblock():
        upstream = services.add_upstream(name=name, base_url=address[0], models=[name])
        upstream.models.update(upstream_model="demo")
    yield name
    loop.call_soon_threadsafe(done.set)
    thread.join(10)


def test_a_newcomer_finds_the_way(demo_model: str, browser: Browser, web: WebProcess, database: None) -> None:
    name = f"ada-{uuid.uuid4().hex[:6]}"
    User.objects.create_superuser(name, f"{name}@example.com", PASSWORD)
    team = f"Newcomers {uuid.uuid4().hex[:6]}"
    with visiting(browser, web.url) as visit:
        walk(visit, name=name, team=team, model=demo_model)
        assert visit.complaints == []


def walk(visit: Visit, *, name: str, team: str, model: str) -> None:
    """All of it."""
    page = visit.page
    signs_in(visit, name)
    creates_a_team(visit, team)
    secret, key_page = creates_a_key(visit, team)
    client = OpenAI(base_url=f"{visit.url}/v1", api_key=secret, max_retries=0)
    response_id = asks_with_a_tool(client, model)
    finds_the_call(visit, response_id)
    expect(page.get_by_text("get_weather").first).to_be_visible()
    expect(page.get_by_text("Sunny in Lisbon", exact=False).first).to_be_visible()
    opens_the_waterfall(page)
    again = runs_it_again(visit)
    assert again != response_id
    revokes(visit, key_page, client)
    reads_the_log(visit, team=team, name=name)


def signs_in(visit: Visit, name: str) -> None:
    """With a password, by the form."""
    visit.open("/admin/")
    visit.page.get_by_label(re.compile("Username|Login")).first.fill(name)
    visit.page.get_by_label("Password").fill(PASSWORD)
    visit.page.get_by_role("button", name=re.compile("Log in|Sign in")).first.click()
    expect(visit.page.get_by_role("heading", name="Home")).to_be_visible()


def creates_a_team(visit: Visit, team: str) -> None:
    """By the navigation."""
    visit.page.get_by_role("link", name=re.compile("Teams$")).first.click()
    visit.open("/admin/tenants/team/add/")
    visit.page.get_by_label("Name", exact=False).first.fill(team)
    visit.page.get_by_role("button", name="Save", exact=True).click()
    expect(visit.page.get_by_text(team).first).to_be_visible()


def creates_a_key(visit: Visit, team: str) -> tuple[str, str]:
    """The secret, out of the clipboard, and the page of the key."""
    page = visit.page
    visit.open("/admin/tenants/apikey/add/")
    page.get_by_label("Team").select_option(label=team)
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("button", name="Copy", exact=True).click()
    secret = str(eventually(lambda: page.evaluate("navigator.clipboard.readText()")))
    assert page.locator("#secret").inner_text() == secret
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_text("laptop").first).to_be_visible()
    assert secret not in page.content()
    return secret, page.url.removeprefix(visit.url)


def asks_with_a_tool(client: OpenAI, model: str) -> str:
    """Two requests of the SDK; the id of the second."""
    first = client.responses.create(model=model, input="Please call get_weather in Lisbon.", tools=[_TOOL])  # type: ignore[list-item]  # a dict of that shape
    call = next(item for item in first.output if item.type == "function_call")
    answer = client.responses.create(
        model=model,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny in Lisbon."}],
        tools=[_TOOL],  # type: ignore[list-item]  # the same
    )
    assert answer.output_text
    return answer.id


def finds_the_call(visit: Visit, response_id: str) -> None:
    """In the list, by its id; then its page with the transcript."""
    visit.open("/admin/responses/response/")
    visit.page.locator("#searchbar").fill(response_id)
    visit.page.keyboard.press("Enter")
    visit.page.get_by_role("link", name=response_id).first.click()
    expect(visit.page.get_by_role("tab", name="Transcript")).to_have_attribute("aria-selected", "true")


def opens_the_waterfall(page: Page) -> None:
    """Where the time went."""
    page.get_by_role("tab", name="Timeline").click()
    waterfall = page.get_by_role("region", name="Timeline")
    expect(waterfall.get_by_text("on the critical path").first).to_be_visible()
    expect(waterfall.get_by_text("Turn 1").first).to_be_visible()


def runs_it_again(visit: Visit) -> str:
    """In the playground, streamed; the id of what came of it."""
    page = visit.page
    page.get_by_role("link", name="Open in playground").click()
    expect(page.get_by_text("Opened from")).to_be_visible()
    page.get_by_role("button", name="Send").click()
    made = page.locator("#play-lanes a[href*='resp_']").first
    expect(made).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=30_000)
    return str(re.findall(r"resp_[0-9a-f]{36}", made.get_attribute("href") or "")[0])


def revokes(visit: Visit, key_page: str, client: OpenAI) -> None:
    """The key is useless within two seconds."""
    page = visit.page
    visit.open(key_page)
    page.get_by_role("link", name=re.compile("Revoke")).first.click()
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("is revoked.")).to_be_visible()
    eventually(lambda: is_refused(client), seconds=2)


def is_refused(client: OpenAI) -> bool:
    """Whether the API answers 401."""
    try:
        client.models.list()
    except AuthenticationError:
        return True
    return False


def reads_the_log(visit: Visit, *, team: str, name: str) -> None:
    """All of it, with the name of who did it."""
    visit.open(f"/admin/tenants/auditevent/?q={name}")
    shown = visit.page.locator("#result_list")
    for action in ("team.created", "api_key.created", "api_key.revoked"):
        expect(shown.get_by_text(action).first).to_be_visible()
