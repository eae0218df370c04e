"""A small pool of threads with database connections, for code on the event loop that queries the database.

Django's connections belong to threads, and `sync_to_async` uses one thread for each request. These threads live as long
as the process, and so do their connections.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from typing import TypeVar

from django.db import OperationalError, connection, connections

from core.db.wait_limit import Wait, seconds_left, within_limit
from core.load.turns import Turns
from core.telemetry import metrics

Result = TypeVar("Result")
# Each thread holds a PostgreSQL connection, in every process.
_SIZE = 4
# All threads but one, which remains for the lookups that every request waits for.
_VIEW_TURNS = Turns(_SIZE - 1)
_THREADS = ThreadPoolExecutor(max_workers=_SIZE, thread_name_prefix="db")


async def in_db_thread(call: Callable[[], Result]) -> Result:
    """Run `call` in one of the threads and return its result; a broken connection is replaced first."""
    # The context carries the request's origin and the team scope into the thread.
    limit, wait = seconds_left(), Wait()
    work = _THREADS.submit(copy_context().run, _with_connection, call, time.perf_counter(), wait)
    if limit is None:
        return await asyncio.wrap_future(work)
    # While the database does not answer, the statements of other requests occupy the threads. A call that has begun has
    # limits of its own, and may upload a large file.
    waiting = asyncio.get_running_loop().call_later(limit, work.cancel)
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise OperationalError(f"no thread was free for a query within {limit:.3g} seconds") from None
    finally:
        waiting.cancel()
        wait.end()


async def in_view_thread(call: Callable[[], Result], *, authorization: str) -> Result:
    """Run a whole view in one of the threads; API keys take turns."""
    async with AsyncExitStack() as stack:
        await within_limit(stack.enter_async_context(_VIEW_TURNS.turn(hash(authorization))))
        return await in_db_thread(call)


def pool_load() -> dict[str, int]:
    """Return the size of the pool of connections, its maximum, the connections in use and the threads that wait."""
    stats: dict[str, int] = connections["default"].pool.get_stats()  # type: ignore[attr-defined]
    size = stats.get("pool_size", 0)
    return {
        "size": size,
        "max": stats.get("pool_max", 0),
        "used": size - stats.get("pool_available", 0),
        "waiting": stats.get("requests_waiting", 0),
    }


async def connect_threads() -> None:
    """Start the threads and open a connection for each of them."""
    await asyncio.gather(*(in_db_thread(_connect) for _ in range(_SIZE)))


def _connect() -> None:
    # Runs in the thread: `connection` is a different object in each of them.
    connection.ensure_connection()


def _with_connection(call: Callable[[], Result], asked: float, wait: Wait) -> Result:
    wait.end()
    metrics.DB_THREAD_WAIT.observe(time.perf_counter() - asked)
    # After an error, the state of the session is unknown.
    if connection.errors_occurred:
        connection.close()
    return call()
