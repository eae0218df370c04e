"""Values that belong to an event loop, such as its connections."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class PerLoop(Generic[Value]):
    """Decorator of a function that makes a value: the function is called once for each event loop."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, Value] = {}

    def __call__(self) -> Value:
        """Return the value of the running event loop. The first call makes the value."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            # Tests and short-lived commands close their loops; production processes have one. Not a weak reference:
            # most values refer to their loop.
            for closed in [candidate for candidate in [*self._by_loop] if candidate.is_closed()]:
                self._by_loop.pop(closed, None)
            self._by_loop[loop] = self._make()
        return self._by_loop[loop]

    def pop(self) -> Value | None:
        """Remove the value of the running event loop and return it; None if it was never made."""
        return self._by_loop.pop(asyncio.get_running_loop(), None)

    def values(self) -> Sequence[Value]:
        """Return the values of all event loops."""
        return [*self._by_loop.values()]
