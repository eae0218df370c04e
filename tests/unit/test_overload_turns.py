"""Turns of the requests that wait to start in a busy process."""

import asyncio
from collections.abc import Sequence

import pytest

from kernel.overload import Admission

BURST = 256


class Requests:
    """Requests that start in their turn, and then wait for an answer that never comes."""

    def __init__(self) -> None:
        self._admission = Admission()
        self.started: list[int] = []

    async def send(self, numbers: Sequence[int]) -> list["asyncio.Task[None]"]:
        """Send requests and return their tasks."""
        tasks = [asyncio.create_task(self._serve(number)) for number in numbers]
        await asyncio.sleep(0)
        return tasks

    async def _serve(self, number: int) -> None:
        with self._admission.work():
            await self._admission.turn()
            self.started.append(number)
            await asyncio.Event().wait()


@pytest.fixture
def requests() -> Requests:
    return Requests()


async def test_a_burst_starts_at_once(requests: Requests) -> None:
    await requests.send(range(BURST))
    assert requests.started == [*range(BURST)]


async def test_further_requests_start_in_order_a_few_in_each_iteration(requests: Requests) -> None:
    await requests.send(range(BURST + 40))
    steps = []
    while len(requests.started) < BURST + 40:
        before = len(requests.started)
        await asyncio.sleep(0)
        steps.append(len(requests.started) - before)
    assert max(steps) == 4
    assert requests.started == [*range(BURST + 40)]


async def test_a_request_waits_behind_those_before_it(requests: Requests) -> None:
    tasks = await requests.send(range(BURST + 40))
    for task in tasks[:BURST]:
        task.cancel()
    await asyncio.sleep(0)
    await requests.send([1000])
    assert 1000 not in requests.started
    while 1000 not in requests.started:
        await asyncio.sleep(0)
    assert requests.started[-1] == 1000


async def test_a_request_without_a_client_takes_no_turn(requests: Requests) -> None:
    tasks = await requests.send(range(BURST + 40))
    for task in tasks[BURST + 8 : BURST + 36]:
        task.cancel()
    iterations = 0
    while BURST + 39 not in requests.started:
        await asyncio.sleep(0)
        iterations += 1
    assert iterations < 10
