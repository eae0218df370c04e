"""Limits: reserving, settling and releasing against PostgreSQL and Valkey, and rebuilding after a loss."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.db.models import F
from pytest_django.fixtures import Settings

import limits
from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import InsufficientQuota, LimitsUnavailable, PriceUnknown, RateLimited, RequestTooLargeForLimit
from launcher.address import any_free_port
from limits import guard, rejections, script, sweeper
from limits.rebuild import read_state
from limits.values import Demand, Grant, UnknownPrice
from responses.lifecycle.sweeper import drop_lost_reservations
from responses.models import Mode, Response, Status
from tenants import directory, scope
from tenants.models import Budget, LimitSet, RejectedRequest, Reservation, UsageRecord
from tenants.principal import Principal
from tests.support.api import Caller
from tests.support.waiting import eventually

PRICE = Decimal("0.000001")


def cost(input_tokens: int, output_tokens: int) -> Decimal:
    """Return the cost at a dollar per million tokens."""
    return (input_tokens + output_tokens) * PRICE


def limit(caller: Caller, *, of: str = "key", budget: str | None = None, **values: int) -> None:
    """Give the key, the team or an end user limits."""
    subject: dict[str, Any] = {"key": {"api_key": caller.key}, "team": {}}.get(of, {"end_user": of})
    with scope.team(caller.team.pk):
        found = LimitSet.objects.create(team=caller.team, **subject, **values)
        if budget is not None:
            Budget.objects.create(team=caller.team, limit_set=found, amount=Decimal(budget))


def principal(caller: Caller) -> Principal:
    """Return the principal from the directory."""
    return directory.principal(caller.secret)


def call(tokens: int = 0, **values: Any) -> Demand:
    """Return the demand of a call that produces up to this many tokens."""
    return Demand(**{"max_output_tokens": tokens or None, "cost": cost, "run": True, **values})


def reserve(caller: Caller, demand: Demand | None = None) -> Grant:
    """Reserve under a new id."""
    return limits.reserve_sync(principal(caller), demand or call(100), reservation_id=f"resp_{uuid.uuid4().hex}")


def store(grant: Grant) -> bool:
    """Store the row of a grant if its epoch is still current; return whether it was stored."""
    row = grant.row()
    with scope.team(grant.team_id), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM tenants_limitepoch WHERE team_id = %s AND epoch = %s FOR SHARE", [grant.team_id, grant.epoch]
        )
        if cursor.fetchone() is None:
            return False
        Reservation.objects.create(**row)
    return True


def record(grant: Grant, spent: Decimal) -> None:
    """Commit the usage record of a grant and the deletion of its row."""
    with scope.team(grant.team_id):
        UsageRecord.objects.create(
            team_id=grant.team_id,
            api_key_id=grant.key_id,
            end_user=grant.end_user,
            occurred_at=grant.occurred(now()),
            endpoint="responses",
            object_id=grant.id,
            model="m",
            upstream_id="u",
            upstream_model="m",
            outcome="stop",
            cost=spent,
        )
        Reservation.objects.filter(pk=grant.id).delete()


def wipe(caller: Caller) -> None:
    """Delete all data of a team in Redis, as FLUSHALL would."""
    client = script.client()
    for key in client.scan_iter(f"{{{caller.team.pk}}}*"):
        client.delete(key)


def test_a_key_without_limits_reserves_nothing(database: None, caller: Caller) -> None:
    grant = reserve(caller)
    assert (grant.needs_row, grant.headers, principal(caller).limits) == (False, {}, ())
    assert not list(script.client().scan_iter(f"{{{caller.team.pk}}}*"))


def test_requests_per_minute_are_limited_and_reported_in_headers(database: None, caller: Caller) -> None:
    limit(caller, requests_per_minute=2)
    first = reserve(caller)
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert first.headers["x-ratelimit-reset-requests"] == "30s"
    assert not first.needs_row
    reserve(caller)
    with pytest.raises(RateLimited, match=r"requests per minute of your API key: limit 2, used 2") as refused:
        reserve(caller)
    assert 28 <= int(refused.value.headers["retry-after"]) <= 30
    assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"


def test_the_lowest_limit_applies(database: None, caller: Caller) -> None:
    limit(caller, of="team", requests_per_minute=1)
    limit(caller, requests_per_minute=100)
    assert reserve(caller).headers["x-ratelimit-limit-requests"] == "1"
    with pytest.raises(RateLimited, match="of your team"):
        reserve(caller)


def test_each_end_user_has_its_own_limit(database: None, caller: Caller) -> None:
    limit(caller, of="*", requests_per_minute=1)
    limit(caller, of="vip", requests_per_minute=2)
    for user in ("a", "b", "vip", "vip"):
        reserve(caller, call(end_user=user))
    for user in ("a", "vip"):
        with pytest.raises(RateLimited, match=f"end user '{user}'"):
            reserve(caller, call(end_user=user))


def test_nothing_is_reserved_if_any_limit_refuses(database: None, caller: Caller) -> None:
    limit(caller, requests_per_minute=10, concurrent_runs=1)
    grant = reserve(caller)
    for _ in range(3):
        with pytest.raises(RateLimited, match="concurrent runs of your API key: limit 1, in use 1"):
            reserve(caller)
    limits.settle_sync(grant, tokens=0, cost=None)
    assert reserve(caller).headers["x-ratelimit-remaining-requests"] == "8"


def test_the_first_request_of_an_empty_window_is_never_refused_by_an_estimate(database: None, caller: Caller) -> None:
    limit(caller, tokens_per_minute=100)
    grant = reserve(caller, call(input_tokens=5_000))
    assert grant.headers["x-ratelimit-remaining-tokens"] == "0"
    limits.settle_sync(grant, tokens=30, cost=None)
    assert reserve(caller, call(60, input_tokens=9)).headers["x-ratelimit-remaining-tokens"] in {"1", "2"}


def test_a_request_larger_than_the_limit_gets_its_own_error(database: None, caller: Caller) -> None:
    limit(caller, tokens_per_minute=100, max_output_tokens=50)
    with pytest.raises(
        RequestTooLargeForLimit, match="output tokens of your API key: limit 50, requested 51"
    ) as refused:
        reserve(caller, call(51))
    assert refused.value.headers["x-should-retry"] == "false"
    with pytest.raises(RequestTooLargeForLimit, match="tokens per minute of your API key: limit 100, requested 120"):
        reserve(caller, call(20, input_tokens=100, least_input_tokens=100))


def test_tokens_used_beyond_the_estimate_become_debt(database: None, caller: Caller) -> None:
    limit(caller, tokens_per_minute=6_000)
    grant = reserve(caller, call(100))
    limits.settle_sync(grant, tokens=7_000, cost=None)
    with pytest.raises(RateLimited, match=r"limit 6000, used 6000, requested 100\. Please try again in 1\d"):
        reserve(caller, call(100))


def test_a_budget_is_not_exceeded_by_one_unit(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001")
    first = reserve(caller, call(600))
    assert store(first)
    with pytest.raises(RateLimited, match="is reserved by requests in progress") as refused:
        reserve(caller, call(401))
    assert "x-should-retry" not in refused.value.headers
    second = reserve(caller, call(400))
    assert store(second)
    record(first, Decimal("0.0006"))
    limits.settle_sync(first, tokens=600, cost=Decimal("0.0006"))
    record(second, Decimal("0.0003"))
    limits.settle_sync(second, tokens=300, cost=Decimal("0.0003"))
    with pytest.raises(InsufficientQuota, match=r"limit \$0.001 per month, spent \$0.0009") as exceeded:
        reserve(caller, call(101))
    assert exceeded.value.headers["x-should-retry"] == "false"
    assert store(reserve(caller, call(100)))


def test_an_unset_output_limit_is_derived_from_the_budget(database: None, caller: Caller) -> None:
    limit(caller, budget="0.0001")
    grant = reserve(caller, call(input_tokens=40))
    assert (grant.max_output_tokens, grant.amount) == (60, Decimal("0.0001"))


def test_a_call_without_a_price_is_refused_under_a_hard_budget(database: None, caller: Caller) -> None:
    limit(caller, budget="1")
    with pytest.raises(PriceUnknown, match=r"^The model 'unpriced' has no price, so the hard budget of your API key"):
        reserve(caller, call(10, cost=lambda _input, _output: UnknownPrice("unpriced")))


def test_the_same_id_replaces_its_reservation(database: None, caller: Caller) -> None:
    limit(caller, queued_runs=1, concurrent_runs=1)
    waiting = limits.reserve_sync(principal(caller), call(run=False, queued=True), reservation_id="resp_queued")
    assert waiting.row()["is_queued"]
    limits.reserve_sync(principal(caller), call(requests=0), reservation_id="resp_queued")
    status = {use.limit: use.remaining for use in limits.status_sync(principal(caller)).limits}
    assert status == {"queued_runs": 1, "concurrent_runs": 0}


# -- loss --------------------------------------------------------------------------------------------------------------


def test_reservations_and_spending_survive_the_loss_of_redis(database: None, caller: Caller) -> None:
    limit(caller, of="team", budget="0.001", concurrent_runs=2)
    first, second = reserve(caller, call(600)), reserve(caller, call(300))
    assert store(first)
    assert store(second)
    wipe(caller)
    record(first, Decimal("0.0006"))
    limits.settle_sync(first, tokens=600, cost=Decimal("0.0006"))
    wipe(caller)
    with pytest.raises(RateLimited, match=r"spent \$0.0006, reserved by requests in progress \$0.0003"):
        reserve(caller, call(101))
    third = reserve(caller, call(100))
    assert store(third)
    with pytest.raises(RateLimited, match="concurrent runs"):
        reserve(caller, call(0, cost=None))


def test_a_reservation_lost_by_redis_is_not_stored(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=1, requests_per_minute=60)
    lost = reserve(caller)
    wipe(caller)
    other = reserve(caller)
    assert store(other)
    assert not store(lost)
    with pytest.raises(RateLimited, match="concurrent runs"):
        asyncio.run(limits.renew(lost, principal(caller), call(100)))
    limits.settle_sync(other, tokens=0, cost=None)
    record(other, Decimal(0))
    renewed = asyncio.run(limits.renew(lost, principal(caller), call(100)))
    assert renewed.headers == lost.headers
    assert store(renewed)


def test_a_settlement_during_a_rebuild_is_not_lost(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001", concurrent_runs=5)
    grant = reserve(caller, call(600))
    assert store(grant)
    script.client().set(script.state_keys(caller.team.pk)[2], "t", px=5000)
    snapshot = read_state(caller.team.pk)
    record(grant, Decimal("0.0004"))
    limits.settle_sync(grant, tokens=400, cost=Decimal("0.0004"))
    assert script.run(caller.team.pk, [], {**snapshot, "token": "t"}) == ["ok"]
    (budget,) = limits.status_sync(principal(caller)).budgets
    assert (budget.spent, budget.reserved) == (Decimal("0.0004"), Decimal(0))


def test_a_settlement_after_a_rebuild_that_has_counted_it_is_ignored(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001")
    grant = reserve(caller, call(600))
    assert store(grant)
    record(grant, Decimal("0.0004"))
    guard.rebuild_sync(caller.team.pk)
    limits.settle_sync(grant, tokens=400, cost=Decimal("0.0004"))
    (budget,) = limits.status_sync(principal(caller)).budgets
    assert (budget.spent, budget.reserved) == (Decimal("0.0004"), Decimal(0))


def test_a_settlement_committed_after_a_sweep_counts(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001")
    grant = reserve(caller, call(600))
    assert store(grant)
    with scope.team(caller.team.pk):
        Reservation.objects.all().delete()
    guard.rebuild_sync(caller.team.pk)
    record(grant, Decimal("0.0004"))
    limits.settle_sync(grant, tokens=400, cost=Decimal("0.0004"))
    (budget,) = limits.status_sync(principal(caller)).budgets
    assert (budget.spent, budget.reserved) == (Decimal("0.0004"), Decimal(0))


def test_an_older_rebuild_does_not_replace_a_newer_one(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001")
    older, newer = read_state(caller.team.pk), read_state(caller.team.pk)
    assert script.run(caller.team.pk, [], {**newer, "token": ""}) == ["ok"]
    assert script.run(caller.team.pk, [], {**older, "token": ""}) == ["older"]


@pytest.mark.slow
def test_a_budget_added_later_counts_earlier_spending(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=5)
    grant = reserve(caller, call(600))
    assert store(grant)
    record(grant, Decimal("0.0007"))
    limits.settle_sync(grant, tokens=600, cost=Decimal("0.0007"))
    limit(caller, of="team", budget="0.001")
    # A principal is cached for a second.
    eventually(lambda: any(each.budgets for each in principal(caller).limits))
    with pytest.raises(InsufficientQuota, match=r"spent \$0.0007"):
        reserve(caller, call(301))


def test_concurrent_rebuilds_of_missing_state_agree(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=10, requests_per_minute=1000)
    caller_now = principal(caller)

    async def attempt() -> bool:
        try:
            grant = await limits.reserve(caller_now, call(10), reservation_id=f"resp_{uuid.uuid4().hex}")
            while not await in_db_thread(partial(store, grant)):
                grant = await limits.renew(grant, caller_now, call(10))
        except RateLimited:
            return False
        return True

    async def attempts() -> list[bool]:
        return await asyncio.gather(*(attempt() for _ in range(40)))

    assert sum(asyncio.run(attempts())) == 10


def test_rejected_requests_are_counted(database: None, caller: Caller) -> None:
    limit(caller, requests_per_minute=1)
    reserve(caller)
    for _ in range(3):
        with pytest.raises(RateLimited):
            reserve(caller, call(endpoint="responses"))
    rejections.write()
    with scope.team(caller.team.pk):
        found = RejectedRequest.objects.get(team=caller.team)
    assert (found.limit, found.subject, found.endpoint, found.count) == ("requests_per_minute", "key", "responses", 3)


# -- the sweeper -------------------------------------------------------------------------------------------------------


def age(caller: Caller) -> None:
    """Make every reservation in Redis and PostgreSQL a minute older."""
    client, (state, *_) = script.client(), script.state_keys(caller.team.pk)
    for name, entry in client.hscan_iter(state, match="r:*"):
        flags, amount, at = entry.split(b"\n")[0].split(b" ")
        older = b"%s %s %d" % (flags, amount, int(at) - 60_000_000)
        client.hset(state, name, entry.replace(entry.split(b"\n")[0], older))
    with scope.team(caller.team.pk):
        Reservation.objects.filter(team=caller.team).update(created_at=now() - timedelta(minutes=1, seconds=30))


def test_a_reservation_that_was_never_stored_is_swept(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=1)
    reserve(caller)
    assert sweeper.sweep([caller.team.pk]) == 0
    age(caller)
    assert sweeper.sweep([caller.team.pk]) == 1
    assert store(reserve(caller))


def test_a_reservation_that_was_never_settled_is_swept(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001", concurrent_runs=5)
    grant = reserve(caller, call(900))
    assert store(grant)
    record(grant, Decimal("0.0002"))
    age(caller)
    assert sweeper.sweep([caller.team.pk]) == 1
    (budget,) = limits.status_sync(principal(caller)).budgets
    assert (budget.spent, budget.reserved) == (Decimal("0.0002"), Decimal(0))


def test_stored_reservations_are_not_swept(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=2)
    assert store(reserve(caller))
    age(caller)
    assert sweeper.sweep([caller.team.pk]) == 0


def test_a_new_budget_counts_calls_that_began_before_it(database: None, caller: Caller) -> None:
    limit(caller, budget="0.001")
    assert store(reserve(caller))
    record(Grant(id="earlier", team_id=caller.team.pk, key_id=caller.key.pk), Decimal("0.0003"))
    assert sweeper.sweep([caller.team.pk]) == 0
    client, (state, *_) = script.client(), script.state_keys(caller.team.pk)
    client.hincrby(state, "loaded", -61_000_000)
    assert sweeper.sweep([caller.team.pk]) == 1
    (budget,) = limits.status_sync(principal(caller)).budgets
    assert budget.spent == Decimal("0.0003")


def test_reservations_of_runs_that_ended_are_dropped(database: None, caller: Caller) -> None:
    limit(caller, concurrent_runs=5)
    ended, active, lost, calling = [reserve(caller) for _ in range(4)]
    for grant, has_ended in ((ended, True), (active, False)):
        with scope.team(caller.team.pk):
            Response.objects.create(
                id=grant.id, team=caller.team, api_key=caller.key, mode=Mode.JSON, model="m", upstream_model="m",
                status=Status.COMPLETED if has_ended else Status.IN_PROGRESS,
                ended_at=now() - timedelta(hours=1) if has_ended else None,
                completed_at=now() - timedelta(hours=1) if has_ended else None,
            )  # fmt: skip
    for grant in (ended, active, lost, calling):
        assert store(grant)
    with scope.team(caller.team.pk):
        Reservation.objects.filter(pk__in=[ended.id, active.id, lost.id]).update(response_id=F("id"))
        Reservation.objects.filter(pk=calling.id).update(lease_until=now())
    age(caller)
    assert caller.team.pk in drop_lost_reservations()
    with scope.team(caller.team.pk):
        assert set(Reservation.objects.values_list("pk", flat=True)) == {active.id, calling.id}
    assert sweeper.sweep([caller.team.pk]) == 1


# -- connections that break -------------------------------------------------------------------------------------------


async def _read(reader: asyncio.StreamReader) -> bytes:
    # Cancelled when the event loop of the test ends.
    with suppress(asyncio.CancelledError):
        return await reader.read(65536)
    return b""


@asynccontextmanager
async def breaking(url: str, *, at: bytes) -> AsyncIterator[str]:
    """Yield the address of a proxy to Redis that once loses the reply of an executed call with this text."""
    target = urlsplit(url)
    broken = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal broken
        upstream_reader, upstream = await asyncio.open_connection(target.hostname, target.port)
        try:
            while given := await _read(reader):
                upstream.write(given)
                reply = await upstream_reader.read(65536)
                if at in given and not broken:
                    broken = True
                    return
                writer.write(reply)
        finally:
            upstream.close()
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield target._replace(netloc=target.netloc.replace(str(target.port), str(port))).geturl()
    assert broken


def test_a_settlement_whose_reply_is_lost_is_counted_once(
    database: None, caller: Caller, settings: Settings, redis_url: str
) -> None:
    limit(caller, budget="0.001", tokens_per_minute=1000)
    one = principal(caller)

    async def main() -> None:
        async with breaking(redis_url, at=b'"settle"') as settings.REDIS_URL:
            grants = [await limits.reserve(one, call(300), reservation_id=f"resp_{uuid.uuid4().hex}") for _ in range(2)]
            for grant in grants:
                assert await in_db_thread(partial(store, grant))
            await in_db_thread(partial(record, grants[0], Decimal("0.0001")))
            settling = limits.settle(grants[0], tokens=100, cost=Decimal("0.0001"))
            # In the same call, which succeeds nevertheless.
            third = limits.reserve(one, call(100), reservation_id="resp_third")
            await asyncio.gather(settling, third)

    asyncio.run(main())
    settings.REDIS_URL = redis_url
    status = limits.status_sync(one)
    assert [(each.spent, each.reserved) for each in status.budgets] == [(Decimal("0.0001"), Decimal("0.0004"))]
    # The tokens that the first call has not used may be lost, but they do not come back twice.
    assert [each.remaining < 600 for each in status.limits] == [True]


# -- without Redis -----------------------------------------------------------------------------------------------------


@pytest.fixture
def redis_url(settings: Settings) -> str:
    """The address of Redis."""
    return str(settings.REDIS_URL)


@pytest.fixture
def without_redis(redis_url: str, settings: Settings) -> None:
    """Configure a Redis that does not exist."""
    settings.REDIS_URL = f"redis://127.0.0.1:{any_free_port()}/0"


def test_requests_with_limits_are_refused_without_redis(database: None, caller: Caller, without_redis: None) -> None:
    limit(caller, requests_per_minute=10)
    with pytest.raises(LimitsUnavailable) as refused:
        reserve(caller)
    assert refused.value.headers["retry-after"] == "2"
    with pytest.raises(LimitsUnavailable):
        asyncio.run(limits.reserve(principal(caller), call(10), reservation_id="resp_1"))


def test_requests_without_limits_do_not_need_redis(database: None, caller: Caller, without_redis: None) -> None:
    assert not reserve(caller).is_open


def test_limits_can_fail_open(
    database: None, caller: Caller, without_redis: None, settings: Settings, redis_url: str
) -> None:
    settings.LIMITS_FAIL = "open"
    limit(caller, budget="0.001")
    grant = reserve(caller, call(100_000))
    assert (grant.is_open, grant.needs_row) == (True, False)
    settings.REDIS_URL = redis_url
    assert store(reserve(caller, call(100)))
    # Its cost is only in PostgreSQL, so its end causes a rebuild of the state.
    record(grant, Decimal("0.0009"))
    limits.settle_sync(grant, tokens=900, cost=Decimal("0.0009"))
    with pytest.raises(RateLimited, match=r"spent \$0.0009, reserved by requests in progress \$0.0001"):
        reserve(caller, call(1))
