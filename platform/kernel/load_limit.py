"""A limit of concurrency that follows the load of an event loop.

While the loop is late, it has more to do than it can, and what it does besides only makes everything wait longer. The
limit then falls step by step, and rises again when the loop is on time (additive increase, multiplicative decrease).
"""

import asyncio

# The loop runs its callbacks in rounds, and a new one waits for the current round: at 1 ms, about twenty callbacks.
_LATE_SECONDS = 0.001
_FACTOR = 0.9
_STEP = 0.2
_BEAT_SECONDS = 0.02
# Of the mean over the last beats, so that a single long callback changes little.
_SHARE_OF_BEAT = 0.2


class LoadLimit:
    """A number between `least` and `most`, adjusted with each measured delay of the event loop."""

    def __init__(self, *, least: int, most: int) -> None:
        self._least, self._most, self._limit = float(least), float(most), float(most)
        self._late = 0.0

    @property
    def value(self) -> int:
        """The current limit."""
        return int(self._limit)

    def observe(self, late_seconds: float) -> None:
        """Take account of a delay of the loop."""
        self._late += _SHARE_OF_BEAT * (late_seconds - self._late)
        if self._late > _LATE_SECONDS:
            self._limit = max(self._least, self._limit * _FACTOR)
        else:
            self._limit = min(self._most, self._limit + _STEP)

    async def follow(self) -> None:
        """Measure the running loop until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self.observe(max(0.0, loop.time() - due))
