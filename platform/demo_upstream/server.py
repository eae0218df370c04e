"""Server of the demo upstream, for `python -m demo_upstream` and for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from demo_upstream.app import create_app

# aiohttp waits this long for open requests, twice. Zero would mean forever.
PATIENCE = 0.1
# Load tests connect many clients at the same moment.
BACKLOG = 1024


@asynccontextmanager
async def running(*, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve inside the `async with` and yield the base URL, with the real port for port 0.

    Open requests end with the context. Raises OSError if the port is in use.
    """
    runner = web.AppRunner(create_app(), access_log=None, handler_cancellation=True, shutdown_timeout=PATIENCE)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
