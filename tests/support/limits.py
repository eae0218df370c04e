"""Limits and budgets of the teams, keys and end users of tests."""

from decimal import Decimal
from typing import Any

from tenants import scope
from tenants.models import Budget, LimitSet
from tests.support.api import Caller


def limit(
    caller: Caller,
    *,
    of: str = "key",
    end_user: str = "",
    budget: str | None = None,
    period: str = "day",
    is_hard: bool = True,
    **limits: Any,
) -> LimitSet:
    """Limit the caller's key, `of="team"` its team, or an end user of the team, before its first request.

    Processes cache limits for a second. `budget` is in US dollars per `period`.
    """
    with scope.team(caller.team.pk):
        api_key = caller.key if of == "key" and not end_user else None
        found, _ = LimitSet.objects.update_or_create(
            team=caller.team, api_key=api_key, end_user=end_user, defaults=limits
        )
        if budget is not None:
            Budget.objects.create(
                team=caller.team, limit_set=found, period=period, amount=Decimal(budget), is_hard=is_hard
            )
    return found
