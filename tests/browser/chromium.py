"""The browser that the system has; knows nothing of Django."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
INSTALL = "there is no Chromium; `apt-get update && apt-get install -y chromium` installs one"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that the system has."""
    with sync_playwright() as playwright:
        # The sandbox needs a user namespace, which root and many containers do not have.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
