"""A few threads with database connections of their own, for code on the event loop that must ask the database.

`sync_to_async` would run everything of one request in one thread, and Django's connections belong to threads: these
threads live as long as the process, and so do their connections.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from django.db import close_old_connections

Result = TypeVar("Result")
_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="db")


async def in_db_thread(call: Callable[[], Result]) -> Result:
    """Run `call` in one of the threads and await its result; a dead connection is replaced first."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, copy_context().run, _healthy, call)


def _healthy(call: Callable[[], Result]) -> Result:
    close_old_connections()
    return call()
