"""Spending and limits in the list of API keys, read for the keys of one page.

The app that knows the spending registers a function:

    @spending_of_keys
    def spending(keys: Sequence[ApiKey]) -> Mapping[str, KeySpending]: ...
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils.safestring import SafeString

from console.widgets import first_of, two_lines
from tenants.models import ApiKey, Budget, LimitSet
from tenants.models.limits import LIMITS
from tenants.prices import amount


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpending:
    """US dollars that a key spent in the last seven days, and those of the current period of each of its budgets."""

    week: Decimal
    budgets: Sequence[tuple[Budget, Decimal]] = ()


Read = Callable[[Sequence[ApiKey]], Mapping[str, KeySpending]]
_readers: list[Read] = []


def spending_of_keys(read: Read) -> Read:
    """Register the function that returns the spending of keys by their ids."""
    _readers.append(read)
    return read


def add_figures(keys: Iterable[ApiKey]) -> None:
    """Attach `spending` and `limit_set` to keys."""
    rows: list[Any] = list(keys)
    limits = {row.api_key_id: row for row in LimitSet.objects.filter(api_key__in=[key.pk for key in rows])}
    spent: dict[str, KeySpending] = defaultdict(lambda: KeySpending(week=Decimal(0)))
    for read in _readers:
        spent.update(read(rows))
    for key in rows:
        key.spending, key.limit_set = spent[key.pk], limits.get(key.pk)


def spend_cell(key: Any) -> SafeString:
    """Return the spending of seven days, with the budget that is spent most below it."""
    spending: KeySpending = key.spending
    shares = [(100 * spent / budget.amount if budget.amount else 100, budget) for budget, spent in spending.budgets]
    percent, budget = max(shares, key=lambda share: share[0], default=(0, None))
    below = f"{percent:.0f} % of {amount(budget.amount.normalize())} per {budget.period}" if budget else ""
    return two_lines(f"${spending.week:,.2f}", below)


def limits_cell(key: Any) -> SafeString | str:
    """Return the first limit of a key and the number of its others; a dash for a key without limits."""
    found: LimitSet | None = key.limit_set
    labels = [
        f"{value:,} {name.replace('_', ' ')}" for name in LIMITS if (value := getattr(found, name, None)) is not None
    ]
    return first_of(labels)
