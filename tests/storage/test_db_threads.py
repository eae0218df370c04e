"""The threads with database connections: each keeps its connection, and replaces one that is broken."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress

import psycopg
import pytest
from django.conf import settings
from django.db import OperationalError, ProgrammingError, connection
from django.db.transaction import atomic
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from core.db import wait_limit
from core.db.database import database_conninfo
from core.db.db_threads import connect_threads, in_db_thread, in_view_thread, pool_load
from tenants import scope
from tests.support.machine_clock import machine_time
from tests.support.tcp_proxy import proxied

OUTAGE_SECONDS = 16
LIMIT_SECONDS = 1.0


@pytest.fixture
def limited() -> Iterator[None]:
    """Limit the time that a request waits for the database, as web processes do."""
    wait_limit.limit_waits(LIMIT_SECONDS)
    yield
    wait_limit.limit_waits(None)


def sleep(seconds: float) -> None:
    """Execute a statement that takes this many seconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


def backend() -> int:
    """Return the id of the server process behind this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


async def backends() -> set[int]:
    """Return the ids of the server processes behind the connections of the threads."""
    return set(await asyncio.gather(*(in_db_thread(backend) for _ in range(40))))


def test_each_thread_opens_its_own_connection(database: None) -> None:
    connection.close()
    asyncio.run(connect_threads())
    # A connection of this thread, which runs the event loop, would never be returned to the pool.
    assert connection.connection is None


@pytest.mark.nightly
@pytest.mark.slow
async def test_the_pool_recovers_within_seconds_after_an_outage(database: None) -> None:
    server = settings.DATABASES["default"]
    options = server["OPTIONS"]["pool"]
    async with proxied(server["HOST"], int(server["PORT"])) as proxy:
        through = make_conninfo(database_conninfo(), host="127.0.0.1", port=proxy.port)
        with ConnectionPool(through, open=True, **options) as pool:

            def query() -> None:
                with pool.connection() as borrowed:
                    borrowed.execute("SELECT 1")

            async def query_until(successful: asyncio.Event) -> float:
                while True:
                    with suppress(psycopg.OperationalError):
                        await asyncio.to_thread(query)
                        if successful.is_set():
                            return machine_time()

            is_back = asyncio.Event()
            await asyncio.to_thread(query)
            await proxy.close()
            querying = asyncio.ensure_future(query_until(is_back))
            await asyncio.sleep(OUTAGE_SECONDS)
            await proxy.open()
            opened_at = machine_time()
            is_back.set()
            assert await querying - opened_at < OUTAGE_SECONDS / 2


@pytest.mark.slow
async def test_the_statements_of_a_request_share_one_limit(database: None, limited: None) -> None:
    wait_limit.start()
    await in_db_thread(lambda: sleep(0.6))
    began = machine_time()
    with pytest.raises(OperationalError):
        await in_view_thread(lambda: sleep(0.6), authorization="")
    assert machine_time() - began < 0.6
    # Later statements fail at once and do not break the connections of others.
    with pytest.raises(OperationalError):
        await in_db_thread(backend)
    wait_limit.start()
    assert await in_db_thread(backend)


@pytest.mark.slow
async def test_waiting_for_a_thread_counts_towards_the_limit(database: None, limited: None) -> None:
    wait_limit.start()
    occupied = threading.Event()
    others = [asyncio.ensure_future(in_db_thread(occupied.wait)) for _ in range(4)]
    waiting = asyncio.ensure_future(in_view_thread(lambda: sleep(0.8), authorization=""))
    await asyncio.sleep(0.6)
    occupied.set()
    with pytest.raises(OperationalError):
        await waiting
    await asyncio.gather(*others)


@pytest.mark.slow
async def test_concurrent_statements_count_once(database: None, limited: None) -> None:
    wait_limit.start()
    await asyncio.gather(*(in_db_thread(lambda: sleep(0.4)) for _ in range(4)))
    await in_db_thread(lambda: sleep(0.3))


@pytest.mark.slow
async def test_the_limit_of_a_statement_is_not_shared_by_many_short_ones(database: None, limited: None) -> None:
    wait_limit.start()
    for _ in range(30):
        await in_db_thread(lambda: sleep(0.04))


@pytest.mark.slow
async def test_sending_output_renews_the_limit_of_a_request(database: None, limited: None) -> None:
    limit = wait_limit.start()
    assert limit is not None
    for _ in range(3):
        await in_db_thread(lambda: sleep(0.6))
        limit.renew()


@pytest.mark.slow
async def test_work_that_outlives_its_request_has_a_limit_for_each_wait(database: None, limited: None) -> None:
    limit = wait_limit.start()
    assert limit is not None
    await in_db_thread(lambda: sleep(0.7))
    for context in (wait_limit.unrelated(), wait_limit.separate()):
        await asyncio.get_running_loop().create_task(in_db_thread(lambda: sleep(0.7)), context=context)
    limit.has_ended = True
    for _ in range(2):
        await in_db_thread(lambda: sleep(0.7))


@pytest.mark.slow
def test_the_wait_for_a_connection_ends_with_the_limit(database: None, limited: None) -> None:
    def connect() -> float:
        began = machine_time()
        with pytest.raises(OperationalError):
            connection.ensure_connection()
        return machine_time() - began

    connection.close()
    with ExitStack() as taken:
        # Until no connection is left, as other threads keep some. On a busy machine, opening one takes seconds.
        while (load := pool_load())["used"] < load["max"]:
            with suppress(PoolTimeout):
                taken.enter_context(connection.pool.connection(timeout=0.3))  # type: ignore[attr-defined]
        assert wait_limit.separate().run(connect) < 2 * LIMIT_SECONDS


async def test_a_thread_keeps_its_connection(database: None) -> None:
    before = await backends()
    # An unused thread opens its connection with its first work.
    for _ in range(5):
        before |= await backends()
    assert await backends() <= before


@pytest.mark.slow
async def test_a_thread_replaces_a_connection_that_the_server_has_closed(database: None) -> None:
    before = await backends()

    for pid in before:
        await asyncio.to_thread(terminate_backend, pid)
    assert not before & await backends()


@pytest.mark.slow
@pytest.mark.parametrize("context", [nullcontext, atomic, scope.every_team])
def test_a_connection_that_was_closed_while_its_thread_kept_it_is_replaced(
    database: None, context: Callable[[], AbstractContextManager[None]]
) -> None:
    before = backend()
    terminate_backend(before)
    with context():
        assert backend() != before


@pytest.mark.slow
def test_a_connection_that_is_closed_during_a_transaction_is_not_replaced(database: None) -> None:
    @atomic
    def terminate_and_ask() -> None:
        terminate_backend(backend())
        backend()

    with pytest.raises(OperationalError):
        terminate_and_ask()
    assert backend()


def terminate_backend(pid: int) -> None:
    """Terminate a server process as a restart does, and wait for its end."""
    with psycopg.connect(database_conninfo()) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@pytest.mark.slow
def test_a_query_does_not_try_every_connection_closed_by_a_restart(database: None) -> None:
    count = 6
    barrier = threading.Barrier(count)

    def take_and_return(_: int) -> int:
        with closing(connection):
            pid = backend()
            barrier.wait()
            return pid

    def ask() -> int:
        with closing(connection):
            return backend()

    with ThreadPoolExecutor(count) as threads:
        idle = {*threads.map(take_and_return, range(count))}
        assert len(idle) == count
        for pid in idle:
            terminate_backend(pid)
        began = machine_time()
        assert threads.submit(ask).result() not in idle
        # With the pool's own check, it would wait for 1, 2 and 4 s after the first three, and fail after 10 s.
        assert machine_time() - began < 5


async def test_a_thread_continues_after_a_failed_query(database: None) -> None:
    def fail() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE 'no'; END $$")

    for _ in range(8):
        with pytest.raises(ProgrammingError):
            await in_db_thread(fail)
    assert await backends()
