"""The values that a browser would submit for a form of a page."""

from html.parser import HTMLParser
from typing import Any

from typing_extensions import override


def form_values(html: str, form_id: str) -> dict[str, list[str]]:
    """Return the values of a form without its buttons, as `Client.post` takes them."""
    reader = _FormReader(form_id)
    reader.feed(html)
    assert reader.was_found, f"no form {form_id}"
    return reader.values


class _FormReader(HTMLParser):
    """Collects the fields of one form."""

    def __init__(self, form_id: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self.was_found = False
        self._form_id = form_id
        self._is_inside = False
        self._select = ""

    @override
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given: dict[str, str | None] = dict(attrs)
        if tag == "form":
            self._is_inside = given.get("id") == self._form_id
            self.was_found = self.was_found or self._is_inside
        if not self._is_inside:
            return
        if tag == "input" and (name := given.get("name")):
            is_box = given.get("type") in {"checkbox", "radio"}
            if not is_box or "checked" in given:
                self._add(name, given.get("value") or ("on" if is_box else ""))
        elif tag == "select":
            self._select = given.get("name") or ""
            self.values[self._select] = []
        elif tag == "option" and self._select and ("selected" in given or not self.values[self._select]):
            # A browser submits the first option if none is selected.
            self.values[self._select] = [given.get("value") or ""]

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_inside = False
        elif tag == "select":
            self._select = ""

    def _add(self, name: str, value: str) -> None:
        self.values.setdefault(name, []).append(value)
