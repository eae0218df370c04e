"""Shutdown of a web process on SIGTERM: report, wait for load balancers, refuse, finish, hand over, cut."""

import asyncio
import logging
from collections.abc import Callable

from django.conf import settings

from core.load.draining import draining
from providers.clients import close_clients
from responses.api import websocket
from responses.lifecycle.queue import MESSAGE
from responses.runs import runner

logger = logging.getLogger(__name__)
_tasks: "list[asyncio.Task[None]]" = []


def begin(after: Callable[[], None]) -> None:
    """Shut down in the background, then call a function. A second call shortens the shutdown."""
    if _tasks:
        draining.hurry()
    else:
        _tasks.append(asyncio.get_running_loop().create_task(_drain(after)))


async def finish() -> None:
    """Shut down at once, or wait for the shutdown that has begun, and close the connections to upstreams."""
    draining.hurry()
    if not _tasks:
        begin(lambda: None)
    await asyncio.wait(_tasks)
    await close_clients()


async def _drain(after: Callable[[], None]) -> None:
    try:
        draining.is_announced = True
        await draining.pause(settings.DRAIN_DELAY_SECONDS)
        draining.refuses = True
        ends_at = asyncio.get_running_loop().time() + settings.DRAIN_SECONDS

        def seconds_left() -> float:
            return 0.0 if draining.is_hurried else ends_at - asyncio.get_running_loop().time()

        sockets = asyncio.ensure_future(websocket.shut_down())
        await asyncio.gather(
            runner.drain(seconds_left=seconds_left, notify_workers=MESSAGE.notify),
            draining.end_requests(seconds_left),
        )
        await draining.cut_requests()
        sockets.cancel()
    except Exception:
        logger.exception("the process could not shut down in order")
    finally:
        after()
