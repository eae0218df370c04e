# mypy: allow-subclassing-any
"""Looks through the responses of a list, from the newest on and never further than a bound.

One of the filters is looked up by its index; what it leads to is read in the order of time, and the others choose from
that. Whoever asks for what hardly ever happens gets what there is among the newest, and a way to go on from there: no
choice of filters makes a page read millions of rows.
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
from responses.admin.response_list.filters import Lead, Narrowing
from responses.admin.response_list.time_range import Span
from tenants.console.content_access import may_read

_TIME = ("period", "created_at_")
# What is there so often among the newest rows needs no index.
_GLANCE, _FREQUENT = 20_000, 20
MOST = 30_000
"""How many rows are looked through."""

_IN_ORDER = """
SELECT set_config('enable_bitmapscan', %s, true), set_config('enable_seqscan', %s, true),
       set_config('enable_sort', %s, true)
"""
_ORDERED = {None, Lead.KEY, Lead.STATUS, Lead.MODEL, Lead.TEAM}
_LOOK = """
SELECT id, created_at, matches, place FROM (
    SELECT id, created_at, matches, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place
    FROM ({rows}) AS newest
) AS looked
WHERE matches OR place = %s
ORDER BY created_at DESC, id DESC
LIMIT %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The filters of a request, told apart: `led` is looked up, `choose` looks through it. `in_order`: there is an
    index that brings what is looked up in the order of time."""

    led: QuerySet[Any]
    choose: Q | None
    in_order: bool = False

    def rows(self, statement: str, *before: Any, most: int, after: Sequence[Any] = ()) -> list[Any]:
        """What a statement finds in `{rows}`: the newest `most`, in order, each with `matches`: is it wanted?"""
        try:
            sql, parameters = self._newest(most).query.sql_with_params()
        except EmptyResultSet:
            return []
        with connection.cursor() as cursor:
            # PostgreSQL plans for all of the rows up to the bound, and would rather sort whatever a frequent value has
            # than follow its index, though a page is full after a few of them.
            cursor.execute(_IN_ORDER, ["off" if self.in_order else "on"] * 3)
            cursor.execute(statement.format(rows=sql), [*before, *parameters, *after])
            found = list(cursor.fetchall())
            cursor.execute(_IN_ORDER, ["on"] * 3)
        return found

    def _newest(self, most: int) -> QuerySet[Any, Any]:
        choose = self.choose
        matches = Value(value=True) if choose is None else ExpressionWrapper(choose, BooleanField())
        newest = self.led.order_by("-created_at", "-id").annotate(matches=matches)
        rows: QuerySet[Any, Any] = newest.values_list("id", "created_at", "status", "matches")
        return rows[:most]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found, the newest first; `stopped_at` is where the look ended for its bound, None where all was seen."""

    ids: Sequence[str]
    stopped_at: datetime | None = None


def look(aimed: Aim, *, limit: int, most: int = MOST) -> Found:
    """The newest `limit` rows that are wanted, among the newest `most`."""
    rows = aimed.rows(_LOOK, most=most, after=[most, limit])
    ids = [row_id for row_id, _, is_wanted, _ in rows if is_wanted]
    # The row at the bound comes back even where nobody wants it.
    return Found(ids=ids, stopped_at=rows[-1][1] if rows and rows[-1][3] == most else None)


def aim(rows: QuerySet[Any], specs: Sequence[Any], span: Span) -> Aim:
    """Tell the filters apart. A team always leads beside another: its rows are one index away from each.

    The index of metadata knows no time: it leads to what is rare, and what is frequent is found without it.
    """
    wanted = [(spec.leads, found) for spec in specs if isinstance(spec, Narrowing) and (found := spec.condition(span))]
    first = min((lead for lead, _ in wanted if lead is not None), default=None)
    if first is Lead.METADATA and span.since is not None:
        unled = [(None if lead is Lead.METADATA else lead, found) for lead, found in wanted]
        aimed = _aimed(rows, unled, min((lead for lead, _ in unled if lead is not None), default=None), span)
        if len(look(aimed, limit=_FREQUENT, most=_GLANCE).ids) == _FREQUENT:
            return aimed
    return _aimed(rows, wanted, first, span)


