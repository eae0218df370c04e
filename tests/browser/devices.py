"""Input devices of a user: a mouse, whose clicks are counted, and a keyboard alone, whose focus is checked.

A test of a task performs it with a device. Typing, pasting, Tab and Enter are not clicks.
"""

from abc import ABC, abstractmethod

import pytest
from playwright.sync_api import Locator, expect
from typing_extensions import override

from tests.browser.visiting import Visit

MAX_TABS = 15
"""Maximum number of Tab presses to an element, including the one to the skip link."""
_NEARBY = 5

_LOOK = """
  for (const animation of document.getAnimations()) try { animation.finish(); } catch { /* an endless one */ }
  // Bars of charts have a stroke in place of an outline.
  const look = (element) => [element, element.parentElement, ...element.querySelectorAll('.c-hit')].map((box) => {
    const style = getComputedStyle(box);
    const outline = style.outlineStyle === 'none' ? '' : style.outlineStyle + style.outlineWidth + style.outlineColor;
    return outline + style.boxShadow + style.stroke;
  }).join();"""
# What has to be done until `target` has the focus.
_PLACE = f"""(target) => {{
  {_LOOK}
  const stop = document.activeElement;
  const isFocused = stop !== document.body;
  window.lastStop = {{}};
  window.plain = look(target);
  return {{
    isReached: stop === target,
    isOutside: document.getElementById('main-content').contains(target) && !isFocused,
    isBehind: isFocused && Boolean(stop.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_PRECEDING),
  }};
}}"""
# Check the element that has the focus now, and how the previous one looked while it had the focus.
_STOP = f"""async (target, isBackwards) => {{
  {_LOOK}
  const stop = document.activeElement;
  const last = window.lastStop;
  const problems = [];
  const report = (problem, element) => problems.push(`${{problem}}: ${{element.outerHTML.slice(0, 200)}}`);
  if (last.element === stop) {{
    // The parts of a time are stops of their own, with outlines that scripts cannot see.
    if (stop.type !== 'datetime-local') report('Tab does not leave', stop);
    return {{ problems, isReached: stop === target }};
  }}
  if (last.element?.isConnected) {{
    if (last.look === look(last.element)) report('the focus is invisible', last.element);
    const isBehind = Boolean(last.element.compareDocumentPosition(stop) & Node.DOCUMENT_POSITION_PRECEDING);
    if (stop !== document.body && isBehind !== isBackwards) report('the focus jumps to', stop);
  }}
  if (stop === target && window.plain === look(stop)) report('the focus is invisible', stop);
  if (stop !== document.body) {{
    const isInside = () => {{
      const box = stop.getBoundingClientRect();
      const isVisible = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
      return box.width && box.height && isVisible;
    }};
    // The page may scroll to the focus in one of the next frames.
    for (let frame = 0; frame < 30 && !isInside(); frame++) await new Promise(requestAnimationFrame);
    if (!isInside()) report('the focus is outside of the window', stop);
  }}
  window.lastStop = stop === document.body ? {{}} : {{ element: stop, look: look(stop) }};
  return {{ problems, isReached: stop === target }};
}}"""


class Device(ABC):
    """An input device. `clicks` is the number of clicks so far."""

    def __init__(self, visit: Visit) -> None:
        self.clicks = 0
        self._page = visit.page
        self._keyboard = visit.page.keyboard

    @abstractmethod
    def press(self, target: Locator) -> None:
        """Press a link, a button or a checkbox."""

    @abstractmethod
    def open_row(self, link: Locator) -> None:
        """Open a row of a list by its link."""

    @abstractmethod
    def open_page(self, key: str, link: Locator) -> None:
        """Open a page by its link in the sidebar or by its shortcut, the key g and a letter."""

    @abstractmethod
    def enter(self, field: Locator, text: str) -> None:
        """Type text into a field, in place of its content."""

    @abstractmethod
    def choose(self, field: Locator, label: str) -> None:
        """Choose an option of a select."""


class Mouse(Device):
    """A mouse. The first field of a form costs a click, or two if it is a select; Tab leads to the next fields."""

    @override
    def press(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    @override
    def open_row(self, link: Locator) -> None:
        self.press(link)

    @override
    def open_page(self, key: str, link: Locator) -> None:
        self.press(link)

    @override
    def enter(self, field: Locator, text: str) -> None:
        if not self._is_next(field):
            self.press(field)
        self._keyboard.press("Control+a")
        self._keyboard.type(text)

    @override
    def choose(self, field: Locator, label: str) -> None:
        if self._is_next(field):
            self._keyboard.type(label)
        else:
            # The system draws the options, so a test cannot click them.
            field.focus()
            field.select_option(label=label)
            self.clicks += 2

    def _is_next(self, field: Locator) -> bool:
        """Return whether Tab leads to the field from another one of its form."""
        if not field.evaluate("field => field.form.contains(document.activeElement)"):
            return False
        for _ in range(_NEARBY):
            self._keyboard.press("Tab")
            if field.evaluate("field => field === document.activeElement"):
                return True
        return False


class Keyboard(Device):
    """A keyboard. Each stop of the focus must be visible, in the order of the page, and left by Tab."""

    @override
    def press(self, target: Locator) -> None:
        self.focus(target)
        self._keyboard.press("Space" if target.get_attribute("type") == "checkbox" else "Enter")

    @override
    def open_row(self, link: Locator) -> None:
        expect(link).to_be_visible()
        for _ in range(MAX_TABS):
            self._keyboard.press("j")
            if link.evaluate("link => link.closest('tr').contains(document.activeElement)"):
                self._keyboard.press("Enter")
                return
        pytest.fail("The key j does not reach the row.")

    @override
    def open_page(self, key: str, link: Locator) -> None:
        self._keyboard.press("g")
        self._keyboard.press(key)

    @override
    def enter(self, field: Locator, text: str) -> None:
        self.focus(field)
        self._keyboard.press("Control+a")
        self._keyboard.type(text)

    @override
    def choose(self, field: Locator, label: str) -> None:
        self.focus(field)
        self._keyboard.type(label)

    def focus(self, target: Locator) -> None:
        """Press Tab until an element has the focus, after the skip link if nothing has the focus yet."""
        expect(target).to_be_visible()
        place, pressed = target.evaluate(_PLACE), 0
        if place["isOutside"]:
            self._keyboard.press("Tab")
            expect(self._page.get_by_role("link", name="Skip to content")).to_be_focused()
            self._keyboard.press("Enter")
            pressed = 1
        is_reached = place["isReached"]
        while not is_reached:
            assert pressed < MAX_TABS, f"Tab does not reach {target}"
            self._keyboard.press("Shift+Tab" if place["isBehind"] else "Tab")
            pressed += 1
            stop = target.evaluate(_STOP, place["isBehind"])
            assert not stop["problems"], "\n".join(stop["problems"])
            is_reached = stop["isReached"]


DEVICES = (Mouse, Keyboard)
