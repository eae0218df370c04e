"""Notifications between processes: delivered quickly while Redis is up, and never a reason to hang while it is down."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest

from core.work.notifications import Notifications, Notifier, loop_notifications, notify_from_thread
from tests.support.tcp_proxy import Proxy, proxied

pytestmark = pytest.mark.usefixtures("servers")
REDIS = urlsplit(os.environ["REDIS_URL"])


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def woken(wake: asyncio.Event) -> None:
    """Wait for a notification, and reset the event for the next one."""
    async with asyncio.timeout(60):
        await wake.wait()
    wake.clear()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy for this run's Redis, which a test can interrupt."""
    assert REDIS.hostname
    assert REDIS.port
    async with proxied(REDIS.hostname, REDIS.port) as proxy:
        yield proxy


def connected_through(proxy: Proxy, *, silence_seconds: float = 5) -> Notifications:
    """The notifications of a process that reaches Redis through the proxy."""
    url = f"redis://:{REDIS.password}@127.0.0.1:{proxy.port}{REDIS.path}"
    return Notifications(url, silence_seconds=silence_seconds)


async def test_a_notification_wakes_all_listeners_of_its_channel_only(proxy: Proxy) -> None:
    first, second = connected_through(proxy), connected_through(proxy)
    ours, theirs, others = asyncio.Event(), asyncio.Event(), asyncio.Event()
    with first.listening("a", ours), first.listening("b", others), second.listening("a", theirs):
        for wake in (ours, theirs, others):
            await woken(wake)
        first.notify(Notifier("a"))
        await asyncio.gather(woken(ours), woken(theirs))
        assert not others.is_set()


async def test_a_notifier_reports_whether_its_channel_has_listeners(proxy: Proxy) -> None:
    notifications, notifier, wake = connected_through(proxy), Notifier("a"), asyncio.Event()
    with notifications.listening("a", wake):
        await woken(wake)
        notifications.notify(notifier)
        await until(lambda: notifier.has_listeners)
    notifications.notify(notifier)
    await until(lambda: not notifier.has_listeners)


async def test_a_new_listener_is_woken_once(proxy: Proxy) -> None:
    notifications, first, second = connected_through(proxy), asyncio.Event(), asyncio.Event()
    with notifications.listening("a", first):
        await woken(first)
        with notifications.listening("b", second):
            await woken(second)


@pytest.mark.slow
async def test_listeners_are_woken_when_redis_returns(proxy: Proxy) -> None:
    notifications, wake, notifier = connected_through(proxy), asyncio.Event(), Notifier("a")
    with notifications.listening("a", wake):
        await woken(wake)
        await proxy.close()
        await until(lambda: not notifications.is_connected)
        notifications.notify(notifier)
        wake.clear()
        await proxy.open()
        await until(lambda: notifications.is_connected)
        await woken(wake)
        notifications.notify(notifier)
        await until(lambda: notifier.has_listeners)


@pytest.mark.slow
async def test_a_silent_redis_counts_as_disconnected(proxy: Proxy) -> None:
    notifications, wake = connected_through(proxy, silence_seconds=0.3), asyncio.Event()
    with notifications.listening("a", wake):
        await woken(wake)
        await asyncio.sleep(0.7)
        assert notifications.is_connected
        proxy.hold()
        await until(lambda: not notifications.is_connected)


async def test_threads_can_notify() -> None:
    wake = asyncio.Event()
    with loop_notifications().listening("a", wake):
        await woken(wake)
        await asyncio.to_thread(notify_from_thread, "a")
        await woken(wake)


async def test_messages_arrive_in_order_and_do_not_wake(proxy: Proxy) -> None:
    notifications, wake, received = connected_through(proxy), asyncio.Event(), list[bytes]()
    notifier = Notifier("a")
    with notifications.listening("a", wake, received.append):
        await woken(wake)
        for number in range(100):
            notifications.notify(notifier, b"%d" % number)
        await until(lambda: len(received) == 100)
        assert received == [b"%d" % number for number in range(100)]
        assert not wake.is_set()
        notifications.notify(notifier)
        await woken(wake)


async def test_a_listener_that_fails_does_not_end_the_connection(proxy: Proxy) -> None:
    notifications, wake, received = connected_through(proxy), asyncio.Event(), list[int]()
    with notifications.listening("a", wake, lambda message: received.append(int(message))):
        await woken(wake)
        notifications.notify(Notifier("a"), b"no number")
        await woken(wake)
        notifications.notify(Notifier("a"), b"7")
        await until(lambda: received == [7])


async def test_a_notifier_reports_a_new_listener() -> None:
    found = asyncio.Event()
    notifier = Notifier("begins", on_listener=found.set)
    notifier.notify()
    with loop_notifications().listening("begins", asyncio.Event()):
        # Messages sent before the subscription are lost.
        async with asyncio.timeout(60):
            while not found.is_set():
                notifier.notify()
                await asyncio.sleep(0.01)
