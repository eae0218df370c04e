"""SQL statements that asynchronous code executes in the database threads."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from django.db import connection

from core.db import db_threads
from core.db.db_threads import in_db_thread


@asynccontextmanager
async def captured_statements() -> AsyncIterator[list[str]]:
    """Collect the statements of all database threads inside the block."""
    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    await _in_each_thread(lambda: connection.execute_wrappers.append(note))
    try:
        yield statements
    finally:
        await _in_each_thread(lambda: connection.execute_wrappers.remove(note))


async def _in_each_thread(work: Callable[[], None]) -> None:
    # The barrier keeps each thread busy until all have run the work once.
    threads = db_threads._THREADS._max_workers
    together = threading.Barrier(threads)

    def once() -> None:
        work()
        together.wait(60)

    await asyncio.gather(*(in_db_thread(once) for _ in range(threads)))
