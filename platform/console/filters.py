# mypy: allow-subclassing-any
"""List filters that produce one condition each: text boxes and drop-down lists, each declared by one call.

A normal list applies all conditions. A scanned list (`console.scans`) chooses one of them for an index lookup.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.widgets import AutocompleteSelect
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    ChoicesDropdownFilter,
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    TextFilter,
)
from unfold.contrib.filters.forms import AutocompleteDropdownForm, DropdownForm
from unfold.widgets import UnfoldAdminSelectWidget

from console.widgets import TimeFilter

ANY = "Any"
"""Placeholder of filters that are not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHint:
    """The index that serves a filter. A scan looks up the active filter with the lowest `rank`.

    - `is_by_time`: the index returns its rows in order of time, so that the planner needs no sort.
    - `is_for_rare_values`: the lookup is only worthwhile for rare values; a sample of the newest rows decides if it is.
    - `joins_every_lookup`: the condition is part of the lookup, no matter which index is chosen.
    """

    rank: int
    is_by_time: bool = False
    is_for_rare_values: bool = False
    joins_every_lookup: bool = False


class SelectForm(DropdownForm):
    """Form of a drop-down list. The browser's own needs no scripts."""

    widget = UnfoldAdminSelectWidget()

    class Media:
        """No scripts, and none of Unfold's."""

        extend = False


class _SearchedSelect(AutocompleteSelect):
    @override
    def build_attrs(self, base_attrs: Any, extra_attrs: Any = None) -> dict[str, Any]:
        # Django sets an empty placeholder here, so that the selection can be cleared.
        return {**super().build_attrs(base_attrs, extra_attrs), "data-placeholder": ANY}


class RelatedForm(AutocompleteDropdownForm):
    """Form of a list that is searched on the server."""

    widget = _SearchedSelect


class ChoicesForm(DropdownForm):
    """Form of a list of which several values can be chosen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs = {**field.widget.attrs, "data-placeholder": ANY}


class SelectFilter(DropdownFilter):
    """Drop-down list."""

    form_class = SelectForm
    all_option = ("", ANY)


class SingleChoiceFilter(ChoicesDropdownFilter):
    """Drop-down list of the choices of a column."""

    form_class = SelectForm
    all_option = ("", ANY)


class ChoicesFilter(MultipleChoicesDropdownFilter):
    """List of the choices of a column, of which several can be chosen."""

    form_class = ChoicesForm
    all_option = None


class RelatedFilter(AutocompleteSelectFilter):
    """List of related rows, such as teams, that is searched on the server."""

    form_class = RelatedForm


class ConditionFilter:
    """Mixin for filters that produce a condition. Has to precede Unfold's filter class in the list of bases."""

    lookup = ""
    index: IndexHint | None = None
    # Set by a scanned list, which collects the conditions and applies them itself.
    is_deferred = False
    # Methods of Unfold's filter.
    value: Callable[[], Any]
    expected_parameters: Callable[[], list[str | None]]

    def condition(self, span: TimeFilter | None) -> Q | None:
        """Return the condition of the filter, or None if it is not set. `span`: the time range of a scanned list."""
        return Q(**{self.lookup: self.value()}) if self.value() else None

    def hint(self) -> IndexHint | None:
        """Return the index that serves the condition, if any."""
        return self.index

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that match the condition."""
        condition = None if self.is_deferred else self.condition(None)
        return queryset if condition is None else queryset.filter(condition)


class TextConditionFilter(ConditionFilter, TextFilter):
    """Text box. `condition_for` returns the condition for its text, or None if the text is not a valid value."""

    condition_for: Callable[[str], Q | None]

    @property
    def text(self) -> str:
        """The entered text."""
        # PostgreSQL raises an error for NUL characters.
        return (self.value() or "").replace("\x00", "").strip()

    @override
    def condition(self, span: TimeFilter | None) -> Q | None:
        return self.condition_for(self.text) if self.text else None


class ChoiceFilter(ConditionFilter, SelectFilter):
    """Drop-down list of conditions."""

    options: Sequence[tuple[str, str]]
    condition_for: Callable[[str], Q]

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self.options

    @override
    def condition(self, span: TimeFilter | None) -> Q | None:
        chosen = self.value()
        return self.condition_for(chosen) if chosen in dict(self.options) else None


def text_filter(
    parameter: str, label: str, condition: Callable[[str], Q | None], *, hint: IndexHint | None = None
) -> type[TextConditionFilter]:
    """Return a filter with a text box. `condition` returns None if the text is not a valid value."""

    class Filter(TextConditionFilter):
        title, parameter_name, index, condition_for = label, parameter, hint, staticmethod(condition)

    return Filter


def exact(parameter: str, label: str, *, lookup: str = "", hint: IndexHint | None = None) -> type[TextConditionFilter]:
    """Return a filter with a text box for the exact value of a column. By default, the parameter names the column."""
    return text_filter(parameter, label, lambda value: Q(**{lookup or parameter: value}), hint=hint)


def choice_filter(
    parameter: str, label: str, choices: Sequence[tuple[str, str]], condition: Callable[[str], Q]
) -> type[ChoiceFilter]:
    """Return a filter with a drop-down list."""

    class Filter(ChoiceFilter):
        title, parameter_name, options, condition_for = label, parameter, choices, staticmethod(condition)

    return Filter
