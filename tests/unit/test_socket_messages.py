"""Memory budget of WebSocket messages: the order in which waiting messages get memory."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from django.conf import settings

from core.http.socket_messages import MessageBudget, Reservation

TOTAL = settings.SOCKET_MESSAGES_BYTES
HALF, QUARTER = TOTAL // 2, TOTAL // 4


def take(budget: MessageBudget, sender: str, size: int) -> Reservation:
    """Reserve some bytes that are free."""
    reservation = budget.try_take(sender, size)
    assert reservation is not None
    return reservation


async def soon(waiting: Coroutine[Any, Any, Reservation]) -> asyncio.Task[Reservation]:
    """Start waiting for some bytes; return when the message is in the queue."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    return task


async def test_small_messages_do_not_starve_a_large_one() -> None:
    budget = MessageBudget(patience=0)
    held = [take(budget, "a", QUARTER), take(budget, "b", QUARTER), take(budget, "c", HALF)]
    large = await soon(budget.take("d", HALF))
    small = await soon(budget.take("e", QUARTER))
    del held[0]
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    del held[0]
    assert (await large).size == HALF
    assert not small.done()
    held.clear()
    assert (await small).size == QUARTER


async def test_small_messages_of_others_go_first() -> None:
    budget = MessageBudget(patience=60)
    held = [take(budget, "a", QUARTER), take(budget, "b", HALF), take(budget, "c", QUARTER)]
    large = await soon(budget.take("d", HALF))
    small = await soon(budget.take("e", QUARTER))
    del held[0]
    assert (await small).size == QUARTER
    assert not large.done()
    large.cancel()


async def test_a_sender_over_its_share_delays_no_other() -> None:
    budget = MessageBudget(patience=0)
    held = [take(budget, "a", HALF), take(budget, "a", QUARTER), take(budget, "b", QUARTER)]
    second = await soon(budget.take("a", QUARTER))
    other = await soon(budget.take("c", QUARTER))
    held.pop()
    assert (await other).size == QUARTER
    assert not second.done()
    held.clear()
    assert (await second).size == QUARTER


async def test_messages_of_a_sender_keep_their_order() -> None:
    budget = MessageBudget()
    held = take(budget, "a", HALF)
    first = await soon(budget.take("a", HALF))
    second = await soon(budget.take("a", QUARTER))
    assert not first.done()
    assert not second.done()
    del held
    assert (await first).size == HALF
    assert (await second).size == QUARTER


async def test_a_cancelled_message_is_skipped() -> None:
    budget = MessageBudget(patience=0)
    held = take(budget, "a", HALF)
    take_all = take(budget, "b", HALF)
    cancelled = await soon(budget.take("c", HALF))
    waiting = await soon(budget.take("d", HALF))
    cancelled.cancel()
    await asyncio.sleep(0)
    del held
    assert (await waiting).size == HALF
    assert take_all.size == HALF
