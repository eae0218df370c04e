"""A few places that keys take in rotation, so that a key with many requests does not delay the others."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """Places for one event loop. Each key gets at most `of_key` of them at the same time."""

    def __init__(self, places: int, *, of_key: int | None = None) -> None:
        self._free = places
        self._of_key = places if of_key is None else of_key
        self._taken: dict[Hashable, int] = {}
        # By key, in the order of their next turns.
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """The number of turns that wait for a place."""
        return sum(map(self.waiting_of, [*self._queues]))

    def waiting_of(self, key: Hashable) -> int:
        """Return the number of a key's turns that wait for a place."""
        # A copy, as the thread of the metrics reads it too.
        return sum(not place.done() for place in [*self._queues.get(key, ())])

    def has_place(self, key: Hashable) -> bool:
        """Return true if the key can take a place without waiting."""
        return self._free > 0 and self._taken.get(key, 0) < self._of_key

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it until the end of the block."""
        if self.has_place(key):
            self._take(key)
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._give_back(key)

    async def _wait(self, key: Hashable) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._give_back(key)
            raise

    def _take(self, key: Hashable) -> None:
        self._free -= 1
        self._taken[key] = self._taken.get(key, 0) + 1

    def _give_back(self, key: Hashable) -> None:
        self._free += 1
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        while (following := next(filter(self.has_place, self._queues), None)) is not None:
            queue = self._queues.pop(following)
            place = queue.popleft()
            if queue:
                # The key moves to the end of the rotation.
                self._queues[following] = queue
            # A future that is done belongs to a cancelled request.
            if not place.done():
                self._take(following)
                place.set_result(None)
