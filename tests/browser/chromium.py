"""The installed Chromium. Independent of Django."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.waiting import PATIENCE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
INSTALL = "there is no Chromium; `apt-get update && apt-get install -y chromium` installs one"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the installed Chromium with the timeouts of the tests."""
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        # The sandbox needs user namespaces, which are not available to root and in many containers.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
