# mypy: allow-subclassing-any
"""Bounded scans for the response list: newest rows first, at most `SCAN_LIMIT` of them.

One filter is looked up by its index, and the remaining filters are evaluated on the rows that it returns, in order of
time. A search for something rare shows the matches among the newest rows and a link to continue from there. No
combination of filters makes a page read millions of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet, Value
from django.http import HttpRequest
from django.utils.http import urlencode
from typing_extensions import override
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from console.widgets import TimeFilter
from responses.admin.response_list.filters import ConditionFilter, IndexHint
from responses.admin.response_list.time_range import TimeRange
from tenants.console.content_access import may_read

_TIME = ("period", "created_at_")
# A filter with 20 matches among the newest 20,000 rows is frequent: a scan in order of time fills a page without its
# index.
_SAMPLE_ROWS, _FREQUENT_MATCHES = 20_000, 20
SCAN_LIMIT = 30_000
"""Rows that one page reads at most."""

_SET_PLANNER = """
SELECT set_config('enable_bitmapscan', %s, true), set_config('enable_seqscan', %s, true),
       set_config('enable_sort', %s, true)
"""
# Hints whose index is ordered by time, so that the planner needs no sort.
_ORDERED_BY_TIME = {None, IndexHint.KEY, IndexHint.STATUS, IndexHint.MODEL, IndexHint.TEAM}
_SCAN = """
SELECT id, created_at, matches, place FROM (
    SELECT id, created_at, matches, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place
    FROM ({rows}) AS newest
) AS scanned
WHERE matches OR place = %s
ORDER BY created_at DESC, id DESC
LIMIT %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """Filters of a request, split into an index lookup (`indexed`) and a condition evaluated on its rows.

    `in_order`: an index returns the rows of the lookup ordered by time.
    """

    indexed: QuerySet[Any]
    condition: Q | None
    in_order: bool = False

    def rows(self, statement: str, *before: Any, max_rows: int, after: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement over `{rows}`: the newest `max_rows` rows in order, with a boolean column `matches`."""
        try:
            sql, parameters = self._newest(max_rows).query.sql_with_params()
        except EmptyResultSet:
            return []
        with connection.cursor() as cursor:
            # PostgreSQL costs the plan for all rows up to the limit. For a frequent value it prefers a sort of all its
            # rows over the ordered index scan, although the scan can stop after a page.
            cursor.execute(_SET_PLANNER, ["off" if self.in_order else "on"] * 3)
            cursor.execute(statement.format(rows=sql), [*before, *parameters, *after])
            rows = list(cursor.fetchall())
            # The settings last for the transaction, and the request runs other statements in it.
            cursor.execute(_SET_PLANNER, ["on"] * 3)
        return rows

    def _newest(self, max_rows: int) -> QuerySet[Any, Any]:
        condition = self.condition
        matches = Value(value=True) if condition is None else ExpressionWrapper(condition, BooleanField())
        newest = self.indexed.order_by("-created_at", "-id").annotate(matches=matches)
        rows: QuerySet[Any, Any] = newest.values_list("id", "created_at", "status", "matches")
        return rows[:max_rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Ids of the matching rows, newest first.

    `stopped_at` is the time of the oldest scanned row if the scan reached its limit, None if it saw all rows.
    """

    ids: Sequence[str]
    stopped_at: datetime | None = None


def scan(plan: ScanPlan, *, limit: int, max_rows: int = SCAN_LIMIT) -> ScanResult:
    """Return the newest `limit` matching rows among the newest `max_rows` rows."""
    rows = plan.rows(_SCAN, max_rows=max_rows, after=[max_rows, limit])
    ids = [row_id for row_id, _, matches, _ in rows if matches]
    # The statement returns the row at the limit even if it does not match: its time is where the next scan continues.
    return ScanResult(ids=ids, stopped_at=rows[-1][1] if rows and rows[-1][3] == max_rows else None)


def plan_scan(rows: QuerySet[Any], specs: Sequence[Any], span: TimeRange) -> ScanPlan:
    """Split the filters into an index lookup and a condition.

    A team filter always joins the lookup, so that only rows of the team count towards the scan limit.
    """
    active = [
        (spec.index_hint, term)
        for spec in specs
        if isinstance(spec, ConditionFilter) and (term := spec.condition(span))
    ]
    first = min((hint for hint, _ in active if hint is not None), default=None)
    # The metadata index is not ordered by time. It pays off for rare values only, and frequent ones are recognised by a
    # sample of the newest rows.
    if first is IndexHint.METADATA and span.since is not None:
        unhinted = [(None if hint is IndexHint.METADATA else hint, term) for hint, term in active]
        plan = _plan(rows, unhinted, min((hint for hint, _ in unhinted if hint is not None), default=None), span)
        if len(scan(plan, limit=_FREQUENT_MATCHES, max_rows=_SAMPLE_ROWS).ids) == _FREQUENT_MATCHES:
            return plan
    return _plan(rows, active, first, span)


def _plan(
    rows: QuerySet[Any], active: Sequence[tuple[IndexHint | None, Q]], first: IndexHint | None, span: TimeRange
) -> ScanPlan:
    lookups = [term for hint, term in active if hint is not None and hint in {first, IndexHint.TEAM}]
    others = [term for hint, term in active if hint is None or hint not in {first, IndexHint.TEAM}]
    condition = reduce(and_, others) if others else None
    return ScanPlan(
        indexed=rows.filter(*lookups),
        condition=condition,
        in_order=first in _ORDERED_BY_TIME and span.since is not None,
    )


class FilteredChangeList(ChangeList):
    """Parse the filters of a request without reading rows, for views that count or export."""

    span: TimeFilter
    page_num: int
    scan_limit = f"{SCAN_LIMIT:,}"
    active: list[ConditionFilter]

    @override
    def get_results(self, request: HttpRequest) -> None:
        self.request = request
        self.span = next(spec for spec in self.filter_specs if isinstance(spec, TimeFilter))
        within = TimeRange(request=request, since=self.span.since, until=self.span.until)
        self.plan = plan_scan(self.queryset, self.filter_specs, within)
        condition_filters = [spec for spec in self.filter_specs if isinstance(spec, ConditionFilter)]
        self.active = [spec for spec in condition_filters if spec.condition(within) is not None]
        self.result_list: list[Model] = []

    @property
    def query_string(self) -> str:
        """Return the current filters and time range as a query string."""
        return str(self.get_query_string())

    def link(self, **query: Any) -> str:
        """Return a link to the list with the current filters and another time range."""
        kept = {name: values for name, values in self.filter_params.items() if not name.startswith(_TIME)}
        return f"?{urlencode({**kept, **query}, doseq=True)}"


class UncountedPaginator(InfinitePaginator):
    """Paginator without a total count; the last page has no link to a next one."""

    template_name = "console/pagination.html"


class ResponseChangeList(FilteredChangeList):
    """One page of the response list."""

    @override
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.page_num = max(1, self.page_num)
        start = (self.page_num - 1) * self.list_per_page
        # One row more than the page shows: its presence says that there is a next page.
        result = scan(self.plan, limit=start + self.list_per_page + 1)
        ids = result.ids[start : start + self.list_per_page]
        rows = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)} if ids else {}
        self.result_list = [rows[row_id] for row_id in ids if row_id in rows]
        for row in self.result_list:
            row.readable = may_read(request, row.team_id)  # type: ignore[attr-defined]  # the columns have no request
        self.has_next = len(result.ids) > start + self.list_per_page
        self.stopped_at = result.stopped_at
        self.continue_url = self._continue_url(result.stopped_at)
        # Django's templates read these attributes. A total is never counted, because that would read every row.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.can_show_all = self.show_admin_actions = False
        self.multi_page = True
        self.paginator = UncountedPaginator(self.result_list, self.list_per_page)

    @property
    def previous_link(self) -> str:
        """Return a link to the page of newer responses."""
        return str(self.get_query_string({PAGE_VAR: self.page_num - 1}))

    @property
    def next_link(self) -> str:
        """Return a link to the page of older responses."""
        return str(self.get_query_string({PAGE_VAR: self.page_num + 1}))

    def _continue_url(self, stopped_at: datetime | None) -> str:
        if stopped_at is None or self.span.since is None or self.has_next:
            return ""
        # The filter has a resolution of one second, so the second in which the scan stopped is scanned again.
        last = stopped_at + timedelta(seconds=1)
        return self.link(**bound_params("from", self.span.since), **bound_params("to", last))


def bound_params(end: str, moment: datetime) -> dict[str, str]:
    """Return one end of a time range as query parameters of the time filter."""
    at = moment.astimezone(UTC)
    return {f"created_at_{end}_0": f"{at:%Y-%m-%d}", f"created_at_{end}_1": f"{at:%H:%M:%S}"}
