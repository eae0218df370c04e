# mypy: allow-subclassing-any
"""Lists of tables with millions of rows: bounded scans, newest rows first, at most `SCAN_LIMIT` of them.

One filter is looked up in its index (`IndexHint`), and the other filters are evaluated on the rows of this lookup, in
order of time. A search for something rare shows the matches among the newest rows and a link to continue from there. No
combination of filters makes a page read millions of rows. The table has an index by `created_at`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from operator import and_
from typing import Any

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet, Value
from django.http import HttpRequest
from django.utils.http import urlencode
from typing_extensions import override
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from console.filters import ConditionFilter, IndexHint
from console.widgets import TimeFilter

SCAN_LIMIT = 30_000
"""Rows that one page reads at most."""
# A value with 20 matches among the newest 20,000 rows is frequent: a scan in order of time fills a page fast enough
# without an index for the value.
_SAMPLE_ROWS, _FREQUENT_MATCHES = 20_000, 20
_SET_PLANNER = """
SELECT set_config('enable_bitmapscan', %s, true), set_config('enable_seqscan', %s, true),
       set_config('enable_sort', %s, true)
"""
# The row at the limit is returned even if it does not match: its time is where the next scan continues. The other times
# are not read, because converting them takes most of the time of a page far down the list.
_SCAN = """
SELECT id, matches, CASE WHEN place = %s THEN created_at END FROM (
    SELECT id, created_at, matches, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place
    FROM ({rows}) AS newest
) AS scanned
WHERE matches OR place = %s
ORDER BY created_at DESC, id DESC
LIMIT %s
"""
# One part of a scan of all rows. Each row has its time, from which the next part continues.
_SCAN_PART = """
SELECT id, matches, created_at, place FROM (
    SELECT id, created_at, matches, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place
    FROM ({rows}) AS newest
) AS scanned
WHERE matches OR place = %s
ORDER BY created_at DESC, id DESC
LIMIT %s
"""
_COUNT_BY_TEAM = "SELECT team_id, count(*) FILTER (WHERE matches), count(*) FROM ({rows}) AS scanned GROUP BY team_id"
Position = tuple[datetime, str]
"""Time and id of a row: the place in the order of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """Filters of a request, split into an index lookup (`indexed`) and a condition evaluated on its rows.

    `in_order`: an index returns the rows of the lookup ordered by time.
    """

    indexed: QuerySet[Any]
    condition: Q | None
    in_order: bool = False

    def rows(
        self,
        statement: str,
        *before: Any,
        max_rows: int = SCAN_LIMIT,
        after: Sequence[Any] = (),
        columns: Sequence[str] = (),
    ) -> list[Any]:
        """Execute a statement over `{rows}`: the newest `max_rows` rows in order, with a boolean column `matches`.

        `before` and `after` are its parameters; `columns` are the columns that it reads besides id and `created_at`.
        """
        condition = self.condition
        matches = Value(value=True) if condition is None else ExpressionWrapper(condition, BooleanField())
        newest = self.indexed.order_by("-created_at", "-id").annotate(matches=matches)
        try:
            scanned = newest.values_list("id", "created_at", *columns, "matches")
            sql, parameters = scanned[:max_rows].query.sql_with_params()
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

    def scan(self, *, limit: int, max_rows: int = SCAN_LIMIT) -> tuple[list[str], datetime | None]:
        """Return the ids of the newest `limit` matching rows among the newest `max_rows` rows, newest first.

        Also return the time of the oldest scanned row if the scan reached `max_rows`, or None if it saw all rows.
        """
        rows = self.rows(_SCAN, max_rows, max_rows=max_rows, after=[max_rows, limit])
        return [row_id for row_id, matches, _ in rows if matches], rows[-1][2] if rows else None

    def scan_part(self, start: Position, *, limit: int) -> tuple[list[str], Position | None]:
        """Return the ids of at most `limit` matching rows older than `start`, newest first, and where to continue.

        The position is None if there are no older rows. A part reads at most `SCAN_LIMIT` rows and may be empty.
        """
        at, row_id = start
        # The first condition looks the rows up in the index by time.
        older = self.indexed.filter(Q(created_at__lte=at) & (Q(created_at__lt=at) | Q(pk__lt=row_id)))
        rows = replace(self, indexed=older).rows(_SCAN_PART, after=[SCAN_LIMIT, limit])
        has_more = bool(rows) and (len(rows) == limit or rows[-1][3] == SCAN_LIMIT)
        return [row[0] for row in rows if row[1]], (rows[-1][2], rows[-1][0]) if has_more else None

    def count_by_team(self) -> tuple[dict[str, int], bool]:
        """Return the number of matching rows of each team among the newest `SCAN_LIMIT` rows.

        Also return whether these are all rows.
        """
        rows = self.rows(_COUNT_BY_TEAM, columns=["team_id"])
        return {team: matches for team, matches, _ in rows if matches}, sum(row[2] for row in rows) < SCAN_LIMIT


