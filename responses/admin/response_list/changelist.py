# mypy: allow-subclassing-any
"""Filters of the response list, and bounded scans for it: newest rows first, at most `SCAN_LIMIT` of them.

A filter is a condition and a hint about the index that serves it. One filter is looked up by its index, and the
remaining ones are evaluated on the rows that it returns, in order of time. A search for something rare shows the
matches among the newest rows and a link to continue from there. No combination of filters makes a page read millions of
rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import cached_property, reduce
from operator import and_
from typing import Any, cast

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet, Value
from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    TextFilter,
)
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from console.widgets import TimeFilter, created_near
from responses.admin.response_list.columns import ListColumn
from responses.models import HAS_METADATA, RUNNING, UNSUCCESSFUL, Mode, Response, ToolCall
from tenants.console.viewer import viewer_of

# -- filters -----------------------------------------------------------------------------------------------------------

_MAX_CALLS = 5_000
"""Newest tool calls that a filter by tool considers."""
_LONGEST_RUN = timedelta(days=1)
"""Longest time after the creation of a response in which its tool calls are looked up."""


class IndexHint(IntEnum):
    """Index that serves a filter, most selective first: of the active filters, the lowest hint is looked up."""

    RUNNING = 0
    REQUEST = 1
    CONVERSATION = 2
    ERROR = 3
    END_USER = 4
    METADATA = 5
    TOOL = 6
    KEY = 7
    STATUS = 8
    MODEL = 9
    TEAM = 10


class ConditionFilter:
    """Mixin for filters that return a condition. Comes before Unfold's filter class in the bases."""

    lookup = ""
    index_hint: IndexHint | None = None
    value: Callable[[], Any]  # provided by Unfold's filter

    def condition(self, span: TimeFilter) -> Q | None:
        """Return the condition of the filter, or None if it is not set."""
        return Q(**{self.lookup: self.value()}) if self.value() else None

    def hint(self) -> IndexHint | None:
        """Return the index that serves the condition, if any."""
        return self.index_hint

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the query set unchanged."""
        # The change list collects the conditions itself, to choose the one that the index lookup uses.
        return queryset


class TeamFilter(ConditionFilter, AutocompleteSelectFilter):
    lookup, index_hint = "team_id", IndexHint.TEAM


class ApiKeyFilter(ConditionFilter, AutocompleteSelectFilter):
    lookup, index_hint = "api_key_id", IndexHint.KEY


class StatusFilter(ConditionFilter, MultipleChoicesDropdownFilter):
    """Responses with one of the chosen statuses."""

    lookup = "status__in"

    @override
    def hint(self) -> IndexHint | None:
        # There are partial indexes for running and for unsuccessful responses; completed ones are too frequent to need
        # one.
        chosen = set(self.value())
        is_running, is_unsuccessful = chosen.issubset(RUNNING), chosen.issubset(UNSUCCESSFUL)
        return IndexHint.RUNNING if is_running else IndexHint.STATUS if is_unsuccessful else None


class TextConditionFilter(ConditionFilter, TextFilter):
    """Text box; `condition_for` returns the condition for its text."""

    condition_for: Callable[[str, TimeFilter], Q]

    @override
    def condition(self, span: TimeFilter) -> Q | None:
        value = (self.value() or "").strip().replace("\x00", "")
        return self.condition_for(value, span) if value else None


class ChoiceFilter(ConditionFilter, DropdownFilter):
    """Drop-down list of conditions."""

    options: Sequence[tuple[str, str]]
    condition_for: Callable[[str], Q]

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self.options

    @override
    def condition(self, span: TimeFilter) -> Q | None:
        chosen = self.value()
        return self.condition_for(chosen) if chosen in dict(self.options) else None


def _text(
    parameter: str, label: str, hint: IndexHint, condition: Callable[[str, TimeFilter], Q]
) -> type[TextConditionFilter]:
    class Filter(TextConditionFilter):
        title, parameter_name, index_hint, condition_for = label, parameter, hint, staticmethod(condition)

    return Filter


def _choice(
    parameter: str, label: str, choices: Sequence[tuple[str, str]], condition: Callable[[str], Q]
) -> type[ChoiceFilter]:
    class Filter(ChoiceFilter):
        title, parameter_name, options, condition_for = label, parameter, choices, staticmethod(condition)

    return Filter


class MetadataFilter(TextConditionFilter):
    """Metadata pair (`key=value`) or key."""

    title, parameter_name = "metadata (key=value)", "metadata"

    @override
    def hint(self) -> IndexHint | None:
        # Under row-level security PostgreSQL uses the index only if the containment operator is marked leakproof. Only
        # a superuser can do that (`launcher.postgres`).
        with connection.cursor() as cursor:
            cursor.execute("SELECT bool_and(proleakproof) FROM pg_proc WHERE proname = 'jsonb_contains'")
            (is_leakproof,) = cursor.fetchone()
        return IndexHint.METADATA if is_leakproof else None

    @override
    def condition_for(self, value: str, span: TimeFilter) -> Q:
        key, equals, expected = value.partition("=")
        return HAS_METADATA & (
            Q(metadata__contains={key.strip(): expected.strip()}) if equals else Q(metadata__has_key=value)
        )


def of_request(request_id: str) -> Q:
    """Return the condition for the responses that a request created."""
    # Request ids have no index, but they contain a time stamp, and the creation time has one.
    near = created_near(request_id) if request_id.startswith("req_") else None
    return Q(pk__in=[]) if near is None else Q(created_at__range=near, request_id=request_id)


def _called(span: TimeFilter, **tool: str) -> Q:
    """Return the condition for responses that called a tool, found through the newest calls of that tool."""
    calls = ToolCall.objects.filter(**tool)
    teams = viewer_of(span.request).team_ids()
    if teams is not None:
        calls = calls.filter(team_id__in=teams)
    if span.since is not None:
        calls = calls.filter(started_at__gte=span.since)
    if span.until is not None:
        # A run that began at the end of the range may call the tool long after it.
        calls = calls.filter(started_at__lte=span.until + _LONGEST_RUN)
    return Q(pk__in=calls.order_by("-started_at").values("response_id")[:_MAX_CALLS])


_MODES = {
    "sync": Q(background=False, mode=Mode.JSON),
    "stream": Q(background=False, mode=Mode.STREAM),
    "background": Q(background=True),
}
_SECONDS = (1, 3, 10, 30, 60, 300, 1800)
_DURATIONS = [(str(s * 1000), f"{s} s or more" if s < 60 else f"{s // 60} min or more") for s in _SECONDS]
_TOKENS = [(str(count), f"{count:,} or more") for count in (1_000, 10_000, 50_000, 100_000, 500_000)]
_COSTS = [(step, f"${step} or more") for step in ("0.001", "0.01", "0.1", "1", "10")]

# Filters that do not belong to a model field.
_PLAIN_FILTERS: tuple[type[TextConditionFilter | ChoiceFilter], ...] = (
    _text("model", "model", IndexHint.MODEL, lambda value, _: Q(model=value)),
    _choice("mode", "mode", [(name, name.capitalize()) for name in _MODES], lambda chosen: _MODES[chosen]),
    _text("error_code", "error code", IndexHint.ERROR, lambda value, _: Q(error_code=value)),
    _text("tool_type", "tool type", IndexHint.TOOL, lambda value, span: _called(span, kind=value)),
    _text("tool", "tool name", IndexHint.TOOL, lambda value, span: _called(span, name=value)),
    _choice(
        "in_conversation",
        "in a conversation",
        [("yes", "Yes"), ("no", "No")],
        lambda chosen: Q(conversation_id__isnull=chosen == "no"),
    ),
    _text("conversation", "conversation ID", IndexHint.CONVERSATION, lambda value, _: Q(conversation_id=value)),
    _text("end_user", "end user", IndexHint.END_USER, lambda value, _: Q(end_user=value)),
    MetadataFilter,
    _choice("least_ms", "latency", _DURATIONS, lambda chosen: Q(duration_ms__gte=int(chosen))),
    _choice("least_input", "input tokens", _TOKENS, lambda chosen: Q(input_tokens__gte=int(chosen))),
    _choice("least_output", "output tokens", _TOKENS, lambda chosen: Q(output_tokens__gte=int(chosen))),
    _choice("least_cost", "cost", _COSTS, lambda chosen: Q(cost__gte=Decimal(chosen))),
    _text("request", "request ID", IndexHint.REQUEST, lambda value, _: of_request(value)),
)
FILTERS = [
    ("created_at", TimeFilter),
    ("status", StatusFilter),
    ("team", TeamFilter),
    ("api_key", ApiKeyFilter),
    *_PLAIN_FILTERS,
]
PARAMETERS = {
    "period",
    *(f"created_at_{end}_{part}" for end in ("from", "to") for part in (0, 1)),
    "status__exact",
    "team__id__exact",
    "api_key__id__exact",
    *(filter_class.parameter_name for filter_class in _PLAIN_FILTERS),
}

# -- bounded scans -----------------------------------------------------------------------------------------------------

SCAN_LIMIT = 30_000
"""Rows that one page reads at most."""
# A filter with 20 matches among the newest 20,000 rows is frequent: a scan in order of time fills a page without its
# index.
_SAMPLE_ROWS, _FREQUENT_MATCHES = 20_000, 20
# Hints whose index is ordered by time, so that the planner needs no sort.
_ORDERED_BY_TIME = {None, IndexHint.KEY, IndexHint.STATUS, IndexHint.MODEL, IndexHint.TEAM}
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
        condition = self.condition
        matches = Value(value=True) if condition is None else ExpressionWrapper(condition, BooleanField())
        newest = self.indexed.order_by("-created_at", "-id").annotate(matches=matches)
        try:
            columns = newest.values_list("id", "created_at", "status", "matches")
            sql, parameters = columns[:max_rows].query.sql_with_params()
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


def plan_scan(
    rows: QuerySet[Any], conditions: Iterable[tuple[IndexHint | None, Q]], *, is_bounded: bool = True
) -> ScanPlan:
    """Split conditions into an index lookup and a condition on its rows. `is_bounded`: the rows are limited by time.

    A team filter always joins the lookup, so that only rows of the team count towards the scan limit.
    """
    conditions = list(conditions)
    first = min((hint for hint, _ in conditions if hint is not None), default=None)
    # The metadata index is not ordered by time. It pays off for rare values only, and frequent ones are recognised by a
    # sample of the newest rows.
    if first is IndexHint.METADATA and is_bounded:
        plan = plan_scan(rows, [(None if hint is first else hint, condition) for hint, condition in conditions])
        found, _ = plan.scan(limit=_FREQUENT_MATCHES, max_rows=_SAMPLE_ROWS)
        if len(found) == _FREQUENT_MATCHES:
            return plan
    looked_up = {first, IndexHint.TEAM} - {None}
    others = [condition for hint, condition in conditions if hint not in looked_up]
    return ScanPlan(
        indexed=rows.filter(*(condition for hint, condition in conditions if hint in looked_up)),
        condition=reduce(and_, others) if others else None,
        in_order=first in _ORDERED_BY_TIME and is_bounded,
    )


# -- the change list ---------------------------------------------------------------------------------------------------


class UncountedPaginator(InfinitePaginator):
    """Paginator without a total count; the last page has no link to a next one."""

    template_name = "console/pagination.html"


class ResponseChangeList(ChangeList):
    """Response list: the filters of a request and, read when they are used, the rows of a page."""

    page_num: int
    columns: Sequence[ListColumn] = ()
    scan_limit = f"{SCAN_LIMIT:,}"
    # Django's templates read these attributes. A total is never counted, because that would read every row.
    show_full_result_count = can_show_all = show_admin_actions = False
    multi_page = True

    @override
    def get_results(self, request: HttpRequest) -> None:
        # Only plans the scan: the histogram and the export use the filters, but not the rows of a page.
        self.request = request
        self.page_num = max(1, self.page_num)
        self.span: TimeFilter = next(spec for spec in self.filter_specs if isinstance(spec, TimeFilter))
        conditions = [
            (spec, spec.condition(self.span)) for spec in self.filter_specs if isinstance(spec, ConditionFilter)
        ]
        active = [(spec, spec.hint(), condition) for spec, condition in conditions if condition is not None]
        self.active = {hint: str(spec.value()) for spec, hint, _ in active}
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
        """Rows of the page; `readable` says whether the user may read their content."""
        ids = self._scanned[0][(self.page_num - 1) * self.list_per_page :][: self.list_per_page]
        rows = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)} if ids else {}
        for row in rows.values():
            row.readable = viewer_of(self.request).may_read(row.team_id)  # the columns have no request
        return [rows[row_id] for row_id in ids if row_id in rows]

    @property
    def rows(self) -> Iterator[tuple[Any, list[tuple[str, SafeString | str]]]]:
        """Yield each row of the page with the names and contents of its cells."""
        for row in cast("list[Response]", self.result_list):
            yield row, [(column.name, column.cell(row)) for column in self.columns]

    @property
    def result_count(self) -> int:
        """Number of rows of the page."""
        return len(self.result_list)

    full_result_count = result_count

    @property
    def has_next(self) -> bool:
        """True if there are older matches within the scan limit."""
        return bool(self._scanned[0][self.page_num * self.list_per_page :])

    @property
    def stopped_at(self) -> datetime | None:
        """Time of the oldest scanned row if the scan reached its limit."""
        return self._scanned[1]

    @property
    def continue_url(self) -> str:
        """Link that continues the scan with older rows; empty if that is not needed."""
        if self.stopped_at is None or self.span.since is None or self.has_next:
            return ""
        # The filter has a resolution of one second, so the second in which the scan stopped is scanned again.
        return self.link(self.span.since, self.stopped_at + timedelta(seconds=1))

    def link(self, since: datetime, until: datetime) -> str:
        """Return a link to the list with the current filters and another time range."""
        names = ("period", "created_at_")
        kept = {name: values for name, values in self.filter_params.items() if not name.startswith(names)}
        for end, moment in (("from", since.astimezone(UTC)), ("to", until.astimezone(UTC))):
            kept[f"created_at_{end}_0"], kept[f"created_at_{end}_1"] = f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}"
        return f"?{urlencode(kept, doseq=True)}"
