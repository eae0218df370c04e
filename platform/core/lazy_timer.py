"""Timer that is started and stopped often and rarely ends: it costs no entry in the event loop for each start."""

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls a function if it is not stopped or started again within a time.

    The timer of the event loop runs on after `stop` and `start`, and is moved only when it fires. For objects that live
    long: together with a method of its owner, it is a cycle that only a garbage collection frees.
    """

    __slots__ = ("_call", "_due", "_fires_at", "_timer")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._due: float | None = None
        self._fires_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float | None:
        """The time of the event loop at which the function is called; None if the timer was stopped."""
        return self._due

    def start(self, seconds: float) -> None:
        """Call the function in `seconds`, instead of at the time of an earlier start."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is None or self._fires_at > due:
            self.close()
            self._fires_at, self._timer = due, loop.call_at(due, self._fire)
        self._due = due

    def stop(self) -> None:
        """Do not call the function."""
        self._due = None

    def close(self) -> None:
        """Stop, and remove the timer from the event loop."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        due, self._timer = self._due, None
        if due is None:
            return
        loop = asyncio.get_running_loop()
        if due > loop.time():
            self._fires_at, self._timer = due, loop.call_at(due, self._fire)
        else:
            self._due = None
            self._call()
