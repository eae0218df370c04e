"""Wake-ups between processes: heard at once while Redis is there, and never a reason to hang while it is not."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest

from kernel import notifications
from kernel.notifications import Bell, Wakeups
from tests.support.proxies import Proxy, proxied

HERE = urlsplit(os.environ["REDIS_URL"])


async def until(look: Callable[[], bool]) -> None:
    """Wait until this is so."""
    async with asyncio.timeout(5):
        while not look():
            await asyncio.sleep(0.01)


async def heard(wake: asyncio.Event) -> None:
    """Wait for a wake-up, and be ready for the next."""
    async with asyncio.timeout(5):
        await wake.wait()
    wake.clear()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """The way to this run's Redis, which a test can cut."""
    assert HERE.hostname
    assert HERE.port
    async with proxied(HERE.hostname, HERE.port) as proxy:
        yield proxy


def through(proxy: Proxy, *, silence_seconds: float = 5) -> Wakeups:
    """What a process has whose Redis lies behind the proxy."""
    url = f"redis://:{HERE.password}@127.0.0.1:{proxy.port}{HERE.path}"
    return Wakeups(url, silence_seconds=silence_seconds)


async def test_a_ring_wakes_all_who_listen_to_its_channel(proxy: Proxy) -> None:
    here, there = through(proxy), through(proxy)
    ours, theirs, others = asyncio.Event(), asyncio.Event(), asyncio.Event()
    with here.listening("a", ours), here.listening("b", others), there.listening("a", theirs):
        for wake in (ours, theirs, others):
            await heard(wake)
        here.ring(Bell("a"))
        await asyncio.gather(heard(ours), heard(theirs))
        assert not others.is_set()


async def test_a_bell_knows_whether_it_was_heard(proxy: Proxy) -> None:
    here, bell, wake = through(proxy), Bell("a"), asyncio.Event()
    with here.listening("a", wake):
        await heard(wake)
        here.ring(bell)
        await until(lambda: bell.is_heard)
    here.ring(bell)
    await until(lambda: not bell.is_heard)


async def test_who_begins_to_listen_looks_once(proxy: Proxy) -> None:
    here, first, second = through(proxy), asyncio.Event(), asyncio.Event()
    with here.listening("a", first):
        await heard(first)
        with here.listening("b", second):
            await heard(second)


async def test_without_redis_nobody_waits_and_everybody_is_woken_when_it_returns(proxy: Proxy) -> None:
    here, wake, bell = through(proxy), asyncio.Event(), Bell("a")
    with here.listening("a", wake):
        await heard(wake)
        await proxy.close()
        await until(lambda: not here.is_connected)
        here.ring(bell)
        wake.clear()
        await proxy.open()
        await until(lambda: here.is_connected)
        await heard(wake)
        here.ring(bell)
        await until(lambda: bell.is_heard)


async def test_a_redis_that_falls_silent_is_noticed(proxy: Proxy) -> None:
    here, wake = through(proxy, silence_seconds=0.1), asyncio.Event()
    with here.listening("a", wake):
        await heard(wake)
        await asyncio.sleep(0.3)
        assert here.is_connected
        proxy.hold()
        await until(lambda: not here.is_connected)


async def test_threads_ring_too() -> None:
    wake = asyncio.Event()
    with notifications.here().listening("a", wake):
        await heard(wake)
        await asyncio.to_thread(notifications.ring_from_thread, "a")
        await heard(wake)
