"""Cursor pages as OpenAI's lists have them: `after`, `before`, `limit`, `order`; keyset, never OFFSET or COUNT."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet

from kernel.errors import InvalidType, InvalidValue, LimitExceeded

Row = TypeVar("Row")
ModelRow = TypeVar("ModelRow", bound=Model)
Position = tuple[Any, ...]
"""Where a row stands: its values of what the list is ordered by."""
_BY_TIME = ("created_at", "id")
MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class Order(StrEnum):
    """The order of a list, oldest or newest first."""

    ASC = "asc"
    DESC = "desc"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """What the client asked for. `after` and `before` are exclusive ids in the chosen order."""

    limit: int = DEFAULT_LIMIT
    order: Order = Order.DESC
    after: str | None = None
    before: str | None = None

    @classmethod
    def from_query(
        cls, query: Mapping[str, str], *, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT
    ) -> "PageRequest":
        """Read `limit`, `order`, `after` and `before`; bad values raise the 400 that OpenAI gives."""
        return cls(
            limit=_limit(query.get("limit"), default=default, most=most),
            order=_order(query.get("order")),
            after=query.get("after") or None,
            before=query.get("before") or None,
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of rows in the order that was asked for."""

    rows: Sequence[Row]
    has_more: bool

    @classmethod
    def cut(cls, rows: Sequence[Row], *, request: PageRequest) -> "Page[Row]":
        """Cut a page out of up to `limit + 1` rows that a selector fetched in its scan direction."""
        kept = list(rows[: request.limit])
        if request.before and not request.after:
            kept.reverse()
        return cls(rows=kept, has_more=len(rows) > request.limit)

    def as_list(self, *, present: Callable[[Row], dict[str, Any]]) -> dict[str, Any]:
        """The `list` object of the wire; ids are those of the presented rows."""
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
    position: Callable[[str, str], Position],
    by: Sequence[str] = _BY_TIME,
) -> Page[ModelRow]:
    """One page of rows in the order of the fields `by`, which together tell each row from every other.

    `position` finds where the row of an id stands; it is also given the parameter's name, for the 404 of unknown ids.
    """
    newest_first = page.order is Order.DESC
    if page.after:
        rows = rows.filter(_beyond(by, position(page.after, "after"), older=newest_first))
    if page.before:
        rows = rows.filter(_beyond(by, position(page.before, "before"), older=not newest_first))
    # With `before` alone the page is the one that ends right before the cursor: scan backwards, then turn round.
    backwards = bool(page.before) and not page.after
    descending = newest_first is not backwards
    rows = rows.order_by(*(f"-{field}" if descending else field for field in by))
    return Page.cut(list(rows[: page.limit + 1]), request=page)


def _beyond(by: Sequence[str], cursor: Position, *, older: bool) -> Q:
    (field, *further), (value, *rest) = by, cursor
    beyond = Q(**{f"{field}__{'lt' if older else 'gt'}": value})
    return beyond | Q(**{field: value}) & _beyond(further, tuple(rest), older=older) if further else beyond


def _limit(text: str | None, *, default: int, most: int) -> int:
    if text is None:
        return default
    try:
        limit = int(text)
    except ValueError:
        raise InvalidType("limit", expected="an integer", got="a string") from None
    if limit < 1:
        message = f"Invalid 'limit': integer below minimum value. Expected a value >= 1, but got {limit} instead."
        raise LimitExceeded(message, param="limit", code="integer_below_min_value")
    if limit > most:
        message = f"Invalid 'limit': integer above maximum value. Expected a value <= {most}, but got {limit} instead."
        raise LimitExceeded(message, param="limit", code="integer_above_max_value")
    return limit


def _order(text: str | None) -> Order:
    if text is None:
        return Order.DESC
    try:
        return Order(text)
    except ValueError:
        raise InvalidValue.outside(text, [order.value for order in Order], param="order") from None
