"""Cursor pages as OpenAI's lists have them: `after`, `before`, `limit`, `order`; keyset, never OFFSET or COUNT."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from kernel.errors import InvalidType, InvalidValue, LimitExceeded

Row = TypeVar("Row")
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
    def from_query(cls, query: Mapping[str, str]) -> "PageRequest":
        """Read `limit`, `order`, `after` and `before`; bad values raise the 400 that OpenAI gives."""
        return cls(
            limit=_limit(query.get("limit")),
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


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    try:
        limit = int(text)
    except ValueError:
        raise InvalidType("limit", expected="an integer", got="a string") from None
    if limit < 1:
        message = f"Invalid 'limit': integer below minimum value. Expected a value >= 1, but got {limit} instead."
        raise LimitExceeded(message, param="limit", code="integer_below_min_value")
    if limit > MAX_LIMIT:
        message = (
            f"Invalid 'limit': integer above maximum value. Expected a value <= {MAX_LIMIT}, but got {limit} instead."
        )
        raise LimitExceeded(message, param="limit", code="integer_above_max_value")
    return limit


def _order(text: str | None) -> Order:
    if text is None:
        return Order.DESC
    try:
        return Order(text)
    except ValueError:
        raise InvalidValue.outside(text, [order.value for order in Order], param="order") from None
