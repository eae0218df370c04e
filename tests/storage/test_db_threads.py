"""The threads with database connections."""

import asyncio

from django.db import connection

from kernel.db_threads import connect_threads


def test_the_threads_open_connections_of_their_own(database: None) -> None:
    connection.close()
    asyncio.run(connect_threads())
    # Nobody would return a connection of this thread, which has the event loop, to the pool.
    assert connection.connection is None
