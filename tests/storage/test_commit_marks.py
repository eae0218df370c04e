"""A connection breaks between a commit and its confirmation: the commit is looked up instead of repeated."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from django.conf import settings
from psycopg.conninfo import make_conninfo

from core.clock import now
from core.db import wait_limit
from core.db.database import database_conninfo
from core.db.db_threads import in_db_thread
from core.db.group_commit import GroupCommit
from core.db.statement_pipeline import ConnectionLost
from engine.events.compression import compress
from responses.models import CommitMark, EventBatch
from responses.runs.rows import new_row
from responses.runs.store import Change, LeaseLost, MarkedWriter, ResponseUpdate
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Caller
from tests.support.machine_clock import machine_time
from tests.support.stored_runs import Begun, abegin, response_of
from tests.support.tcp_proxy import Proxy, proxied

# Messages of PostgreSQL's protocol: the server is ready for the next transaction, and the client's sync, which commits.
COMMITTED, COMMIT = b"Z\x00\x00\x00\x05I", b"S\x00\x00\x00\x04"


@asynccontextmanager
async def broken_line() -> AsyncIterator[tuple[Proxy, GroupCommit[Change]]]:
    """A separate writer, whose connection leads through a proxy."""
    database = settings.DATABASES["default"]
    async with proxied(database["HOST"], int(database["PORT"])) as proxy:
        through = {"host": "127.0.0.1", "port": str(proxy.port)}
        yield proxy, GroupCommit(lambda: MarkedWriter(lambda: make_conninfo(database_conninfo(), **through)))


def ending_change(begun: Begun, *, token: int = 1) -> Change:
    """Return a change that ends the response, with an event and a usage record."""
    who, at = begun.who, now()
    event = new_row(
        EventBatch,
        team_id=who.team_id,
        response_id=who.response_id,
        first_sequence=2,
        last_sequence=2,
        created_at=at,
        compressed=compress(b"end"),
    )
    spent = new_row(
        UsageRecord,
        team_id=who.team_id,
        api_key_id=who.key_id,
        occurred_at=at,
        endpoint="responses",
        object_id=who.response_id,
        model="",
        upstream_id="",
        upstream_model="",
        outcome="failed",
    )
    update = ResponseUpdate(response_id=who.response_id, lease_token=token, status="failed", ended_at=at)
    return Change(team_id=who.team_id, insert=[event, spent], update=update)


def stored_counts(begun: Begun) -> tuple[int, int, str]:
    """Return the numbers of events after the opening and of usage records, and the response's status."""
    with scope.team(begun.who.team_id):
        events = EventBatch.objects.filter(response_id=begun.who.response_id, first_sequence=2).count()
        spent = UsageRecord.objects.filter(object_id=begun.who.response_id).count()
    return events, spent, response_of(begun).status


async def test_an_unconfirmed_commit_is_not_repeated(database: None, caller: Caller) -> None:
    begun, other = await abegin(caller), await abegin(caller)
    async with broken_line() as (proxy, commit):
        await commit.submit(Change(team_id=begun.who.team_id))
        proxy.cut_at(COMMITTED)
        outcomes = await asyncio.gather(
            commit.submit(ending_change(begun)), commit.submit(ending_change(other, token=7)), return_exceptions=True
        )
        assert proxy.has_cut
    assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLost]
    assert await in_db_thread(lambda: stored_counts(begun)) == (1, 1, "failed")
    assert await in_db_thread(lambda: stored_counts(other)) == (0, 0, "in_progress")


@pytest.fixture
def short_limit() -> Iterator[None]:
    """Let a commit take one second, as in a web process with a short limit."""
    wait_limit.limit_waits(1)
    yield
    wait_limit.limit_waits(None)


@pytest.mark.slow
async def test_a_commit_with_a_late_confirmation_is_not_reported_as_failed(
    database: None, caller: Caller, short_limit: None
) -> None:
    begun, other = await abegin(caller), await abegin(caller)
    async with broken_line() as (proxy, commit):
        await commit.submit(Change(team_id=begun.who.team_id))
        proxy.stall_at(COMMITTED)
        outcomes = await asyncio.gather(
            commit.submit(ending_change(begun)), commit.submit(ending_change(other, token=7)), return_exceptions=True
        )
        assert proxy.has_stalled
    assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLost]
    assert await in_db_thread(lambda: stored_counts(begun)) == (1, 1, "failed")


@pytest.mark.slow
async def test_a_commit_that_the_server_never_got_is_reported_as_failed(
    database: None, caller: Caller, short_limit: None
) -> None:
    begun = await abegin(caller)
    async with broken_line() as (proxy, commit):
        await commit.submit(Change(team_id=begun.who.team_id))
        proxy.stall_at(COMMIT)
        with pytest.raises(ConnectionLost):
            await commit.submit(ending_change(begun))
        assert proxy.has_stalled
    assert await in_db_thread(lambda: stored_counts(begun)) == (0, 0, "in_progress")


@pytest.mark.slow
async def test_waiting_for_an_earlier_group_respects_the_time_limit(
    database: None, caller: Caller, short_limit: None
) -> None:
    begun, late = await abegin(caller), await abegin(caller)
    async with broken_line() as (proxy, commit):
        await commit.submit(Change(team_id=begun.who.team_id))
        proxy.hold()
        began = machine_time()
        first = commit.submit(ending_change(begun))
        await asyncio.sleep(0.2)
        wait_limit.start()
        with pytest.raises(ConnectionLost):
            await commit.submit(ending_change(late))
        assert machine_time() - began < 4.5
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], ConnectionLost)


async def test_a_failed_commit_is_repeated(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    async with broken_line() as (proxy, commit):
        await commit.submit(Change(team_id=begun.who.team_id))
        proxy.cut_at(COMMIT)
        await commit.submit(ending_change(begun))
        assert proxy.has_cut
    assert await in_db_thread(lambda: stored_counts(begun)) == (1, 1, "failed")


async def test_each_process_stores_one_mark(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    async with broken_line() as (_, commit):
        before = await in_db_thread(CommitMark.objects.count)
        for _ in range(3):
            await commit.submit(Change(team_id=begun.who.team_id))
        assert await in_db_thread(CommitMark.objects.count) == before + 1
