"""The threads with database connections."""

import asyncio
import time
from contextlib import suppress

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from kernel.db_threads import connect_threads
from kernel.statement_pipeline import database_conninfo
from tests.support.tcp_proxy import proxied

OUTAGE_SECONDS = 16


def test_the_threads_open_connections_of_their_own(database: None) -> None:
    connection.close()
    asyncio.run(connect_threads())
    # Nobody would return a connection of this thread, which has the event loop, to the pool.
    assert connection.connection is None


@pytest.mark.slow
async def test_their_pool_is_back_within_seconds_after_an_outage(database: None) -> None:
    server = settings.DATABASES["default"]
    options = server["OPTIONS"]["pool"]
    async with proxied(server["HOST"], int(server["PORT"])) as proxy:
        through = make_conninfo(database_conninfo(), host="127.0.0.1", port=proxy.port)
        with ConnectionPool(through, check=ConnectionPool.check_connection, open=True, **options) as pool:

            def query() -> None:
                with pool.connection() as borrowed:
                    borrowed.execute("SELECT 1")

            async def query_until(successful: asyncio.Event) -> float:
                while True:
                    with suppress(psycopg.OperationalError):
                        await asyncio.to_thread(query)
                        if successful.is_set():
                            return time.monotonic()

            is_back = asyncio.Event()
            await asyncio.to_thread(query)
            await proxy.close()
            querying = asyncio.ensure_future(query_until(is_back))
            await asyncio.sleep(OUTAGE_SECONDS)
            await proxy.open()
            opened_at = time.monotonic()
            is_back.set()
            assert await querying - opened_at < OUTAGE_SECONDS / 2
