"""The guided page in a real browser, wide and narrow: a server is connected, and its model answers a first request."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tenants import scope
from tenants.models import Model, Upstream
from tests.browser.accessibility import violations
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.visiting import Visit, person, visiting
from tests.support.api import Api, ok
from tests.support.model_server import ANSWER, ModelServer, model_server
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=INSTALL)]
KEY = "sk-browser-secret-0123456789"


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
        page.get_by_label("Search", exact=True).fill("LARGE")
        expect(page.get_by_role("checkbox")).to_have_count(1)
        page.get_by_role("checkbox", name=first).check()
        check(visit, axe)
        page.get_by_role("button", name="Continue").click()
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
        visit.page.get_by_role("checkbox").first.check()
        visit.page.get_by_role("button", name="Continue").click()
        visit.page.get_by_label("Used as").select_option(label="A fallback for an existing model")
        expect(visit.page.get_by_label("Existing model")).to_be_visible()
        expect(visit.page.get_by_label("Priority")).to_be_hidden()
        assert visit.complaints == []
