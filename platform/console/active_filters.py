"""Filters that are set in a list, as chips with a link that removes them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.forms import Form, ModelChoiceField
from django.http import HttpRequest

# Words of filter titles that are not lower-case; titles come from the names of columns, too.
_SPELLING = {"api": "API", "id": "ID", "ip": "IP", "mcp": "MCP", "url": "URL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFilter:
    """A filter that is set. `url` is that of the list without it."""

    label: str
    value: str
    url: str


def filter_label(title: object) -> str:
    """Return the label of a filter: "API key" for "api key"."""
    words = " ".join(_SPELLING.get(word.lower(), word) for word in str(title).split())
    return words[:1].upper() + words[1:]


def active_filters(request: HttpRequest, changelist: ChangeList) -> list[ActiveFilter]:
    """Return the filters that are set, in the order of the list."""
    chips = []
    for spec in changelist.filter_specs:
        hidden = getattr(spec, "parameters_shown_elsewhere", ())
        expected = [name for name in spec.expected_parameters() if name]
        given = {name: values for name in expected if name not in hidden and any(values := request.GET.getlist(name))}
        if given:
            value = _shown_value(spec, changelist, given)
            chips.append(ActiveFilter(label=filter_label(spec.title), value=value, url=url_without(request, given)))
    return chips


def url_without(request: HttpRequest, names: Iterable[str]) -> str:
    """Return the link to the first page of the list without these parameters."""
    query = request.GET.copy()
    for name in (*names, PAGE_VAR):
        query.pop(name, None)
    return f"?{query.urlencode()}"


def _shown_value(spec: Any, changelist: ChangeList, given: dict[str, list[str]]) -> str:
    choices = list(spec.choices(changelist))
    form = choices[0].get("form") if choices else None
    if form is None:
        return next((str(choice["display"]) for choice in choices if choice["selected"]), "")
    return ", ".join(text for name, values in given.items() for text in _texts(form, name, values))


def _texts(form: Form, name: str, values: list[str]) -> list[str]:
    field: Any = form.fields.get(name)
    values = [value for value in values if value]
    if isinstance(field, ModelChoiceField):
        try:
            return [str(row) for row in field.queryset.filter(pk__in=values)] or values  # type: ignore[union-attr]
        except (ValueError, ValidationError):
            return values
    names = {str(value): str(text) for value, text in getattr(field, "choices", ())}
    return [names.get(value, value) for value in values]
