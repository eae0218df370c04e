"""Takes the screenshots of the README from a platform with data of `manage.py seed_demo`.

    PYTHONPATH=platform:. .venv/bin/python -m tests.browser.pictures --url http://127.0.0.1:8000 \\
        --user harbor-logistics-lead --password … --key sk-…

`seed_demo` prints user, password and key. The screenshots are written to docs/images.
"""

import argparse
import re
from pathlib import Path
from typing import Any

from openai import OpenAI
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.chromium import chromium

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_SIZE: ViewportSize = {"width": 1440, "height": 900}


def main() -> None:
    """Sign in and take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "user", "password", "key"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    richest, conversation = subjects(OpenAI(base_url=f"{given.url}/v1", api_key=given.key))
    IMAGES.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(viewport=_SIZE, base_url=given.url)
        sign_in(page, given)
        take(page, "home", f"/admin/{span(page)}")
        take(page, "response", f"/admin/responses/response/{richest}/change/?tab=timeline")
        take(page, "conversation", f"/admin/conversations/conversation/{conversation}/change/")
        play(page)


def subjects(client: OpenAI) -> tuple[str, str]:
    """Return the response with the most kinds of items, and the conversation with the most responses."""
    answer: Any = client.get("/responses?limit=100", cast_to=object)
    listed = answer["data"]
    tools = [one for one in listed if one["status"] == "completed" and len(one["output"]) > 2]
    richest = max(tools, key=lambda one: (len({item["type"] for item in one["output"]}), len(one["output"]), one["id"]))
    conversations = [one["conversation"]["id"] for one in listed if one.get("conversation")]
    return richest["id"], max(set(conversations), key=conversations.count)


def sign_in(page: Page, given: argparse.Namespace) -> None:
    """Sign in with the form."""
    page.goto("/admin/")
    page.get_by_label(re.compile("Username|Login")).first.fill(given.user)
    page.get_by_label("Password").fill(given.password)
    page.get_by_role("button", name=re.compile("Log in|Sign in")).first.click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


def span(page: Page) -> str:
    """Return the query of the home page for the longest period."""
    return page.get_by_role("link", name="30 days").first.get_attribute("href") or ""


def take(page: Page, name: str, path: str) -> None:
    """Take a screenshot of a page."""
    page.goto(path)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


def play(page: Page) -> None:
    """Take a screenshot of the playground with an answer."""
    page.goto("/admin/playground/")
    page.wait_for_load_state("networkidle")
    page.locator("[name=instructions]").fill("Answer in one sentence.")
    page.get_by_label("Message", exact=True).last.fill("What is 12*7? And what can you do?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#play-lanes a[href*='resp_']").first).to_be_visible(timeout=12_000)
    page.screenshot(path=IMAGES / "playground.png", animations="disabled")


if __name__ == "__main__":
    main()
