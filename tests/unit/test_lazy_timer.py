"""A timer that is started and stopped often costs no entry in the event loop for each start."""

import asyncio

import pytest

from core.lazy_timer import LazyTimer


@pytest.fixture
async def fired() -> asyncio.Event:
    """Return an event for the call of a timer."""
    return asyncio.Event()


async def test_a_timer_calls_its_function_once(fired: asyncio.Event) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        fired.set()

    timer = LazyTimer(call)
    timer.start(0.01)
    await fired.wait()
    await asyncio.sleep(0.03)
    assert (calls, timer.due) == ([1], None)


async def test_a_stopped_timer_does_not_call_and_can_be_started_again(fired: asyncio.Event) -> None:
    timer = LazyTimer(fired.set)
    timer.start(0.01)
    timer.stop()
    await asyncio.sleep(0.03)
    assert not fired.is_set()
    timer.start(0.01)
    await fired.wait()


async def test_the_last_start_decides(fired: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    timer = LazyTimer(fired.set)
    timer.start(0.01)
    began = loop.time()
    timer.start(0.2)
    await fired.wait()
    assert loop.time() - began >= 0.2
    timer.start(3600)
    timer.start(0.01)
    fired.clear()
    await fired.wait()


async def test_a_closed_timer_leaves_nothing_in_the_event_loop(fired: asyncio.Event) -> None:
    timer = LazyTimer(fired.set)
    timer.start(0.01)
    timer.close()
    await asyncio.sleep(0.03)
    assert not fired.is_set()
