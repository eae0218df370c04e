"""Budgets in the console: the spent and the remaining part of the current period, and a forecast of its end."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.tables import Column, Table
from console.widgets import link
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
# Time range whose spending a forecast continues. A day contains a night and a week contains a weekend, so daily budgets
# follow the last day, and budgets of longer periods the last week.
_TRENDS = {"day": timedelta(days=1)}
_TREND = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A budget in its current period.

    `forecast` is the spending at the end of the period if it continues at the rate of the last day or week. `used_up`
    is the time at which the budget is then spent, or None if it lasts until the end of the period.
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
        """The colour of the bar: "bad" if the budget is spent, "warn" from 80 % on or if it will not last."""
        return "bad" if self.percent >= 100 else "warn" if self.percent >= 80 or self.used_up else "good"


def budget_states(*, teams: Sequence[str] | None, at: datetime, most: int | None = MAX_BUDGETS) -> list[BudgetState]:
    """Return the `most` largest budgets of teams (None: all), the largest spent percentage first.

    Budgets that apply to every end user (`*`) are left out, because they are spent by each end user separately.
    """
    found = Budget.objects.exclude(limit_set__end_user=EVERY_END_USER)
    if teams is not None:
        found = found.filter(team__in=teams)
    budgets = list(found.select_related("team", "limit_set__api_key").order_by("-amount", "pk")[:most])
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
    is_file = request.GET.get("format") == "csv"
    states = budget_states(teams=teams, at=now(), most=None if is_file else MAX_BUDGETS)
    table = Table(title="Budgets", columns=_COLUMNS, rows=states)
    if is_file:
        return table.csv_file("budgets.csv")
    every_user = Budget.objects.filter(limit_set__end_user=EVERY_END_USER).select_related("team")
    if teams is not None:
        every_user = every_user.filter(team__in=teams)
    return render(
        request,
        "console/budgets.html",
        title="Budgets",
        table=table,
        every_user=[
            (
                f"{budget.team.name}: {amount(budget.amount.normalize())} per {budget.period}",
                tab_url(budget.team, "limits"),
            )
            for budget in every_user.order_by("team__name", "period")[:MAX_BUDGETS]
        ],
        is_cut=len(table.rows) == MAX_BUDGETS,
        most=MAX_BUDGETS,
    )


def _local(moment: datetime, state: BudgetState) -> str:
    return f"{moment.astimezone(ZoneInfo(state.budget.team.time_zone)):%d %b %H:%M}"


def _spent(state: BudgetState) -> SafeString:
    context = {"percent": state.percent, "width": min(state.percent, 100), "tone": state.tone}
    return render_to_string("console/spent.html", {"spent": _dollars(state.spent), **context})


def _kind(budget: Budget) -> str:
    return "hard" if budget.is_hard else "soft"


def _edit_url(found: LimitSet) -> str:
    if found.api_key_id:
        return limits_url(found.team_id, key=found.api_key_id)
    return limits_url(found.team_id, **({"end_user": found.end_user} if found.end_user else {}))


def _dollars(value: Decimal) -> str:
    # Four decimals below one dollar, so that small amounts are not shown as zero.
    return amount(round(value, 2 if value >= 1 else 4))


_COLUMNS: Sequence[Column[BudgetState]] = (
    Column(
        "Team",
        lambda state: link(tab_url(state.budget.team, "limits"), state.budget.team.name),
        value=lambda state: state.budget.team.name,
    ),
    Column(
        "Subject",
        lambda state: link(_edit_url(state.budget.limit_set), subject_name(state.budget.limit_set)),
        value=lambda state: subject_name(state.budget.limit_set),
    ),
    Column(
        "Budget",
        lambda state: f"{amount(state.budget.amount.normalize())} per {state.budget.period}, {_kind(state.budget)}",
    ),
    Column("Period", value=lambda state: state.budget.period),
    Column("Kind", value=lambda state: _kind(state.budget)),
    Column("Amount", value=lambda state: f"{state.budget.amount.normalize():f}"),
    Column("Spent", _spent, value=lambda state: f"{state.spent:f}"),
    Column("Percent", value=lambda state: str(state.percent)),
    Column("Left", lambda state: _dollars(max(state.budget.amount - state.spent, Decimal(0))), is_number=True),
    Column(
        "Forecast", lambda state: _dollars(state.forecast), value=lambda state: f"{state.forecast:.4f}", is_number=True
    ),
    Column(
        "Used up",
        lambda state: _local(state.used_up, state) if state.used_up and state.percent < 100 else "–",
        value=lambda state: state.used_up.isoformat(timespec="minutes") if state.used_up else "",
    ),
    Column("From", value=lambda state: state.since.isoformat()),
    Column("To", value=lambda state: state.until.isoformat()),
    Column(
        "Period ends",
        lambda state: format_html("{} <small>{}</small>", _local(state.until, state), state.budget.team.time_zone),
    ),
)
