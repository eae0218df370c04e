"""Cursor pagination like OpenAI's lists (`after`, `before`, `limit`, `order`), by keyset, without OFFSET or COUNT."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from django.db.models import Field, Func, Lookup, Model, QuerySet, Value
from django.db.models.lookups import GreaterThan, LessThan
from django.http import QueryDict

from core.errors import ApiError
from core.http.objects import Entry, ListPage
from core.http.query import QueryArgument, choice, integer, parameter

Row = TypeVar("Row")
ModelRow = TypeVar("ModelRow", bound=Model)
_BY_TIME = ("created_at", "id")
MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class Order(StrEnum):
    """The order of a list, oldest or newest first."""

    ASC = "asc"
    DESC = "desc"


_ORDERS = [order.value for order in Order]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Requested page. `after` and `before` are ids in the chosen order, not included in the page."""

    limit: int = DEFAULT_LIMIT
    order: Order = Order.DESC
    after: str | None = None
    before: str | None = None


def page_argument(
    *, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT, order: Order = Order.DESC, before: bool = True
) -> QueryArgument:
    """Return the argument `page` of a list; reading it raises a `BadRequest` for invalid values."""

    def read(query: QueryDict) -> PageRequest:
        limit = integer(query, "limit", least=1, most=most)
        return PageRequest(
            limit=default if limit is None else limit,
            order=Order(choice(query, "order", _ORDERS) or order),
            after=query.get("after") or None,
            before=query.get("before") or None,
        )

    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    parameters = [
        *(parameter(name, {"type": "string"}) for name in (("after", "before") if before else ("after",))),
        parameter("limit", limit),
        parameter("order", {"enum": _ORDERS, "default": order.value}),
    ]
    return QueryArgument("page", parameters, read)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of rows in the requested order."""

    rows: Sequence[Row]
    has_more: bool

    @classmethod
    def cut(cls, rows: Sequence[Row], *, request: PageRequest) -> "Page[Row]":
        """Make a page from up to `limit + 1` rows, given in the direction of the scan."""
        # The extra row shows that there are more, without a COUNT.
        page_rows = list(rows[: request.limit])
        if request.before and not request.after:
            page_rows.reverse()
        return cls(rows=page_rows, has_more=len(rows) > request.limit)

    def as_list(self, *, present: Callable[[Row], Entry]) -> ListPage[Entry]:
        """Return the API's `list` object; `present` turns a row into an object with an `id`."""
        data = [present(row) for row in self.rows]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": self.has_more,
        }


def keyset(
    rows: QuerySet[ModelRow],
    *,
    page: PageRequest,
    find: Callable[[str], object | None],
    unknown: Callable[..., ApiError],
    by: Sequence[str] = _BY_TIME,
) -> Page[ModelRow]:
    """Return one page of rows, ordered by the fields `by`, which must be unique together.

    `find(id)` returns the row of a cursor, which has these fields, or None; then `unknown(id, param=…)` is raised.
    """
    newest_first = page.order is Order.DESC
    for param, cursor_id, older in (("after", page.after, newest_first), ("before", page.before, not newest_first)):
        if cursor_id:
            if (cursor := find(cursor_id)) is None:
                raise unknown(cursor_id, param=param)
            rows = rows.filter(_beyond(by, cursor, older=older))
    # With `before` alone the page ends directly before the cursor: the rows are scanned backwards, then reversed.
    backwards = bool(page.before) and not page.after
    descending = newest_first is not backwards
    rows = rows.order_by(*(f"-{field}" if descending else field for field in by))
    return Page.cut(list(rows[: page.limit + 1]), request=page)


def _beyond(by: Sequence[str], cursor: object, *, older: bool) -> Lookup[Any]:
    """Return the condition of the rows that follow a cursor's, such as `(created_at, id) < (x, y)`."""
    # PostgreSQL starts an index scan at a row comparison. Spelled out with OR, the condition is a filter that reads all
    # rows before the cursor: 95 ms of SQL at row 500,000 of a cached table, against 0.1 ms.
    here = Func(*by, function="ROW", output_field=Field[Any, Any]())
    there = Func(*(Value(getattr(cursor, name)) for name in by), function="ROW", output_field=Field[Any, Any]())
    return LessThan(here, there) if older else GreaterThan(here, there)


PAGE = page_argument()
"""The page of most lists."""
