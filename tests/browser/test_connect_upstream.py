"""The guided page in a real browser: from Home to a first answer in six clicks or by keyboard, wide and narrow."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from seeding.seed import Seeded
from tenants import scope
from tenants.models import Model, Upstream
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.devices import DEVICES, Device, Mouse
from tests.browser.visiting import Visit, person, visiting
from tests.support.api import Api, Caller, ok
from tests.support.model_server import ANSWER, ModelServer, model_server
from tests.support.upstream import ScriptedUpstream, running_upstream
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
KEY = "sk-browser-secret-0123456789"
GREETING = "Hello from the first request."


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server with two models that states their context windows."""
    rows = [
        {"id": f"{name}-{uuid.uuid4().hex[:8]}", "owned_by": "vllm", "max_model_len": 40960}
        for name in ("large", "a-small-model-with-a-long-name-that-has-no-space-in-it")
    ]
    with model_server({"/v1/models": {"object": "list", "data": rows}}) as running:
        yield running
    with scope.every_team():
        Upstream.objects.filter(base_url=running.base_url).delete()


@pytest.fixture
def host(database: None) -> Iterator[ScriptedUpstream]:
    """A server that lists one model, which answers one request with `GREETING`."""
    with running_upstream() as running, running.script() as script:
        running.listed = [script.say(GREETING).model]
        yield running
    with scope.every_team():
        Upstream.objects.filter(base_url=running.url).delete()


@pytest.fixture
def new_installation(seeded: Seeded, database: None) -> Iterator[None]:
    """An installation without models: those of other tests are disabled for the time of this test."""
    enabled = list(Model.objects.filter(enabled=True).values_list("pk", flat=True))
    Model.objects.filter(pk__in=enabled).update(enabled=False)
    yield
    Model.objects.filter(pk__in=enabled).update(enabled=True)


@pytest.mark.parametrize("device_type", DEVICES)
def test_a_new_installation_answers_a_request_after_at_most_six_clicks(
    device_type: type[Device], new_installation: None, host: ScriptedUpstream, browser: Browser, web: WebProcess
) -> None:
    with visiting(browser, web.url, person("administrator")) as visit:
        device, page = device_type(visit), visit.page
        visit.open("/admin/")
        device.press(page.get_by_role("link", name="Add upstream"))
        device.choose(page.get_by_label("Well-known server"), "vLLM")
        device.enter(page.get_by_label("Base URL"), host.url)
        device.enter(page.get_by_label("API key"), KEY)
        device.press(page.get_by_role("button", name="Test", exact=True))
        connect_and_request(device, visit)
    assert Upstream.objects.get(base_url=host.url).api_key == KEY


@pytest.mark.parametrize("device_type", DEVICES)
def test_a_further_upstream_answers_a_request_after_at_most_six_clicks(
    device_type: type[Device], host: ScriptedUpstream, browser: Browser, web: WebProcess, team: Caller
) -> None:
    with visiting(browser, web.url, person("operator")) as visit:
        device, page = device_type(visit), visit.page
        sidebar = page.locator("#nav-sidebar")
        visit.open("/admin/")
        if device_type is Mouse:
            device.press(sidebar.locator("summary", has_text="Platform"))
        device.open_page("n", sidebar.get_by_role("link", name="Upstreams"))
        device.press(page.get_by_role("link", name="Connect an upstream"))
        device.enter(page.get_by_label("Base URL"), host.url)
        page.keyboard.press("Enter")
        connect_and_request(device, visit)
    assert Upstream.objects.get(base_url=host.url).name == host.url.split("/")[2]


def connect_and_request(device: Device, visit: Visit) -> None:
    """Connect a tested server and send the first request."""
    page = visit.page
    expect(page.get_by_text("Test passed")).to_be_visible()
    device.press(page.get_by_role("button", name="Connect", exact=True))
    device.press(page.get_by_role("button", name="Send a test request"))
    expect(page.get_by_text(GREETING)).to_be_visible()
    assert device.clicks <= 6
    assert visit.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1280, "light")])
def test_an_upstream_is_connected_and_answers_at_any_width(
    width: int, scheme: Any, browser: Browser, web: WebProcess, api: Api, server: ModelServer, axe: str
) -> None:
    first, _ = (row["id"] for row in server.pages["/v1/models"]["data"])
    name = f"guided-{uuid.uuid4().hex[:8]}"
    with visiting(browser, web.url, person("administrator"), color_scheme=scheme, bypass_csp=True) as visit:
        page = visit.page
        visit.wide(width)
        visit.open("/admin/tenants/upstream/add/")
        page.get_by_label("Well-known server").select_option(label="vLLM")
        expect(page.get_by_label("Base URL")).to_have_value("http://HOST:8000/v1")
        page.get_by_label("Base URL").fill(server.base_url.removesuffix("/v1"))
        page.locator("[name=name]").fill(name)
        page.get_by_label("API key").fill(KEY)
        page.get_by_label("API key").press("Enter")
        expect(page.get_by_text("Test failed.")).to_be_visible()
        check(visit, axe)
        page.get_by_role("button", name="Use this URL").click()
        expect(page.get_by_text("Test passed")).to_be_visible()
        page.get_by_role("button", name="Select none").click()
        expect(page.get_by_text("0 of 2 models selected")).to_be_visible()
        page.get_by_role("searchbox", name="Search", exact=True).fill("LARGE")
        expect(page.get_by_role("checkbox")).to_have_count(1)
        page.get_by_role("checkbox", name=first).check()
        check(visit, axe)
        page.get_by_role("button", name="Set capabilities and prices").click()
        expect(page.get_by_label("Context window")).to_have_value("40960")
        page.get_by_role("button", name="Detect").click()
        expect(page.get_by_text("The server accepts an effort")).to_be_visible()
        page.locator("[name=m0-price]").select_option(label="Enter a price")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Enter a price.").first).to_be_visible()
        page.get_by_label("Input price").fill("1")
        page.get_by_label("Output price").fill("2")
        check(visit, axe)
        assert KEY not in page.content()
        page.get_by_label("Output price").press("Enter")
        page.get_by_role("button", name="Send a test request").click()
        expect(page.get_by_text(ANSWER)).to_be_visible()
        check(visit, axe)
        assert visit.complaints == []
    assert Model.objects.get(name=first).upstream.api_key == KEY
    answer = ok(api.post("/responses", {"model": first, "input": "Hi"}))
    assert answer["output"][0]["content"][0]["text"] == ANSWER


def check(visit: Visit, axe: str) -> None:
    """Assert that the page is not wider than the window and accessible."""
    assert visit.overflow() <= 0
    assert violations(visit, axe, visit.page.url) == []


def test_the_page_works_under_the_content_security_policy(
    browser: Browser, web: WebProcess, database: None, server: ModelServer
) -> None:
    with visiting(browser, web.url, person("administrator")) as visit:
        visit.open("/admin/upstreams/connect/")
        visit.page.get_by_label("Base URL").fill(server.base_url)
        visit.page.get_by_role("button", name="Test", exact=True).click()
        visit.page.get_by_role("button", name="Select none").click()
        visit.page.get_by_role("checkbox").first.check()
        visit.page.get_by_role("button", name="Set capabilities and prices").click()
        visit.page.get_by_label("Used as").select_option(label="A fallback for an existing model")
        expect(visit.page.get_by_label("Existing model")).to_be_visible()
        expect(visit.page.get_by_label("Priority")).to_be_hidden()
        assert visit.complaints == []
