"""A limit of concurrency that follows the load of an event loop and of its commits.

While the loop or the commits are late, the process has more work than it can do, and new work only makes everything
wait longer. The limit then falls step by step, and rises again when they are on time (additive increase, multiplicative
decrease).
"""

import asyncio
import time

# The loop runs its callbacks in rounds, and a new one waits for the current round: at 1 ms, about twenty callbacks.
_LATE_SECONDS = 0.001
_FACTOR = 0.9
_STEP = 0.2
_BEAT_SECONDS = 0.02
# Weight of the latest beat or commit in the mean: a single long beat or commit changes little.
_SHARE = 0.2
# Commits are slow if they take this multiple of the last minute's fastest commit, which shows the database's speed.
_SLOW_FACTOR = 4.0
_SLOW_SECONDS = 0.002
_WINDOW_SECONDS = 30.0


class CommitTimes:
    """Durations of the commits of this process."""

    def __init__(self) -> None:
        self._mean = 0.0
        # The fastest commits of this window and of the one before.
        self._fastest = self._fastest_before = float("inf")
        self._window_ends = 0.0

    def add(self, seconds: float) -> None:
        """Add the duration of a commit."""
        at = time.monotonic()
        if at > self._window_ends:
            self._fastest_before, self._fastest = self._fastest, float("inf")
            self._window_ends = at + _WINDOW_SECONDS
        self._fastest = min(self._fastest, seconds)
        self._mean += _SHARE * (seconds - self._mean)

    @property
    def are_slow(self) -> bool:
        """Return true if the last commits took much longer than the fastest one."""
        return self._mean > _SLOW_FACTOR * min(self._fastest, self._fastest_before) + _SLOW_SECONDS


commit_times = CommitTimes()


class LoopDelay:
    """State of the event loop of this process. `is_late`: it has more work than it can do, as its `LoadLimit` finds."""

    is_late = False


loop_delay = LoopDelay()


class LoadLimit:
    """A number between `least` and `most`, adjusted with each measured delay of the event loop.

    With `least` below 1, the limit may fall below 1 under load: then one piece of work runs at a time, with pauses.
    """

    def __init__(self, *, least: float, most: int) -> None:
        self._least, self._most, self._limit = float(least), float(most), float(most)
        self._late = 0.0

    @property
    def value(self) -> int:
        """The current limit."""
        return max(1, int(self._limit))

    @property
    def pause(self) -> float:
        """The pause after each piece of work, relative to its duration; 0 unless the limit is below 1."""
        return max(0.0, 1 / self._limit - 1)

    def observe(self, late_seconds: float, *, are_commits_slow: bool = False) -> None:
        """Adjust the limit to a delay of the loop and to the last commits."""
        self._late += _SHARE * (late_seconds - self._late)
        if self._late > _LATE_SECONDS or are_commits_slow:
            self._limit = max(self._least, self._limit * _FACTOR)
        else:
            self._limit = min(self._most, self._limit + _STEP * min(1.0, self._limit))

    async def follow(self) -> None:
        """Measure the running loop until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self.observe(max(0.0, loop.time() - due), are_commits_slow=commit_times.are_slow)
            loop_delay.is_late = self._late > _LATE_SECONDS
