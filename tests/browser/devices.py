"""Moving through a page with the keyboard."""

import pytest

from tests.browser.visiting import Visit


def press_until_focused(visit: Visit, selector: str) -> None:
    """Press Tab until an element has the focus."""
    target = visit.page.locator(selector)
    for _ in range(150):
        visit.page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"Tab does not reach {selector}")
