"""Budgets of seeded teams, in relation to what the teams have spent."""

from datetime import datetime
from decimal import ROUND_UP, Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Sum

from core.periods import start_of
from limits import services
from seeding.teams import SeededTeam
from tenants.models import UsageRecord
from tenants.models.limits import Period

# The first of these that has cost the most.
_PERIODS = (Period.MONTH, Period.WEEK, Period.DAY)
# Parts of the budget that the teams have spent: the first team is near its limit.
_SPENT_PARTS = (Decimal("0.93"), Decimal("0.55"), Decimal("0.3"))
_KEY_PART = Decimal("0.4")
_SMALLEST = Decimal("0.0001")


def set_budgets(tenant: SeededTeam, *, number: int, at: datetime) -> None:
    """Set a budget for the month of a team, and one for its first key. `number` counts the teams from 1.

    When a month has just begun, they are for the week or the day instead, so that something has been spent.
    Soft, as a hard budget near its limit would refuse the requests with which people try the platform. Nobody gets
    mails about them. Must run inside a scope that sees the team.
    """
    of_team = UsageRecord.objects.filter(team=tenant.team)
    starts = {period: start_of(at, period, ZoneInfo(tenant.team.time_zone)) for period in _PERIODS}
    current = {period: of_team.filter(occurred_at__gte=since) for period, since in starts.items()}
    period = max(_PERIODS, key=lambda candidate: _cost(current[candidate]))
    records = current[period]
    part = _SPENT_PARTS[min(number, len(_SPENT_PARTS)) - 1]
    _set_budget(tenant, period, _cost(records) / part)
    key = tenant.keys[0]
    _set_budget(tenant, period, _cost(records.filter(api_key=key)) / _KEY_PART, api_key=key)


def _cost(records: Any) -> Decimal:
    return records.aggregate(cost=Sum("cost"))["cost"] or Decimal(0)


def _set_budget(tenant: SeededTeam, period: Period, amount: Decimal, **subject: Any) -> None:
    step = Decimal("0.01") if amount > 1 else _SMALLEST
    services.set_budget(
        team=tenant.team,
        period=period,
        amount=max(_SMALLEST, amount.quantize(step, rounding=ROUND_UP)),
        is_hard=False,
        alert_percents=[],
        **subject,
    )
