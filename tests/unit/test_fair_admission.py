"""Turns in which requests of teams start, and the teams that are refused in an overload."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from core.admission.overload import Admission
from core.errors import Overloaded
from core.load.load_limit import CommitTimes, LoadLimit
from core.load.turns import Turns


class Door:
    """Requests of teams in a process that lets one request start at a time while several teams send some."""

    def __init__(self, *, is_shared: bool = True) -> None:
        self.admission = Admission()
        limit = LoadLimit(least=1, most=64)
        while is_shared and limit.value > 1:
            limit.observe(1.0)
        self.admission._limit = limit
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def request(self, team: str, *, weight: int = 1) -> asyncio.Event:
        """Send a request and return the event that ends its start."""
        done = asyncio.Event()

        async def serve() -> None:
            with self.admission.waiting():
                await self.admission.turn(team_id=team, weight=weight, authorization=f"Bearer {team}")
                self.order.append(team)
                await done.wait()
                self.admission.started()

        self.tasks.append(asyncio.create_task(serve()))
        await asyncio.sleep(0)
        return done

    async def finish(self) -> None:
        """Cancel the remaining requests."""
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_team_without_starting_requests_does_not_wait_for_a_busy_team() -> None:
    async def test() -> None:
        door = Door()
        await door.request("quiet")
        for _ in range(10):
            await door.request("loud")
        assert door.order == ["quiet", "loud"]
        await door.request("third")
        assert door.order == ["quiet", "loud", "third"]
        await door.finish()

    run(test)


def test_the_team_with_the_fewest_starting_requests_goes_first() -> None:
    async def test() -> None:
        door = Door()
        first = await door.request("quiet")
        loud = [await door.request("loud") for _ in range(3)]
        await door.request("quiet")
        assert door.order == ["quiet", "loud"]
        first.set()
        await settle()
        assert door.order == ["quiet", "loud", "quiet"]
        loud[0].set()
        await settle()
        assert door.order[3:] == ["loud"]
        await door.finish()

    run(test)


def test_requests_of_a_small_team_do_not_wait_for_a_large_one() -> None:
    async def test() -> None:
        door = Door()
        await door.request("quiet")
        for _ in range(20):
            await door.request("loud")
        door.admission._forget()  # every 0.1 s
        for _ in range(2):
            await door.request("quiet")
        assert door.order == ["quiet", "loud", "quiet", "quiet"]
        await door.finish()

    run(test)


def test_a_large_team_pauses_between_its_requests_while_the_loop_is_late() -> None:
    async def test() -> None:
        door = Door()
        door.admission._limit = LoadLimit(least=0.1, most=64)
        for _ in range(100):
            door.admission._limit.observe(1.0)
        await door.request("quiet")
        with door.admission.waiting():
            await door.admission.turn(team_id="loud", weight=1, authorization="Bearer loud")
            for _ in range(20):
                await door.request("loud")
            door.admission._forget()  # every 0.1 s
            assert door.admission._resuming is None
            door.admission.started()
            # There is no `await` in between, so the pause cannot have ended.
            assert door.admission._resuming is not None
            assert door.order == ["quiet"]
            await door.request("quiet")
            assert door.order == ["quiet", "quiet"]
        while len(door.order) < 3:
            await asyncio.sleep(0.001)
        assert door.order[2] == "loud"
        await door.finish()

    run(test)


def test_turns_follow_the_weights() -> None:
    async def test() -> None:
        door = Door()
        events = [await door.request(team, weight=weight) for team, weight in (("heavy", 3), ("light", 1)) * 20]
        door.admission._limit = LoadLimit(least=8, most=8)
        events[0].set()
        await settle()
        assert (door.order.count("heavy"), door.order.count("light")) == (7, 2)
        await door.finish()

    run(test)


def test_a_lone_team_is_not_limited() -> None:
    async def test() -> None:
        door = Door()
        for _ in range(64):
            await door.request("lone")
        assert len(door.order) == 64
        await door.request("lone")
        assert len(door.order) == 64
        await door.finish()

    run(test)


def test_a_cancelled_request_takes_no_turn() -> None:
    async def test() -> None:
        door = Door()
        other = await door.request("quiet")
        first = await door.request("loud")
        await door.request("loud")
        await door.request("loud")
        door.tasks[2].cancel()
        await settle()
        other.set()
        first.set()
        await settle()
        assert door.order == ["quiet", "loud", "loud"]
        await door.finish()
        assert not door.admission._starting
        assert not door.admission._queues

    run(test)


def test_an_overload_refuses_the_team_that_causes_it() -> None:
    async def test() -> None:
        door = Door()
        for _ in range(10):
            await door.request("loud")
        door.admission._is_overloaded = True
        assert door.admission.is_full("loud")
        assert not door.admission.is_full("quiet")
        # A key that was never used: the team is known after its authentication.
        with door.admission.waiting(), pytest.raises(Overloaded):
            await door.admission.turn(team_id="loud", weight=1, authorization="Bearer another")
        await door.request("quiet")
        assert door.order[-1] == "quiet"
        await door.finish()

    run(test)


def test_the_first_request_of_a_key_is_not_refused() -> None:
    async def test() -> None:
        door = Door()
        door.admission._is_overloaded = True  # for ten seconds after a refusal
        door.admission._most_waiting = 1  # OVERLOAD_MIN_REQUESTS
        await door.request("new")
        assert door.order == ["new"]
        await door.finish()

    run(test)


def test_an_overload_by_many_teams_refuses_all_of_them() -> None:
    async def test() -> None:
        door = Door()
        for number in range(100):
            await door.request(f"team {number}")
        door.admission._is_overloaded = True
        assert door.admission.is_full("team 1")
        assert door.admission.is_full("another")
        await door.finish()

    run(test)


def test_the_limit_falls_while_the_loop_is_late_and_rises_slowly() -> None:
    limit = LoadLimit(least=2, most=64)
    for _ in range(100):
        limit.observe(0.02)
    assert limit.value == 2
    for _ in range(100):
        limit.observe(0.0)
    assert 10 < limit.value < 30


def test_a_limit_below_one_pauses_after_each_request() -> None:
    limit = LoadLimit(least=0.1, most=64)
    assert limit.pause == 0.0
    for _ in range(100):
        limit.observe(0.02)
    assert limit.value == 1
    assert limit.pause == pytest.approx(9.0)
    for _ in range(100):
        limit.observe(0.0)
    assert limit.pause == 0.0


def test_the_limit_falls_while_commits_are_slow() -> None:
    commits, limit = CommitTimes(), LoadLimit(least=2, most=64)
    for milliseconds in (2, 3, 3, 4, 3):
        commits.add(milliseconds / 1000)
    assert not commits.are_slow
    for _ in range(20):
        commits.add(0.02)
        limit.observe(0.0, are_commits_slow=commits.are_slow)
    assert commits.are_slow
    assert limit.value < 20


def test_views_serve_keys_in_turns() -> None:
    async def test() -> None:
        turns, order, gate = Turns(1), list[str](), asyncio.Event()

        async def view(key: str) -> None:
            async with turns.turn(hash(key)):
                order.append(key)
                await gate.wait()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(view(key)) for key in ("loud", "loud", "loud", "loud", "quiet")]
            await asyncio.sleep(0)
            assert order == ["loud"]
            # Its slot is passed on.
            tasks[1].cancel()
            gate.set()
        assert order == ["loud", "quiet", "loud", "loud"]
        async with turns.turn(0):
            order.append("last")

    run(test)