def _aimed(rows: QuerySet[Any], wanted: Sequence[tuple[Lead | None, Q]], first: Lead | None, span: Span) -> Aim:
    leading = [found for lead, found in wanted if lead is not None and lead in {first, Lead.TEAM}]
    others = [found for lead, found in wanted if lead is None or lead not in {first, Lead.TEAM}]
    choose = reduce(and_, others) if others else None
    return Aim(led=rows.filter(*leading), choose=choose, in_order=first in _ORDERED and span.since is not None)


class AimedList(ChangeList):
    """The filters of a request without the rows: for those who count them, or send them elsewhere."""

    span: TimeFilter
    page_num: int
    most = f"{MOST:,}"
    active: list[Narrowing]

    @override
    def get_results(self, request: HttpRequest) -> None:
        self.request = request
        self.span = next(spec for spec in self.filter_specs if isinstance(spec, TimeFilter))
        within = Span(request=request, since=self.span.since, until=self.span.until)
        self.aimed = aim(self.queryset, self.filter_specs, within)
        narrowing = [spec for spec in self.filter_specs if isinstance(spec, Narrowing)]
        self.active = [spec for spec in narrowing if spec.condition(within) is not None]
        self.result_list: list[Model] = []

    @property
    def here(self) -> str:
        """The filters and the time as they are."""
        return str(self.get_query_string())

    def link(self, **query: Any) -> str:
        """The list with its filters, and another time."""
        kept = {name: values for name, values in self.filter_params.items() if not name.startswith(_TIME)}
        return f"?{urlencode({**kept, **query}, doseq=True)}"


class KnownEnd(InfinitePaginator):
    """Pages without a count, whose last has no link to another."""

    template_name = "console/pagination.html"


class LookingList(AimedList):
    """A page of the list."""

    @override
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.page_num = max(1, self.page_num)
        start = (self.page_num - 1) * self.list_per_page
        found = look(self.aimed, limit=start + self.list_per_page + 1)
        ids = found.ids[start : start + self.list_per_page]
        rows = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)} if ids else {}
        self.result_list = [rows[row_id] for row_id in ids if row_id in rows]
        for row in self.result_list:
            row.readable = may_read(request, row.team_id)  # type: ignore[attr-defined]  # the columns have no request
        self.has_next = len(found.ids) > start + self.list_per_page
        self.stopped_at = found.stopped_at
        self.onward = self._onward(found.stopped_at)
        # What Django's templates ask for; nothing is ever counted, and nothing said of how many there are.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.can_show_all = self.show_admin_actions = False
        self.multi_page = True
        self.paginator = KnownEnd(self.result_list, self.list_per_page)

    @property
    def previous_link(self) -> str:
        """The page of newer ones."""
        return str(self.get_query_string({PAGE_VAR: self.page_num - 1}))

    @property
    def next_link(self) -> str:
        """The page of older ones."""
        return str(self.get_query_string({PAGE_VAR: self.page_num + 1}))

    def _onward(self, stopped_at: datetime | None) -> str:
        """The list of what is older than the bound; empty where nothing is."""
        if stopped_at is None or self.span.since is None or self.has_next:
            return ""
        # Bounds have whole seconds; the last one is looked through once more.
        last = stopped_at + timedelta(seconds=1)
        return self.link(**moments("from", self.span.since), **moments("to", last))


def moments(end: str, moment: datetime) -> dict[str, str]:
    """One end of a range, as the filter of time takes it."""
    at = moment.astimezone(UTC)
    return {f"created_at_{end}_0": f"{at:%Y-%m-%d}", f"created_at_{end}_1": f"{at:%H:%M:%S}"}
