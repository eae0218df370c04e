"""Turns at a small number of places, taken by keys in rotation: a key that asks for many does not delay the others."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Places for one event loop."""

    def __init__(self, places: int) -> None:
        self._free = places
        # By key, in the order of their next turns.
        self._queues: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, key: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it until the end of the block."""
        if self._free:
            self._free -= 1
        else:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(key, deque()).append(place)
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._queues:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            place = queue.popleft()
            if queue:
                # To the end of the rotation.
                self._queues[key] = queue
            # A place that is done already belongs to a cancelled request.
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
