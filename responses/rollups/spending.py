"""Spending of the subjects of budgets, from the hourly sums and newer usage records.

What running calls have reserved does not count. Every function runs inside a scope (`tenants.scope`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import Sum

from responses.rollups import periods
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS
from tenants.limit_models import EVERY_END_USER
from tenants.models import Budget, LimitSet, UsageRecord

Subject = tuple[str, str, str]
"""Team, key and end user of a budget; empty where it has none."""


def end_of_sums(at: datetime) -> datetime:
    """Return the end of the hour of a time, as queries of sums need it."""
    return periods.start_of(at, "hour", ZoneInfo("UTC")) + timedelta(hours=1)


def period_of(budget: Budget, at: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of the period of a budget that contains a time, in the team's time zone."""
    zone = ZoneInfo(budget.team.time_zone)
    since = periods.start_of(at, budget.period, zone)
    return since, periods.next_start(since, budget.period, zone)


def subject_of(budget: Budget) -> Subject:
    """Return whose budget it is."""
    return budget.team_id, budget.limit_set.api_key_id or "", budget.limit_set.end_user


def spent_by_subject(budgets: Sequence[Budget], since: datetime, until: datetime) -> Mapping[Subject, Decimal]:
    """Return what the subjects of budgets have spent between two times; those who have spent nothing may be missing.

    `*`, every end user, is no subject: see `spent_by_end_user`.
    """
    teams = sorted({one.team_id for one in budgets})
    by: tuple[str, ...] = ("team_id",)
    if any(one.limit_set.api_key_id for one in budgets):
        by = ("team_id", "api_key_id")
    rows = fetch_rows(RollupQuery(source=CALLS, since=since, until=until, measures=["cost"], by=by, teams=teams))
    spent: dict[Subject, Decimal] = defaultdict(Decimal)
    for row in rows:
        cost = row.values["cost"] or Decimal(0)
        spent[row.key[0], "", ""] += cost
        if len(row.key) == 2:
            spent[row.key[0], row.key[1], ""] += cost
    if users := {one.limit_set.end_user for one in budgets} - {"", EVERY_END_USER}:
        # There are no sums by end user, but an index of the records.
        records = UsageRecord.objects.filter(
            team__in=teams, end_user__in=users, occurred_at__gte=since, occurred_at__lt=until
        )
        for team_id, end_user, cost in records.values_list("team_id", "end_user").annotate(Sum("cost")):
            spent[team_id, "", end_user] += cost or 0
    return spent


def spent_by_end_user(
    team_id: str, since: datetime, until: datetime, *, active_since: datetime
) -> list[tuple[str, Decimal]]:
    """Return what each end user of a team without limits of their own has spent between two times.

    Only of those with usage since a third time: a team may have millions of others.
    """
    records = UsageRecord.objects.filter(team=team_id, occurred_at__lt=until).exclude(end_user="")
    own = LimitSet.objects.filter(team=team_id, api_key=None).values("end_user")
    active = records.filter(occurred_at__gte=max(since, active_since)).exclude(end_user__in=own)
    found = records.filter(occurred_at__gte=since, end_user__in=active.values("end_user").distinct())
    sums = found.values_list("end_user").annotate(spent=Sum("cost")).order_by("end_user")
    return [(end_user, spent or Decimal(0)) for end_user, spent in sums]
