"""The script of limits against models: GCRA, settlements of rates, and interleaved processes with wiped Redis."""

import asyncio
import random
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import limits
from benchmarks.gcra import compare
from core.clock import now
from core.errors import RateLimited
from limits import guard, script, sweeper
from limits.rebuild import read_state
from limits.values import Demand, Grant
from tenants import directory, scope
from tenants.models import Budget, LimitSet, Reservation, UsageRecord
from tenants.principal import Principal
from tests.support.api import Caller, MakeCaller

MINUTE = 60_000_000
# A dollar per million tokens.
PRICE = Decimal("0.000001")
seeded = settings(
    derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_script_agrees_with_the_gcra_of_throttled_py(database: None) -> None:
    agreement = compare(script.client(), sequences=1_500, seed=random.Random(5).randrange(100), seconds=25)
    assert agreement.wrong == []
    assert agreement.refused > agreement.sequences
    assert agreement.reversed * 1_000 < agreement.requests


def run(op: str, at: int, *rates: dict[str, Any], key: str) -> list[int]:
    """Run the script at a time; return the rest of each rate, or an empty list if it refuses."""
    common = {"stateful": False, "id": "", "zone": "UTC", "after": -1, "counts": [], "budgets": []}
    values = [{"limit": 0, "period": MINUTE, "tick": 1, **rate} for rate in rates]
    document = {**common, "op": op, "now": at, "rates": values, "want": 0, "least": 0}
    reply = script.run("-", [key], document)
    return [] if reply[0] == "refused" else [int(number) for number in reply[-2:-1] if number != "ok"]


USES = some.lists(
    some.tuples(some.integers(0, MINUTE // 2), some.integers(1, 100), some.integers(0, 150), some.booleans()),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@seeded
@given(uses=USES)
def test_a_settled_rate_never_allows_more_than_the_actual_use(database: None, uses: Any) -> None:
    key, limit, at = f"test:{uuid4().hex}", 100, 1_780_000_000_000_000
    taken: list[tuple[int, int]] = []
    actual: list[tuple[int, int]] = []
    for pause, cost, used, settles in uses:
        at += pause
        if run("reserve", at, {"limit": limit, "cost": cost}, key=key):
            taken.append((at, cost))
        if settles and taken:
            since, reserved = taken.pop(0)
            run("settle", at, {"limit": limit, "taken": reserved, "used": used, "since": since}, key=key)
            actual.append((since, used))
        (left,) = run("status", at, {"limit": limit, "cost": 0}, key=key)
        assert left <= remaining(sorted(actual), limit, at)


def remaining(uses: list[tuple[int, int]], limit: int, at: int) -> int:
    """Return the rest of a rate after exactly these uses, each at its time."""
    level, before = Fraction(0), 0
    for since, used in [*uses, (at, 0)]:
        level = max(Fraction(0), level - Fraction((since - before) * limit, MINUTE)) + used
        before = since
    return max(0, int((limit - level) // 1))


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """A call of a simulated process and its progress."""

    grant: Grant
    demand: Demand
    stage: str = "reserved"
    spent: Decimal = Decimal(0)


class Simulation:
    """Processes that make calls step by step. Redis may lose its data between any two steps."""

    limit, concurrent = Decimal("0.001"), 3

    def __init__(self, caller: Caller, *, rebuild_ms: int) -> None:
        self.caller = caller
        # Other processes wait this long for the end of a rebuild.
        self.rebuild_ms = rebuild_ms
        with scope.team(caller.team.pk):
            found = LimitSet.objects.create(team=caller.team, concurrent_runs=self.concurrent)
            Budget.objects.create(team=caller.team, limit_set=found, amount=self.limit)
        self.principal: Principal = directory.principal(caller.secret)
        self.works: list[Work] = []
        self.snapshots: list[dict[str, Any]] = []

    def step(self, action: str, number: int) -> None:
        """Take one step; `number` selects among the possible ones."""
        at = {"store": "reserved", "record": "stored", "settle": "recorded"}.get(action)
        works = [work for work in self.works if at is None or work.stage == at]
        if action == "reserve":
            # Half of the calls let the script lower their maximum.
            stated = 1 + number % 600 if number % 2 else None
            demand = Demand(max_output_tokens=stated, cost=lambda given, output: (given + output) * PRICE, run=True)
            try:
                grant = limits.reserve_sync(self.principal, demand, reservation_id=uuid4().hex)
            except RateLimited:
                return
            self.works.append(Work(grant, demand))
        elif action in {"wipe", "read", "load", "sweep"}:
            getattr(self, action)(number)
        elif works:
            work = works[number % len(works)]
            if action == "kill":
                self.works.remove(work)
            else:
                getattr(self, action)(work, number)
        self.check()

    def store(self, work: Work, _: int) -> None:
        """Store a reservation; renew it if its epoch has passed."""
        with scope.team(self.caller.team.pk), connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM tenants_limitepoch WHERE team_id = %s AND epoch = %s FOR SHARE",
                [work.grant.team_id, work.grant.epoch],
            )
            if cursor.fetchone() is not None:
                Reservation.objects.create(**work.grant.row())
                work.stage = "stored"
                return
        try:
            work.grant = asyncio.run(limits.renew(work.grant, self.principal, work.demand))
        except RateLimited:
            self.works.remove(work)

    def record(self, work: Work, number: int) -> None:
        """Commit the usage, at most the reserved amount, together with the deletion of the row."""
        grant, tokens = work.grant, int(work.grant.amount / PRICE)
        work.spent = (tokens if number % 2 else number % (tokens + 1)) * PRICE
        with scope.team(grant.team_id):
            UsageRecord.objects.create(
                team_id=grant.team_id, api_key_id=grant.key_id, occurred_at=grant.occurred(now()), endpoint="responses",
                object_id=grant.id, model="m", upstream_id="u", upstream_model="m", outcome="stop", cost=work.spent,
            )  # fmt: skip
            Reservation.objects.filter(pk=grant.id).delete()
        work.stage = "recorded"

    def settle(self, work: Work, _: int) -> None:
        """Settle in Redis."""
        limits.settle_sync(work.grant, tokens=0, cost=work.spent)
        self.works.remove(work)

    def wipe(self, _: int) -> None:
        """Delete everything in Redis."""
        script.client().delete(*script.state_keys(self.caller.team.pk))

    def read(self, _: int) -> None:
        """Begin a rebuild, as another process does at the same time."""
        script.client().set(script.state_keys(self.caller.team.pk)[2], "other", px=self.rebuild_ms)
        self.snapshots.append(read_state(self.caller.team.pk))

    def load(self, number: int) -> None:
        """Finish a rebuild, which may be outdated."""
        if self.snapshots:
            snapshot = self.snapshots.pop(number % len(self.snapshots))
            script.run(self.caller.team.pk, [], {**snapshot, "token": "other"})

    def finish_rebuilds(self) -> None:
        """Finish all rebuilds, the latest first."""
        while self.snapshots:
            self.load(-1)

    def sweep(self, _: int) -> None:
        """Run the sweeper."""
        sweeper.sweep([self.caller.team.pk])

    def check(self) -> None:
        """Check that the amounts committed in PostgreSQL exceed neither limit."""
        with scope.team(self.caller.team.pk):
            rows = list(Reservation.objects.values_list("amount", "is_run"))
            spent = sum((each.cost or Decimal(0) for each in UsageRecord.objects.all()), Decimal(0))
        assert spent + sum(amount for amount, _ in rows) <= self.limit
        assert sum(is_run for _, is_run in rows) <= self.concurrent

    def totals(self) -> tuple[Decimal, Decimal, int]:
        """Return the spent, reserved and free amounts in Redis."""
        status = limits.status_sync(self.principal)
        return status.budgets[0].spent, status.budgets[0].reserved, status.limits[0].remaining


ACTIONS = ("reserve", "reserve", "store", "store", "record", "settle", "kill", "wipe", "read", "load", "sweep")
STEPS = some.lists(some.tuples(some.sampled_from(ACTIONS), some.integers(0, 10_000)), min_size=30, max_size=60)


@pytest.mark.slow
@seeded
@given(steps=STEPS)
def test_no_limit_is_exceeded_whenever_redis_is_wiped(database: None, make_caller: MakeCaller, steps: Any) -> None:
    simulation = Simulation(make_caller(), rebuild_ms=20)
    for action, number in steps:
        simulation.step(action, number)
    # After any kill or loss, a rebuild agrees with PostgreSQL.
    guard.rebuild_sync(simulation.caller.team.pk)
    with scope.team(simulation.caller.team.pk):
        rows = list(Reservation.objects.values_list("amount", flat=True))
        spent = sum((each.cost or Decimal(0) for each in UsageRecord.objects.all()), Decimal(0))
    assert simulation.totals() == (spent, sum(rows, Decimal(0)), simulation.concurrent - len(rows))


@pytest.mark.nightly
@pytest.mark.slow
@seeded
@given(steps=STEPS)
def test_redis_agrees_with_postgresql_after_all_settlements(
    database: None, make_caller: MakeCaller, steps: Any
) -> None:
    simulation = Simulation(make_caller(), rebuild_ms=5_000)
    for action, number in steps:
        # Without the loss of the list of settlements, and without killed processes, nothing is left for the sweeper.
        if action not in {"kill", "wipe"}:
            if action in {"reserve", "store"}:
                simulation.finish_rebuilds()
            simulation.step(action, number)
    simulation.finish_rebuilds()
    while simulation.works:
        for action in ("store", "record", "settle"):
            simulation.step(action, 0)
    with scope.team(simulation.caller.team.pk):
        spent = sum((each.cost or Decimal(0) for each in UsageRecord.objects.all()), Decimal(0))
    assert simulation.totals() == (spent, Decimal(0), simulation.concurrent)


# -- periods -----------------------------------------------------------------------------------------------------------


class DailyBudget:
    """The script with a budget of 100 units a day, at given times."""

    day = 86_400_000_000
    first = 1_780_000_000_000_000 // day * day

    def __init__(self) -> None:
        self._team = f"team_{uuid4().hex}"
        self._run("load", self.first, epoch=1, tracked=" tday ", spent=[], rows=[], token="")

    def _run(self, op: str, at: int, **document: Any) -> list[str]:
        return script.run(
            self._team, [], {"op": op, "now": at, "zone": "UTC", "stateful": True, "rates": [], **document}
        )

    def reserve(self, name: str, amount: int, at: int) -> str:
        """Reserve an amount at a time of which the caller knows the day; return the result, or the kind of refusal."""
        start = at // self.day * self.day
        budget = {"subject": "t", "period": "day", "start": start, "stop": start + self.day, "amount": 100}
        document = {"id": name, "after": -1, "flags": "", "subjects": ["t"], "counts": [], "budgets": [budget]}
        reply = self._run("reserve", at, want=amount, least=amount, **document)
        return reply[2] if reply[0] == "refused" else reply[0]

    def settle(self, name: str, cost: int, at: int) -> None:
        """Settle a reservation with a record of this time."""
        self._run("settle", at, id=name, keep=False, cost=cost, starts={"day": at // self.day * self.day})


def test_reservations_count_in_the_period_that_begins_while_they_are_open(database: None) -> None:
    budget, midnight = DailyBudget(), DailyBudget.first + DailyBudget.day
    assert budget.reserve("a", 60, midnight - 10) == "ok"
    assert budget.reserve("b", 50, midnight - 5) == "reserved"
    assert budget.reserve("b", 50, midnight + 5) == "reserved"
    budget.settle("a", 60, midnight + 6)
    assert budget.reserve("b", 50, midnight + 7) == "budget"
    assert budget.reserve("b", 40, midnight + 8) == "ok"


def test_spending_of_the_old_period_does_not_count_in_the_new_one(database: None) -> None:
    budget, midnight = DailyBudget(), DailyBudget.first + DailyBudget.day
    assert budget.reserve("a", 100, midnight - 10) == "ok"
    budget.settle("a", 100, midnight - 5)
    assert budget.reserve("b", 1, midnight - 1) == "budget"
    assert budget.reserve("b", 100, midnight) == "ok"


def test_spending_recorded_by_a_fast_clock_in_the_next_period_counts(database: None) -> None:
    budget, midnight = DailyBudget(), DailyBudget.first + DailyBudget.day
    assert budget.reserve("a", 80, midnight - 10) == "ok"
    budget.settle("a", 80, midnight + 1)
    assert budget.reserve("b", 30, midnight - 5) == "budget"
    assert budget.reserve("b", 20, midnight - 4) == "ok"
