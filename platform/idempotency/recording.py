"""Answers in the memory of a process: written by one execution, or read from the database, and sent to many clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence

Headers = Sequence[tuple[str, str]]


class Recording:
    """An answer that grows until it is complete. It is lost if its process stops before that."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Headers = ()
        self.chunks: list[bytes] = []
        self.is_complete = False
        self.is_lost = False
        self._changed = asyncio.Event()

    def begin(self, status: int, headers: Headers) -> None:
        """Set the first line of the answer."""
        self.status, self.headers = status, headers
        self._notify()

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        self.chunks.append(data)
        self._notify()

    def complete(self) -> None:
        """End the answer."""
        self.is_complete = True
        self._notify()

    def lose(self) -> None:
        """End the answer before it is complete."""
        self.is_lost = not self.is_complete
        self._notify()

    @property
    def has_ended(self) -> bool:
        """True if the answer does not change any more."""
        return self.is_complete or self.is_lost

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def has_begun(self) -> bool:
        """Wait for the first line. Return false if the answer is lost before that."""
        while self.status is None and not self.has_ended:
            await self._changed.wait()
        return self.status is not None

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive, to the end. If the answer is lost, the end is missing."""
        number = 0
        while True:
            while number < len(self.chunks):
                yield self.chunks[number]
                number += 1
            if self.has_ended:
                return
            await self._changed.wait()
