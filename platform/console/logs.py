# mypy: allow-subclassing-any
"""Read-only lists of append-only tables, newest rows first.

A page reads a bounded number of rows, no matter how many the period has: a filter that no index serves is applied to
the newest rows only, and the page links to the older ones.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from typing_extensions import override
from unfold.paginator import InfinitePaginator

from console.filters import ConditionFilter
from console.scans import SCAN_LIMIT, BoundedChangeList
from console.widgets import ConsoleAdmin, TimeFilter


class LogChangeList(BoundedChangeList):
    """Change list of a log. A filter without an index, and a page far down, are limited to the newest rows.

    The limit counts the rows that the other filters select through an index.
    """

    page_num: int
    list_per_page: int
    span: TimeFilter | None = None
    stopped_at: datetime | None = None

    @override
    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        self.span = next((spec for spec in self.filter_specs if isinstance(spec, TimeFilter)), None)
        if self.span is None or self.span.since is None:
            return rows
        active = [spec for spec in self.filter_specs if spec is not self.span and _is_active(spec)]
        indexed = [spec for spec in active if _has_index(spec)]
        if indexed == active and self.page_num * self.list_per_page <= SCAN_LIMIT:
            return rows
        looked_up = self.root_queryset
        for spec in (self.span, *indexed):
            looked_up = spec.queryset(request, looked_up)
        time = self.span.field_path
        times = looked_up.order_by(f"-{time}").values_list(time, flat=True)
        self.stopped_at = next(iter(times[SCAN_LIMIT - 1 : SCAN_LIMIT]), None)
        return rows if self.stopped_at is None else rows.filter(**{f"{time}__gte": self.stopped_at})

    @property
    @override
    def has_next(self) -> bool:
        """True if the page is full."""
        return len(self.result_list) >= self.list_per_page


def _is_active(spec: Any) -> bool:
    if isinstance(spec, ConditionFilter):
        return spec.condition(None) is not None
    return any(value not in ("", [""], None) for value in spec.used_parameters.values())


def _has_index(spec: Any) -> bool:
    # Every log has an index by team and time.
    return getattr(spec, "field_path", "") == "team" or (isinstance(spec, ConditionFilter) and spec.hint() is not None)


class LogAdmin(ConsoleAdmin):
    """Read-only list of an append-only table, newest first, bounded by a `TimeFilter` unless the table is small."""

    ordering: Sequence[str] = ("-created_at", "-id")
    # Sorting by other columns would need an index for each of them.
    sortable_by = ()
    list_per_page = 50
    list_fullwidth = True
    list_filter_submit = True
    # Tables of millions of rows: counting them, for the list or for facets, would take longer than showing a page.
    paginator = InfinitePaginator
    show_full_result_count = False
    list_before_template = "console/above_log.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LogChangeList

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def search_condition(self, request: HttpRequest, term: str) -> Q:
        """Return the condition for the rows that a search finds: by default the row with this id."""
        return Q(pk=term)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        # Exact ids only: a search for parts would read the whole table. PostgreSQL rejects NUL characters.
        term = search_term.strip().replace("\x00", "")
        is_search = bool(term and self.search_fields)
        return (queryset.filter(self.search_condition(request, term)) if is_search else queryset), False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        if changelist.span is not None:
            changelist.periods = changelist.span.links(changelist)
        return changelist  # type: ignore[no-any-return]  # Unfold has no types
