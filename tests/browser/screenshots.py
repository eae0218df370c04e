"""Takes screenshots of the main pages of the console at three widths, in light and dark mode, to look at them.

    PYTHONPATH=platform:. .venv/bin/python -m tests.browser.screenshots --url http://127.0.0.1:8000 \\
        --user admin --password … --folder /tmp/screenshots [--pages home,usage]

The platform should have data of `manage.py seed_demo`.
"""

import argparse
import re
from pathlib import Path

from playwright.sync_api import FloatRect, Page

from tests.browser.chromium import chromium
from tests.browser.pictures import sign_in

WIDTHS = (380, 1280, 1920)
# Of long pages, the beginning.
_MAX_HEIGHT = 3200
_RESPONSES = "/admin/responses/response/?period=30d"
PAGES = {
    "home": "/admin/",
    "responses": _RESPONSES,
    "conversations": "/admin/conversations/conversation/?period=30d",
    "tool-calls": "/admin/responses/toolcall/?period=30d",
    "running-jobs": "/admin/live/",
    "approvals": "/admin/approvals/",
    "api-keys": "/admin/tenants/apikey/",
    "usage": "/admin/usage/",
    "playground": "/admin/playground/",
    "refused-requests": "/admin/refused/",
    "model-routes": "/admin/routes/",
    "usage-records": "/admin/tenants/usagerecord/?period=30d",
}
# Pages of an object, with the list whose first row it is.
OBJECTS = {
    "response": f"{_RESPONSES}&status__exact=completed",
    "conversation": PAGES["conversations"],
    "team": "/admin/tenants/team/",
}


def main() -> None:
    """Sign in and take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "user", "password", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--pages", default="", help="names of pages, separated by commas (default all)")
    given = parser.parse_args()
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(base_url=given.url)
        sign_in(page, given)
        for name, path in addresses(page).items():
            if not given.pages or name in given.pages.split(","):
                take(page, path, folder / name)


def addresses(page: Page) -> dict[str, str]:
    """Return the paths of all pages, with the ids of objects in the lists."""
    objects = {name: rows(page, path)[0] for name, path in OBJECTS.items()}
    failed, good = (rows(page, f"{_RESPONSES}&status__exact={status}")[0] for status in ("failed", "completed"))
    first, second = (re.findall("resp_[0-9a-v]+", path)[0] for path in (failed, good))
    return {**PAGES, **objects, "compare": f"/admin/compare/?a={first}&b={second}"}


def rows(page: Page, path: str) -> list[str]:
    """Return the links of the rows of a list."""
    page.goto(path)
    links: list[str] = page.locator("#result_list tbody a[href*='/change/']").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    return links


def take(page: Page, path: str, file: Path) -> None:
    """Take the screenshots of a page."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(path, wait_until="load")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_function("width => innerWidth === width", arg=width)
            height = min(page.evaluate("document.documentElement.scrollHeight"), _MAX_HEIGHT)
            area: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
            name = f"{file.name}-{width}-{scheme}.png"
            page.screenshot(path=file.with_name(name), full_page=True, clip=area, animations="disabled")


if __name__ == "__main__":
    main()
