"""Spending of API keys in their list."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from core.clock import now
from organization.admin.key_figures import KeySpending, spending_of_keys
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS
from responses.rollups.spending import end_of_sums, period_of
from tenants.models import ApiKey, Budget

_WEEK = timedelta(days=7)
# Periods of budgets depend on the time zone of the team; each one needs a query.
_MAX_PERIODS = 6


@spending_of_keys
def spending(keys: Sequence[ApiKey]) -> Mapping[str, KeySpending]:
    """Return the spending of keys by their ids."""
    at = now()
    end = end_of_sums(at)
    week = _spent(keys, end - _WEEK, end)
    budgets: dict[tuple[datetime, datetime], list[Budget]] = defaultdict(list)
    found = Budget.objects.filter(limit_set__api_key__in=[key.pk for key in keys])
    for budget in found.select_related("team", "limit_set"):
        since, until = period_of(budget, at)
        budgets[since, min(until, end)].append(budget)
    of_key: dict[str, list[tuple[Budget, Decimal]]] = defaultdict(list)
    for span in sorted(budgets, key=lambda span: -len(budgets[span]))[:_MAX_PERIODS]:
        spent = _spent(keys, *span)
        for budget in budgets[span]:
            key_id = budget.limit_set.api_key_id or ""
            of_key[key_id].append((budget, spent.get(key_id, Decimal(0))))
    return {key.pk: KeySpending(week=week.get(key.pk, Decimal(0)), budgets=of_key.get(key.pk, ())) for key in keys}


def _spent(keys: Sequence[ApiKey], since: datetime, until: datetime) -> dict[str, Decimal]:
    if not keys:
        return {}
    query = RollupQuery(
        source=CALLS,
        since=since,
        until=until,
        measures=["cost"],
        by=("team_id", "api_key_id"),
        teams=sorted({key.team_id for key in keys}),
        only={"api_key_id": [key.pk for key in keys]},
    )
    return {row.key[1]: row.values["cost"] or Decimal(0) for row in fetch_rows(query)}
