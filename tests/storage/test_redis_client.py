"""Cancellation of tasks that use the asynchronous client of Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.work.redis_client import loop_client

pytestmark = pytest.mark.usefixtures("servers")
# More than a command takes until it waits for its answer. A cancellation of each iteration of the event loop is tried.
_ITERATIONS = 60


async def _set() -> None:
    await loop_client().set("test:cancelled", b"1", px=1000)


async def _set_several() -> None:
    pipeline = loop_client().pipeline(transaction=False)
    await pipeline.set("test:cancelled", b"1", px=1000).set("test:cancelled", b"2", px=1000).execute()


@pytest.mark.parametrize("command", [_set, _set_several])
async def test_a_task_ends_whenever_it_is_cancelled_during_a_command(command: Callable[[], Awaitable[None]]) -> None:
    async def use_redis() -> None:
        await command()
        await asyncio.Event().wait()

    await command()
    for iterations in range(_ITERATIONS):
        task = asyncio.create_task(use_redis())
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        _, running = await asyncio.wait([task], timeout=5)
        assert not running, f"cancelled after {iterations} iterations of the event loop"
    # The connections can be used afterwards.
    await command()
