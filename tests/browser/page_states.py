"""States of a page that its first view does not show: opened panels, tabs and menus, forms with errors, empty lists."""

from collections.abc import Iterator

from playwright.sync_api import Locator

from tests.browser.visiting import Visit

# Groups of fields are below the first tab of a form, so they are shown before the other tabs.
_TABS = ("#content button[aria-pressed]", "#tabs-items a[href^='#'], #content [role=tab]")
_MENUS = "[popovertarget], [aria-haspopup=menu], [aria-haspopup=true]"
_NO_MATCH = "no-such-row"


def states(visit: Visit) -> Iterator[str]:
    """Put the open page into each of its states in turn, and yield the name of the state."""
    yield "as loaded"
    if visit.page.evaluate(_OPEN_DETAILS):
        # Filters load their scripts when they are opened.
        visit.page.wait_for_load_state("networkidle")
        yield "with open panels"
    for tabs in _TABS:
        yield from _opened(visit, visit.page.locator(tabs), "tab")
    # The menus of all rows of a list are alike.
    yield from _opened(visit, visit.page.locator(_MENUS), "menu", most=1)


def addressed_states(visit: Visit) -> list[str]:
    """Return the URLs of the open page's other tabs, and of the list without rows if it is a list."""
    path = visit.page.evaluate("location.pathname")
    links = visit.page.evaluate("[...document.querySelectorAll('main a')].map(a => a.getAttribute('href') || '')")
    tabs = {link for link in links if link.startswith("?tab=")}
    urls = [f"{path}{tab}" for tab in sorted(tabs)]
    return [*urls, f"{path}?q={_NO_MATCH}"] if visit.page.locator("#searchbar").count() else urls


def show_errors(visit: Visit) -> bool:
    """Submit the form of the open page without its required values. Return whether the page has such a form."""
    if not visit.page.evaluate(_CLEAR):
        return False
    with visit.page.expect_navigation(wait_until="load"):
        visit.page.evaluate("document.querySelector('form[data-cleared]').requestSubmit()")
    return True


def _opened(visit: Visit, controls: Locator, name: str, *, most: int = 20) -> Iterator[str]:
    shown = [control for control in controls.all() if control.is_visible()]
    for control in shown[:most]:
        if not control.is_visible():
            continue
        # Opening may change the attributes by which the control was found.
        title = control.inner_text().strip()
        control.click()
        yield f"with the {name} {title!r}"
    if shown:
        visit.page.keyboard.press("Escape")


_OPEN_DETAILS = """() => {
  const closed = [...document.querySelectorAll('#page details:not([open])')].filter(it => it.checkVisibility());
  for (const it of closed) it.open = true;
  return closed.length;
}"""
# Only forms that cannot be saved without a value: the others would change the data of other tests.
_CLEAR = """() => {
  const form = document.querySelector('main form[method=post i]:has([required])');
  if (!form || !/\\/(add|change|invite)\\/$/.test(location.pathname)) return false;
  const required = [...form.querySelectorAll('[required]')].filter(it => !['hidden', 'file'].includes(it.type));
  for (const it of required) {
    if (it.type === 'checkbox' || it.type === 'radio') it.checked = false;
    else it.value = '';
  }
  form.noValidate = true;
  form.dataset.cleared = '';
  return required.length > 0;
}"""
