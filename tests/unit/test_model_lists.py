"""The cache of upstreams' lists of models."""

import asyncio
from collections.abc import Callable, Coroutine

from core.errors import Failure
from providers.clients import UpstreamFailed
from responses.passthrough.models import ModelLists, Models
from tenants.directory import UpstreamEndpoint

UPSTREAM = UpstreamEndpoint(id="ups_1", base_url="http://upstream/v1", api_key="")
DOWN = UpstreamFailed(Failure(code="server_error", message="down"))


class Listing:
    """An upstream with scripted lists, and a clock."""

    def __init__(self, *answers: Models | UpstreamFailed) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.time = 0.0
        self.lists = ModelLists(self.fetch, now=lambda: self.time)

    async def fetch(self, _: UpstreamEndpoint) -> Models:
        self.asked += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, UpstreamFailed):
            raise answer
        return answer

    async def after(self, seconds: float) -> Models | None:
        """Advance the clock, look the list up, and wait for a refresh."""
        self.time += seconds
        found = await self.lists.find(UPSTREAM)
        for _ in range(5):
            await asyncio.sleep(0)
        return found


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def test_a_list_is_fetched_once_a_minute() -> None:
    async def test() -> None:
        listing = Listing({"a": 1}, {"b": 2})
        assert [await listing.after(seconds) for seconds in (0, 30, 29)] == [{"a": 1}] * 3
        assert listing.asked == 1
        # The old list is returned at once, while the new one is fetched.
        assert await listing.after(5) == {"a": 1}
        assert (await listing.after(0), listing.asked) == ({"b": 2}, 2)

    run(test)


def test_simultaneous_requests_wait_for_the_same_list() -> None:
    async def test() -> None:
        listing = Listing({"a": 1})
        found = await asyncio.gather(*(listing.lists.find(UPSTREAM) for _ in range(5)))
        assert (found, listing.asked) == ([{"a": 1}] * 5, 1)

    run(test)


def test_an_upstream_that_is_down_keeps_its_last_list() -> None:
    async def test() -> None:
        listing = Listing({"a": 1}, DOWN, {"c": 3})
        await listing.after(0)
        assert await listing.after(61) == {"a": 1}
        assert await listing.after(1) == {"a": 1}
        assert listing.asked == 2
        await listing.after(10)
        assert await listing.after(0) == {"c": 3}

    run(test)


def test_an_upstream_that_was_never_reached_is_asked_again_after_a_pause() -> None:
    async def test() -> None:
        listing = Listing(DOWN, {"a": 1})
        assert [await listing.after(seconds) for seconds in (0, 9, 2)] == [None, None, {"a": 1}]
        assert listing.asked == 2

    run(test)
