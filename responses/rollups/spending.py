"""Spending of the subjects of budgets, from the hourly sums and newer usage records.

Reservations of running calls do not count. Call every function inside a scope (`tenants.scope`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import Sum

from core import periods
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS
from tenants.models import Budget, LimitSet, UsageRecord
from tenants.models.limits import EVERY_END_USER

Subject = tuple[str, str, str]
"""The ids of the team, key and end user of a budget. An id is empty if the budget is not for a key or an end user."""


# OFFSET 0 makes PostgreSQL look up records by their ids. Otherwise it would search by time, because it underestimates
# the number of records between two times. In every time zone, periods begin at times at which the sums can be divided
# (`cells.is_stored_edge`).
_COUNTED = """
SELECT subject, sum(amount) AS amount FROM (
    SELECT {column} AS subject, budget_cost AS amount FROM responses_callhour
    WHERE level = {level} AND team_id = %(team)s AND hour >= {since} AND hour < {edge}
    UNION ALL
    SELECT {column}, coalesce(budget_cost, cost) FROM tenants_usagerecord
    WHERE team_id = %(team)s AND occurred_at >= {edge} AND occurred_at < {until}
    UNION ALL
    SELECT {column}, coalesce(budget_cost, cost) FROM (
        SELECT * FROM tenants_usagerecord
        WHERE id = ANY (ARRAY(SELECT row_id::bigint FROM responses_unrolledrow WHERE source = 'calls')) OFFSET 0
    ) AS late WHERE team_id = %(team)s AND occurred_at >= {since} AND occurred_at < {edge}
) AS parts WHERE subject <> '' AND amount > 0 GROUP BY subject
"""
_EDGE = "(SELECT greatest({since}, least(coalesce((SELECT until FROM responses_rollupmark), {since}), {until})))"
_COLUMNS = {"t": "team_id", "k": "api_key_id", "u": "end_user"}


def counted_sql(kind: str, *, since: str, until: str) -> str:
    """Return a query for the spending of a period that counts towards the hard budgets of a team's subjects.

    `kind` is `t`, `k` or `u`: the team, its keys or its end users. The team is the parameter `%(team)s`, the period
    lasts from `since` to `until`. The result has the columns `subject` and `amount`. The amounts are exact, as they
    include records that are in no sum yet.
    """
    column = _COLUMNS[kind]
    level = CALLS.level(frozenset({"team_id", column}))
    edge = _EDGE.format(since=since, until=until)
    return _COUNTED.format(column=column, level=level, since=since, until=until, edge=edge)


def end_of_sums(at: datetime) -> datetime:
    """Return the end of the hour that contains a time, because queries of sums end at whole hours."""
    return periods.start_of(at, "hour", ZoneInfo("UTC")) + timedelta(hours=1)


def period_of(budget: Budget, at: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of the period of a budget that contains a time, in the team's time zone."""
    return periods.bounds(budget.period, at, budget.team.time_zone)


def subject_of(budget: Budget) -> Subject:
    """Return the subject of a budget."""
    return budget.team_id, budget.limit_set.api_key_id or "", budget.limit_set.end_user


def spent_by_subject(budgets: Sequence[Budget], since: datetime, until: datetime) -> Mapping[Subject, Decimal]:
    """Return the spending of the subjects of budgets between two times; subjects without spending may be missing.

    The end user `*`, which stands for every end user, is not a subject here: see `spent_by_end_user`.
    """
    teams = sorted({budget.team_id for budget in budgets})
    by: tuple[str, ...] = ("team_id",)
    if any(budget.limit_set.api_key_id for budget in budgets):
        by = ("team_id", "api_key_id")
    rows = fetch_rows(RollupQuery(source=CALLS, since=since, until=until, measures=["cost"], by=by, teams=teams))
    spent: dict[Subject, Decimal] = defaultdict(Decimal)
    for row in rows:
        cost = row.values["cost"] or Decimal(0)
        spent[row.key[0], "", ""] += cost
        if len(row.key) == 2:
            spent[row.key[0], row.key[1], ""] += cost
    if users := {budget.limit_set.end_user for budget in budgets} - {"", EVERY_END_USER}:
        # There are no sums by end user, so the records are read by an index.
        records = UsageRecord.objects.filter(
            team__in=teams, end_user__in=users, occurred_at__gte=since, occurred_at__lt=until
        )
        for team_id, end_user, cost in records.values_list("team_id", "end_user").annotate(Sum("cost")):
            spent[team_id, "", end_user] += cost or 0
    return spent


def spent_by_end_user(
    team_id: str, since: datetime, until: datetime, *, active_since: datetime
) -> list[tuple[str, Decimal]]:
    """Return the spending between two times of each end user of a team who has no limits of their own.

    Only end users with usage since `active_since` are included, because a team may have millions of end users.
    """
    records = UsageRecord.objects.filter(team=team_id, occurred_at__lt=until).exclude(end_user="")
    own = LimitSet.objects.filter(team=team_id, api_key=None).values("end_user")
    active = records.filter(occurred_at__gte=max(since, active_since)).exclude(end_user__in=own)
    found = records.filter(occurred_at__gte=since, end_user__in=active.values("end_user").distinct())
    sums = found.values_list("end_user").annotate(spent=Sum("cost")).order_by("end_user")
    return [(end_user, spent or Decimal(0)) for end_user, spent in sums]
