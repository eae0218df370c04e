"""Budgets in the console: what is spent and left in the current period, and a forecast of its end."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from console.widgets import csv_file
from core.clock import now
from organization.admin.limits import limits_url, subject_name
from organization.admin.team_tabs import tab_url
from responses.rollups.spending import end_of_sums, period_of, spent_by_subject, subject_of
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import Budget, LimitSet
from tenants.models.limits import EVERY_END_USER
from tenants.prices import amount

MAX_BUDGETS = 200
_HOUR = timedelta(hours=1)
# The forecast of a day follows the last day, that of longer periods the last week: both contain nights or weekends.
_TRENDS = {"day": timedelta(days=1)}
_TREND = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A budget in its current period.

    `forecast` is what will be spent at the end of the period if spending goes on as in the last day or week, `used_up`
    the time at which the budget then ends, or None if it lasts.
    """

    budget: Budget
    since: datetime
    until: datetime
    spent: Decimal
    forecast: Decimal
    used_up: datetime | None

    @property
    def percent(self) -> int:
        """The spent part of the budget, in percent."""
        return round(100 * self.spent / self.budget.amount) if self.budget.amount else 100

    @property
    def tone(self) -> str:
        """The colour of its bar: "bad" once it is spent, "warn" from 80 % on or if it will not last."""
        return "bad" if self.percent >= 100 else "warn" if self.percent >= 80 or self.used_up else "good"


def budget_states(*, teams: Sequence[str] | None, at: datetime) -> list[BudgetState]:
    """Return the budgets of teams (None: all), the largest spent percentage first; at most `MAX_BUDGETS`.

    A budget of every end user has no state of its own: each of them has one.
    """
    found = Budget.objects.exclude(limit_set__end_user=EVERY_END_USER)
    if teams is not None:
        found = found.filter(team__in=teams)
    budgets = list(found.select_related("team", "limit_set__api_key").order_by("-amount", "pk")[:MAX_BUDGETS])
    spans = {budget.pk: period_of(budget, at) for budget in budgets}
    end = end_of_sums(at)
    wanted: dict[tuple[datetime, datetime], list[Budget]] = defaultdict(list)
    for budget in budgets:
        since, until = spans[budget.pk]
        wanted[since, min(until, end)].append(budget)
        wanted[end - _TRENDS.get(budget.period, _TREND), end].append(budget)
    spent = {span: spent_by_subject(members, *span) for span, members in wanted.items()}
    states = []
    for budget in budgets:
        since, until = spans[budget.pk]
        so_far = spent[since, min(until, end)].get(subject_of(budget), Decimal(0))
        trend = _TRENDS.get(budget.period, _TREND)
        # A team that began to use the platform yesterday has one day of history, not seven.
        rate = spent[end - trend, end].get(subject_of(budget), Decimal(0)) / Decimal(trend.total_seconds())
        left = Decimal((until - at).total_seconds())
        missing = max(budget.amount - so_far, Decimal(0))
        lasts = missing / rate if rate else None
        states.append(
            BudgetState(
                budget=budget,
                since=since,
                until=until,
                spent=so_far,
                forecast=so_far + rate * left,
                used_up=at + timedelta(seconds=float(lasts)) if lasts is not None and lasts < left else None,
            )
        )
    return sorted(states, key=lambda state: -state.percent)


@page("budgets/", name="budgets", viewers=EVERY_ROLE)
def budgets(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the budgets that the user may see, or the CSV file with `format=csv`."""
    teams = viewer.team_ids()
    states = budget_states(teams=teams, at=now())
    if request.GET.get("format") == "csv":
        return _csv(states)
    every_user = Budget.objects.filter(limit_set__end_user=EVERY_END_USER).select_related("team")
    if teams is not None:
        every_user = every_user.filter(team__in=teams)
    return render(
        request,
        "console/budgets.html",
        title="Budgets",
        rows=[_row(state) for state in states],
        every_user=[
            (
                f"{budget.team.name}: {amount(budget.amount.normalize())} per {budget.period}",
                tab_url(budget.team, "limits"),
            )
            for budget in every_user.order_by("team__name", "period")[:MAX_BUDGETS]
        ],
        is_cut=len(states) == MAX_BUDGETS,
        most=MAX_BUDGETS,
    )


def _row(state: BudgetState) -> dict[str, Any]:
    budget, zone = state.budget, ZoneInfo(state.budget.team.time_zone)
    return {
        "team": budget.team,
        "subject": subject_name(budget.limit_set),
        "url": _edit_url(budget.limit_set),
        "amount": amount(budget.amount.normalize()),
        "period": budget.period,
        "kind": "hard" if budget.is_hard else "soft",
        "spent": _dollars(state.spent),
        "left": _dollars(max(budget.amount - state.spent, Decimal(0))),
        "percent": state.percent,
        "width": min(state.percent, 100),
        "tone": state.tone,
        "forecast": _dollars(state.forecast),
        "used_up": f"{state.used_up.astimezone(zone):%d %b %H:%M}" if state.used_up and state.percent < 100 else "",
        "ends": f"{state.until.astimezone(zone):%d %b %H:%M}",
        "zone": zone.key,
    }


def _edit_url(found: LimitSet) -> str:
    if found.api_key_id:
        return limits_url(found.team_id, key=found.api_key_id)
    return limits_url(found.team_id, **({"end_user": found.end_user} if found.end_user else {}))


def _dollars(value: Decimal) -> str:
    # Four decimals below one dollar, so that small amounts are not shown as zero.
    return amount(round(value, 2 if value >= 1 else 4))


def _csv(states: Sequence[BudgetState]) -> HttpResponse:
    header = ["team", "subject", "period", "kind", "amount", "spent", "percent", "forecast", "used up", "from", "to"]
    lines = [header]
    for state in states:
        budget = state.budget
        lines.append(
            [
                budget.team.name,
                subject_name(budget.limit_set),
                budget.period,
                "hard" if budget.is_hard else "soft",
                f"{budget.amount.normalize():f}",
                f"{state.spent:f}",
                str(state.percent),
                f"{state.forecast:.4f}",
                state.used_up.isoformat(timespec="minutes") if state.used_up else "",
                state.since.isoformat(),
                state.until.isoformat(),
            ]
        )
    return csv_file("budgets.csv", lines)
