"""The loop that claims work and runs it, with a queue in memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from django.db import OperationalError
from typing_extensions import override

from core.work.leases import Claim
from core.work.work_queue import WorkLoop

RENEWED = datetime(2030, 1, 1, tzinfo=UTC)


class Numbers(WorkLoop[Claim]):
    """Takes numbers from a queue, one per claim, and collects them; work waits while `gate` is closed."""

    kind = "numbers"
    poll_seconds = None

    def __init__(self, *numbers: int | Exception) -> None:
        super().__init__()
        self.queue = deque(numbers)
        self.gate = asyncio.Event()
        self.done: list[int] = []
        self.polls = 0

    @override
    async def claim(self) -> bool:
        self.polls += 1
        if not self.queue:
            return False
        number = self.queue.popleft()
        if isinstance(number, Exception):
            raise number
        self.begin(Claim(id=number, team_id="team_1", attempt=2, labels={"number": str(number)}))
        return True

    @override
    async def execute(self, claim: Claim) -> None:
        await self.gate.wait()
        if claim.id < 0:
            raise ValueError(claim.id)
        self.done.append(claim.id)

    @override
    def renew(self, claims: Collection[Claim]) -> datetime:
        return RENEWED

    @override
    async def drain(self) -> None:
        await self.settle(5)


@asynccontextmanager
async def running(loop: Numbers) -> AsyncIterator[None]:
    """Run a loop inside the block; the end of the block waits until it has drained."""
    task = asyncio.create_task(loop.run())
    await quiet()
    try:
        yield
    finally:
        loop.gate.set()
        loop.stop()
        await asyncio.wait_for(task, 60)


async def quiet() -> None:
    """Run the event loop until all tasks wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_work_runs_concurrently_and_is_listed_until_it_ends() -> None:
    loop = Numbers(1, 2)
    async with running(loop):
        assert [(work["number"], work["team"], work["attempt"]) for work in loop.active()] == [
            ("1", "team_1", 2),
            ("2", "team_1", 2),
        ]
        loop.gate.set()
        await quiet()
        assert (loop.done, loop.active()) == ([1, 2], [])


async def test_the_end_of_work_and_a_notification_wake_the_loop() -> None:
    loop = Numbers(1)
    async with running(loop):
        polls = loop.polls
        loop.gate.set()
        await quiet()
        assert loop.polls == polls + 1
        loop.queue.append(2)
        loop.wake()
        await quiet()
        assert loop.done == [1, 2]


async def test_errors_of_work_and_of_claims_do_not_end_the_loop() -> None:
    loop = Numbers(-1, OperationalError(), ValueError(), 3)
    async with running(loop):
        loop.gate.set()
        for _ in range(2):
            loop.wake()
            await quiet()
        assert loop.done == [3]


async def test_a_stopped_loop_claims_nothing_more_and_lets_work_end() -> None:
    loop = Numbers(1)
    async with running(loop):
        loop.stop()
        loop.queue.append(2)
    assert (loop.done, list(loop.queue)) == ([1], [2])


async def test_leases_are_renewed_while_work_runs() -> None:
    loop = Numbers(1)
    loop.renew_seconds = 0.01
    async with running(loop):
        (claim,) = loop.work
        async with asyncio.timeout(60):
            while claim.until != RENEWED:
                await asyncio.sleep(0.01)
