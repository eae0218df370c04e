"""Alerts of budgets: a notification and a webhook event when a subject has spent a percentage of its budget.

A periodic task compares the budgets of teams that were active since its last run with their committed usage, the hourly
sums and newer usage records. So it needs a few queries however many teams there are, and idle teams cost nothing. There
is exactly one alert per budget, percentage, period and subject: the row of its notification is unique.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import Exists, OuterRef

from core.clock import now
from deliveries.notifications import Message, notify
from responses.rollups.spending import end_of_sums, period_of, spent_by_end_user, spent_by_subject, subject_of
from responses.webhooks.outbox import announce
from tenants import scope
from tenants.models import Budget, BudgetCheck, Notification, NotificationKind, UsageRecord
from tenants.models.limits import EVERY_END_USER
from tenants.prices import amount

EVENT_TYPE = "budget.alert"
# A record gets its time from the clock of its process and is committed a little later. Records with a longer delay are
# counted when the sums of their hour are completed after its end.
_OVERLAP = timedelta(minutes=10)
_LATE = timedelta(hours=2)
_ADJECTIVES = {"day": "daily", "week": "weekly", "month": "monthly"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Spending of a subject in the current period of a budget. `end_user` is never `*`."""

    budget: Budget
    end_user: str
    since: datetime
    until: datetime
    spent: Decimal

    @property
    def percents(self) -> list[int]:
        """The percentages of the budget that are reached, the lowest first."""
        percents = {*self.budget.alert_percents}
        reached = (percent for percent in percents if self.spent * 100 >= self.budget.amount * percent)
        return sorted(reached) if self.spent else []

    def key(self, percent: int) -> str:
        """Return the key of the alert, which is unique within the team."""
        return f"{self.budget.pk} {percent} {self.since.isoformat()} {self.end_user}"


def send_alerts(*, at: datetime | None = None) -> int:
    """Send an alert for every newly reached percentage of a budget. Return the number of alerts."""
    at = at or now()
    with scope.every_team():
        check = BudgetCheck.objects.first()
        # The first run covers everything that may belong to a current period.
        checked = check.until if check else at - timedelta(days=32)
        found = list(_spending(checked, at, moments=[checked - _LATE, at] if check else [at]))
        keys = {spending.key(percent) for spending in found for percent in spending.percents}
        sent = set(
            Notification.objects.filter(
                team__in={spending.budget.team_id for spending in found},
                kind=NotificationKind.BUDGET_ALERT,
                key__in=keys,
            ).values_list("team_id", "key")
        )
    alerts = 0
    for spending in found:
        for percent in spending.percents:
            if (spending.budget.team_id, spending.key(percent)) not in sent:
                alerts += _alert(spending, percent)
    # Last, so that the next run finds the alerts that were not sent when the process died.
    BudgetCheck.objects.update_or_create(id=1, defaults={"until": at})
    return alerts


def _spending(checked: datetime, at: datetime, *, moments: Sequence[datetime]) -> Iterator[Spending]:
    """Yield the spending of budget subjects in the periods of `moments`, of teams with usage since `checked`."""
    recent = UsageRecord.objects.filter(team=OuterRef("team_id"), occurred_at__gte=checked - _LATE, cost__gt=0)
    budgets = Budget.objects.filter(Exists(recent), alert_percents__len__gt=0, amount__gt=0)
    groups: dict[tuple[datetime, datetime], list[Budget]] = defaultdict(list)
    for budget in budgets.select_related("team", "limit_set__api_key").order_by("pk"):
        # Also the period that has ended since the last run.
        for since, until in sorted({period_of(budget, moment) for moment in moments}):
            if budget.created_at < until:
                groups[since, until].append(budget)
    for (since, until), members in groups.items():
        spent = spent_by_subject(members, since, min(until, end_of_sums(at)))
        for budget in members:
            subject = subject_of(budget)
            costs = [(subject[2], spent.get(subject, Decimal(0)))]
            if budget.limit_set.end_user == EVERY_END_USER:
                costs = spent_by_end_user(budget.team_id, since, until, active_since=checked - _OVERLAP)
            for end_user, cost in costs:
                yield Spending(budget=budget, end_user=end_user, since=since, until=until, spent=cost)


def _alert(spending: Spending, percent: int) -> bool:
    budget, team = spending.budget, spending.budget.team
    key = budget.limit_set.api_key
    owner = f"the team {team.name}"
    subject = {"type": "team", "id": team.pk, "name": team.name}
    if key is not None:
        owner = f"the API key {key.name} ({key.prefix}…{key.last_four}) of {owner}"
        subject = {"type": "api_key", "id": key.pk, "name": key.name}
    elif spending.end_user:
        owner = f"the end user {spending.end_user} of {owner}"
        subject = {"type": "end_user", "id": spending.end_user, "name": spending.end_user}
    # Clients choose the names of end users: in a mail, one with line breaks could pretend to be text of ours.
    owner = " ".join(owner.split())
    zone = ZoneInfo(team.time_zone)
    begins, ends = (f"{moment.astimezone(zone):%Y-%m-%d %H:%M}" for moment in (spending.since, spending.until))
    effect = (
        "Calls that could exceed the budget are refused until then."
        if budget.is_hard
        else "The budget refuses nothing; it only alerts."
    )
    data = {
        "team": {"id": team.pk, "name": team.name},
        "subject": subject,
        "period": {"unit": budget.period, "start": spending.since.isoformat(), "end": spending.until.isoformat()},
        "spent": f"{spending.spent:f}",
        "amount": f"{budget.amount:f}",
        "currency": "usd",
        "percent": percent,
        "is_hard": budget.is_hard,
    }
    adjective = _ADJECTIVES[budget.period]
    message = Message(
        subject=f"{percent} % of the {adjective} budget of {owner} is spent",
        text=f"In the period from {begins} to {ends} ({team.time_zone}), {owner} has spent {amount(spending.spent)} "
        f"of the {adjective} budget of {amount(budget.amount)}.\n\n{effect}",
        path="/admin/budgets/",
    )
    with scope.team(team.pk):
        made = notify(
            team_id=team.pk,
            kind=NotificationKind.BUDGET_ALERT,
            key=spending.key(percent),
            message=message,
            details=data,
        )
        if made is None:
            return False
        announce(team_id=team.pk, event_type=EVENT_TYPE, object_id=made.pk, data=data)
    return True
