"""Server for any aiohttp application on a free port, in a separate thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.support.waiting import PATIENCE

_SECONDS = PATIENCE


@contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Run the application and yield its base URL including `/v1`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="upstream", daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(_SECONDS)

    # Without `handler_cancellation`, handlers do not notice disconnects.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    wait(_start(runner))
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        wait(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_SECONDS)
        loop.close()


async def _start(runner: web.AppRunner) -> None:
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
