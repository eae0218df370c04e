"""Rebuilt spending of budgets: sums and records, to the last digit."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Thread
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum
from django.db.models.functions import Coalesce

from core.clock import now
from core.periods import bounds, microseconds
from limits.rebuild import UNITS, read_state
from responses.models.rollups import RollupMark, UnrolledRow
from responses.rollups import aggregate, queries, spending
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS
from tenants import scope
from tenants.models import Budget, LimitSet, Period, Team, UsageRecord
from tests.support.api import Caller, MakeCaller
from tests.support.sampling import SEED, sized

# Each test starts without sums.
pytestmark = pytest.mark.slow
ZONES = ("UTC", "Asia/Kathmandu", "America/Havana", "Pacific/Chatham", "Europe/Berlin")


def record(caller: Caller, at: datetime, *, cost: str | None = "0.0000000001", **columns: str | Decimal) -> UsageRecord:
    """Return a usage record of the caller's key that is not stored."""
    return UsageRecord(
        team=caller.team, api_key=caller.key, occurred_at=at, endpoint="responses", object_id="x", model="m",
        upstream_id="u", upstream_model="m", outcome="stop", cost=None if cost is None else Decimal(cost), **columns,
    )  # fmt: skip


def insert(caller: Caller, *records: UsageRecord) -> None:
    """Store usage records."""
    with scope.team(caller.team.pk):
        UsageRecord.objects.bulk_create(records)


def budgets(caller: Caller, *, zone: str = "UTC") -> None:
    """Give the team, the key and each end user a hard budget of every period."""
    with scope.team(caller.team.pk):
        Team.objects.filter(pk=caller.team.pk).update(time_zone=zone)
        for subject in ({"api_key": caller.key}, {}, {"end_user": "*"}):
            found = LimitSet.objects.create(team=caller.team, **subject)
            for period in Period.values:
                Budget.objects.create(team=caller.team, limit_set=found, period=period, amount=Decimal(1000))


def counted(caller: Caller, *, zone: str = "UTC") -> dict[str, int]:
    """Return the expected spending of a rebuild, summed over the single records."""
    amount = Sum(Coalesce("budget_cost", "cost"))
    found: Counter[str] = Counter()
    with scope.team(caller.team.pk):
        for period in Period.values:
            # Near the end of a period, both are loaded.
            for since, until in {bounds(period, now() + step * timedelta(minutes=1), zone) for step in (-1, 1)}:
                records = UsageRecord.objects.filter(occurred_at__gte=since, occurred_at__lt=until)
                for prefix, column in (("t", "team"), ("k:", "api_key"), ("u:", "end_user")):
                    for subject, spent in records.values_list(column).annotate(amount=amount).order_by(column):
                        if subject and spent:
                            name = "t" if prefix == "t" else prefix + subject
                            found[f"s:{name}:{period}:{microseconds(since)}"] += int(spent * UNITS)
    return dict(found)


def loaded(caller: Caller) -> dict[str, int]:
    """Return the spending that a rebuild loads."""
    return dict(read_state(caller.team.pk)["spent"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan of PostgreSQL."""
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


@pytest.mark.parametrize("number", range(sized(6, full=200)))
def test_a_rebuild_equals_the_sum_of_the_records(rollups: None, make_caller: MakeCaller, number: int) -> None:
    caller, chance = make_caller(), random.Random(f"{SEED}/{number}")
    zone = ZONES[number % len(ZONES)]
    budgets(caller, zone=zone)
    present = now()

    def some(count: int, *, days: int) -> list[UsageRecord]:
        return [
            record(
                caller,
                present - timedelta(seconds=chance.uniform(0, days * 86_400)),
                cost=chance.choice([None, "0", f"{chance.uniform(0, 2):.10f}"]),
                end_user=chance.choice(["", "ann", "bob", "cläre"]),
                **({"budget_cost": Decimal(f"{chance.uniform(0, 3):.10f}")} if chance.random() < 0.2 else {}),
            )
            for _ in range(count)
        ]

    insert(caller, *some(30, days=40))
    assert loaded(caller) == counted(caller, zone=zone)
    aggregate.roll_up(seconds=100, at=present - timedelta(hours=chance.uniform(0, 48)))
    # Some are newer than the mark, and others late.
    insert(caller, *some(15, days=3))
    assert loaded(caller) == counted(caller, zone=zone)
    aggregate.roll_up(seconds=100)
    insert(caller, *some(10, days=40))
    assert loaded(caller) == counted(caller, zone=zone)
    aggregate.roll_up(seconds=100)
    assert loaded(caller) == counted(caller, zone=zone)


def test_a_late_record_counts_immediately_and_is_summed_by_the_next_rollup(rollups: None, caller: Caller) -> None:
    at = now() - timedelta(hours=30)
    insert(caller, record(caller, at))
    aggregate.roll_up(seconds=100)
    insert(caller, record(caller, at), record(caller, now()))
    day: dict[str, Any] = {"since": at.replace(minute=0, second=0, microsecond=0), "until": at + timedelta(hours=1)}
    question = RollupQuery(source=CALLS, measures=["calls", "budget_cost"], teams=[caller.team.pk], **day)
    for remembered in (1, 0):
        with scope.team(caller.team.pk):
            assert UnrolledRow.objects.filter(source="calls").count() == remembered
            (row,) = queries.fetch_rows(question)
        assert row.values == {"calls": 2, "budget_cost": Decimal("0.0000000002")}
        aggregate.roll_up(seconds=100)


def test_a_late_record_waits_for_a_concurrent_rollup(rollups: None, caller: Caller) -> None:
    at = now() - timedelta(hours=30)
    insert(caller, record(caller, at))
    aggregate.roll_up(seconds=100)
    RollupMark.objects.update(until=at - timedelta(hours=1))
    other = connection.copy()
    with closing(other), other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [aggregate.LOCK])
        cursor.execute("UPDATE responses_rollupmark SET until = %s", [datetime.now(UTC)])

        def insert_late() -> None:
            with closing(connection):
                insert(caller, record(caller, at))

        thread = Thread(target=insert_late)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        cursor.execute("COMMIT")
        thread.join(20)
    with scope.team(caller.team.pk):
        assert UnrolledRow.objects.filter(source="calls").count() == 1


def test_a_rebuild_does_not_read_summed_records(rollups: None, caller: Caller) -> None:
    present = now()
    span: dict[str, Any] = {"since": present - timedelta(days=20), "until": present, "team": caller.team.pk}
    minutes = [20 + number for number in range(3000)]
    insert(caller, *(record(caller, present - timedelta(minutes=each), end_user="ann") for each in minutes))
    aggregate.roll_up(seconds=100)
    for late in (timedelta(seconds=1), timedelta(days=2)):
        insert(caller, record(caller, present - late, end_user="ann"))
    for kind in "tku":
        statement = spending.counted_sql(kind, since="%(since)s", until="%(until)s")
        with scope.team(caller.team.pk), connection.cursor() as cursor:
            # A table as small as this one may be read as a whole.
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", span)
            ((plan,),) = cursor.fetchall()
        read = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name", "").startswith("tenants_usage")]
        passed = sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in read
        )
        assert 2 <= passed < 100