def plan_scan(
    rows: QuerySet[Any], conditions: Iterable[tuple[IndexHint | None, Q]], *, is_bounded: bool = True
) -> ScanPlan:
    """Split conditions into an index lookup and a condition on its rows. `is_bounded`: the rows are limited by time."""
    conditions = list(conditions)
    first = min((hint for hint, _ in conditions if hint is not None), key=lambda hint: hint.rank, default=None)
    if first is not None and first.is_for_rare_values and is_bounded:
        plan = plan_scan(rows, [(None if hint is first else hint, condition) for hint, condition in conditions])
        found, _ = plan.scan(limit=_FREQUENT_MATCHES, max_rows=_SAMPLE_ROWS)
        if len(found) == _FREQUENT_MATCHES:
            return plan
    looked_up: list[Q] = []
    others: list[Q] = []
    for hint, condition in conditions:
        is_looked_up = hint is not None and (hint == first or hint.joins_every_lookup)
        (looked_up if is_looked_up else others).append(condition)
    return ScanPlan(
        indexed=rows.filter(*looked_up),
        condition=reduce(and_, others) if others else None,
        in_order=(first is None or first.is_by_time) and is_bounded,
    )


class UncountedPaginator(InfinitePaginator):
    """Paginator without a total count. The last page has no link to a next page."""

    template_name = "console/pagination.html"


class BoundedChangeList(ChangeList):
    """Base class: change list that searches the newest rows of its time range, with a link to the older ones.

    One of the filters is a `TimeFilter`, which is `span`.
    """

    span: TimeFilter | None
    scan_limit = f"{SCAN_LIMIT:,}"

    @property
    def stopped_at(self) -> datetime | None:
        """Time of the oldest row that was searched if older ones were not, or None."""
        raise NotImplementedError

    @property
    def has_next(self) -> bool:
        """True if there are older matches among the rows that were searched."""
        raise NotImplementedError

    @property
    def continue_url(self) -> str:
        """Link that continues with older rows; empty if that is not needed."""
        if self.stopped_at is None or self.span is None or self.span.since is None or self.has_next:
            return ""
        # The filter has a resolution of one second, so the second in which the search stopped is searched again.
        return self.link(self.span.since, self.stopped_at + timedelta(seconds=1))

    def link(self, since: datetime, until: datetime) -> str:
        """Return a link to the list with the current filters and another time range."""
        column = "created_at" if self.span is None else self.span.field_path
        names = ("period", f"{column}_")
        kept = {name: values for name, values in self.filter_params.items() if not name.startswith(names)}
        for end, moment in (("from", since.astimezone(UTC)), ("to", until.astimezone(UTC))):
            kept[f"{column}_{end}_0"], kept[f"{column}_{end}_1"] = f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}"
        return f"?{urlencode(kept, doseq=True)}"


class ScannedChangeList(BoundedChangeList):
    """Change list that reads its rows by a bounded scan, and only when the rows of the page are used.

    One of the filters is a `TimeFilter` of `created_at`.
    """

    page_num: int
    request: HttpRequest
    span: TimeFilter
    # Values of the filters that are set, by their parameters in the URL.
    active: dict[str, str]
    plan: ScanPlan
    # Django's templates read these attributes. A total is never counted, because that would read every row.
    show_full_result_count = can_show_all = show_admin_actions = False
    multi_page = True

    @override
    def get_filters(self, request: HttpRequest) -> Any:
        filters = super().get_filters(request)
        specs, _, other_lookups, *_ = filters
        # A condition outside of the plan could make the scan read any number of rows.
        if other_lookups:
            raise DisallowedModelAdminLookup(f"Filtering by {', '.join(other_lookups)} not allowed")
        for spec in specs:
            if isinstance(spec, ConditionFilter):
                spec.is_deferred = True
        return filters

    @override
    def get_results(self, request: HttpRequest) -> None:
        # Only plans the scan: a histogram or an export needs the filters, but not the rows of the page.
        self.request = request
        self.page_num = max(1, self.page_num)
        self.span = next(spec for spec in self.filter_specs if isinstance(spec, TimeFilter))
        conditions = [
            (spec, spec.condition(self.span)) for spec in self.filter_specs if isinstance(spec, ConditionFilter)
        ]
        active = [(spec, spec.hint(), condition) for spec, condition in conditions if condition is not None]
        self.active = {str(spec.expected_parameters()[0]): str(spec.value()) for spec, _, _ in active}
        self.plan = plan_scan(
            self.queryset, [(hint, term) for _, hint, term in active], is_bounded=self.span.since is not None
        )
        self.paginator = UncountedPaginator([], self.list_per_page)

    @cached_property
    def _scanned(self) -> tuple[list[str], datetime | None]:
        # One row more than the page shows: its presence means that there is a next page.
        return self.plan.scan(limit=self.page_num * self.list_per_page + 1)

    @cached_property
    def result_list(self) -> list[Model]:
        """Rows of the page."""
        ids = self._scanned[0][(self.page_num - 1) * self.list_per_page :][: self.list_per_page]
        rows = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)} if ids else {}
        return [rows[row_id] for row_id in ids if row_id in rows]

    @property
    def result_count(self) -> int:
        """Number of rows of the page."""
        return len(self.result_list)

    full_result_count = result_count

    @property
    @override
    def has_next(self) -> bool:
        """True if there are older matches within the scan limit."""
        return bool(self._scanned[0][self.page_num * self.list_per_page :])

    @property
    @override
    def stopped_at(self) -> datetime | None:
        """Time of the oldest scanned row if the scan reached its limit."""
        return self._scanned[1]
