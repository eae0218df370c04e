"""First use, end to end in a browser: from signing in to reading the audit log."""

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

from demo_upstream.app import running
from tenants import services
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import PASSWORD, Visit, visiting
from tests.support.waiting import eventually
from tests.support.web import WebProcess

pytestmark = [
    pytest.mark.slow,
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
    """The name of a model served by the demo upstream."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address: list[str] = []

    async def serve() -> None:
        async with running() as url:
            address.append(url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    name = f"demo-{uuid.uuid4().hex[:6]}"
    with django_db_blocker.unblock():
        upstream = services.add_upstream(name=name, base_url=address[0], models=[name])
        upstream.models.update(upstream_model="demo")
    yield name
    loop.call_soon_threadsafe(done.set)
    thread.join(10)


@pytest.mark.nightly
def test_a_new_user_completes_the_first_steps(
    demo_model: str, browser: Browser, web: WebProcess, database: None
) -> None:
    name = f"ada-{uuid.uuid4().hex[:6]}"
    User.objects.create_superuser(name, f"{name}@example.com", PASSWORD)
    team = f"Newcomers {uuid.uuid4().hex[:6]}"
    with visiting(browser, web.url) as visit:
        perform_steps(visit, name=name, team=team, model=demo_model)
        assert visit.complaints == []


def perform_steps(visit: Visit, *, name: str, team: str, model: str) -> None:
    """Perform all steps."""
    page = visit.page
    sign_in_by_form(visit, name)
    create_team(visit, team)
    secret, key_page = create_key(visit, team)
    client = OpenAI(base_url=f"{visit.url}/v1", api_key=secret, max_retries=0)
    response_id = call_a_tool(client, model)
    open_response(visit, response_id)
    expect(page.get_by_text("get_weather").first).to_be_visible()
    expect(page.get_by_text("Sunny in Lisbon", exact=False).first).to_be_visible()
    open_timeline(page)
    repeated_id = repeat_in_playground(visit)
    assert repeated_id != response_id
    revoke_key(visit, key_page, client)
    check_audit_log(visit, team=team, name=name)


def sign_in_by_form(visit: Visit, name: str) -> None:
    """Sign in with a password."""
    visit.open("/admin/")
    visit.page.get_by_label(re.compile("Username|Login")).first.fill(name)
    visit.page.get_by_label("Password").fill(PASSWORD)
    visit.page.get_by_role("button", name=re.compile("Log in|Sign in")).first.click()
    expect(visit.page.get_by_role("heading", name="Home")).to_be_visible()


def create_team(visit: Visit, team: str) -> None:
    """Create a team from the navigation."""
    visit.page.get_by_role("link", name=re.compile("Teams$")).first.click()
    visit.open("/admin/tenants/team/add/")
    visit.page.get_by_label("Name", exact=False).first.fill(team)
    visit.page.get_by_role("button", name="Save", exact=True).click()
    expect(visit.page.get_by_text(team).first).to_be_visible()


def create_key(visit: Visit, team: str) -> tuple[str, str]:
    """Create a key. Return its secret, from the clipboard, and the path of its page."""
    page = visit.page
    visit.open("/admin/tenants/apikey/add/")
    page.get_by_role("combobox", name="Team").select_option(label=team)
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("button", name="Copy", exact=True).click()
    secret = str(eventually(lambda: page.evaluate("navigator.clipboard.readText()")))
    assert page.locator("#secret").inner_text() == secret
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_text("laptop").first).to_be_visible()
    assert secret not in page.content()
    return secret, page.url.removeprefix(visit.url)


def call_a_tool(client: OpenAI, model: str) -> str:
    """Send two requests with the SDK. Return the id of the second response."""
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


def open_response(visit: Visit, response_id: str) -> None:
    """Search for the response by id and open its transcript."""
    visit.open("/admin/responses/response/")
    visit.page.locator("#searchbar").fill(response_id)
    visit.page.keyboard.press("Enter")
    visit.page.locator(f"#result_list a[href*='{response_id}']").first.click()
    expect(visit.page.get_by_role("tab", name="Transcript")).to_have_attribute("aria-selected", "true")


def open_timeline(page: Page) -> None:
    """Open the timeline."""
    page.get_by_role("tab", name="Timeline").click()
    waterfall = page.get_by_role("region", name="Timeline")
    expect(waterfall.get_by_text("on the critical path").first).to_be_visible()
    expect(waterfall.get_by_text("Turn 1").first).to_be_visible()


def repeat_in_playground(visit: Visit) -> str:
    """Send the request of the response `repeated_id` again in the playground. Return the id of the new response."""
    page = visit.page
    page.get_by_role("link", name="Open in playground").click()
    expect(page.get_by_text("Opened from")).to_be_visible()
    page.get_by_role("button", name="Send").click()
    made = page.locator("#play-lanes a[href*='resp_']").first
    expect(made).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=30_000)
    return str(re.findall(r"resp_[0-9a-v]{28}", made.get_attribute("href") or "")[0])


def revoke_key(visit: Visit, key_page: str, client: OpenAI) -> None:
    """Revoke the key; the API must refuse it within two seconds."""
    page = visit.page
    visit.open(key_page)
    page.get_by_role("link", name=re.compile("Revoke")).first.click()
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("was revoked.")).to_be_visible()
    eventually(lambda: is_refused(client))


def is_refused(client: OpenAI) -> bool:
    """Return True if the API answers 401."""
    try:
        client.models.list()
    except AuthenticationError:
        return True
    return False


def check_audit_log(visit: Visit, *, team: str, name: str) -> None:
    """Check that the audit log contains the actions of the user."""
    visit.open(f"/admin/tenants/auditevent/?q={name}")
    shown = visit.page.locator("#result_list")
    for action in ("team.created", "api_key.created", "api_key.revoked"):
        expect(shown.get_by_text(action).first).to_be_visible()
