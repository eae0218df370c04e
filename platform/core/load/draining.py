"""State of a web process that shuts down, for the code that serves requests.

First the process only reports that it is not ready, until load balancers have noticed. Then it refuses new work, and
open requests may end by themselves within a time limit. Streams that clients can continue on other processes are cut
evenly over that time, and all other requests when it is over. `server.web.shutdown` decides when.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from typing import cast

BEAT_SECONDS = 0.25
"""Time between two checks of the open requests, each of which cuts a group of streams."""
# For answers whose run has just ended, and for the errors of requests that are cut.
_LAST_SECONDS = 1.0

Request = asyncio.Task[None]


class ConnectionCut(Exception):
    """The connection must be closed before the end of its answer; the client gets the rest from another process."""


class Draining:
    """The open requests of this process, and the progress of its shutdown."""

    def __init__(self) -> None:
        self.is_announced = False
        """The process reports that it is not ready."""
        self.refuses = False
        """The process refuses new work."""
        self._requests: set[Request] = set()
        self._readers: set[Request] = set()
        self._pages: set[Request] = set()
        self._cut: set[Request] = set()
        self._is_hurried = asyncio.Event()

    # -- for requests --------------------------------------------------------------------------------------------------

    def began(self) -> None:
        """Register the current task, which serves a request."""
        self._requests.add(_current())

    def ended(self) -> None:
        """Unregister the current task: its request has ended."""
        request = _current()
        for requests in (self._requests, self._readers, self._pages, self._cut):
            requests.discard(request)

    def note_reader(self) -> None:
        """Mark the current request as a reader of an event log, which its client can continue on any process."""
        self._readers.add(_current())

    def note_page(self) -> None:
        """Mark the current request as the connection of a page, which reconnects automatically."""
        self._pages.add(_current())

    def has_cut(self) -> bool:
        """Return whether the current request was cancelled because this process shuts down."""
        return _current() in self._cut

    # -- for the shutdown ----------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """End all waits now."""
        self._is_hurried.set()

    @property
    def is_hurried(self) -> bool:
        """True if the shutdown must not wait any longer."""
        return self._is_hurried.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the shutdown is hurried."""
        waiting = asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()

    async def end_requests(self, seconds_left: Callable[[], float]) -> None:
        """Wait for the end of all requests in the time that is left, and cut readers evenly over it."""
        self._end(self._pages)
        seconds, first = seconds_left(), len(self._readers)
        while self._requests and (left := seconds_left()) > 0:
            readers = [*(self._readers - self._cut)]
            self._end(readers[: surplus(len(readers), first=first, part_left=left / seconds)])
            await self.pause(BEAT_SECONDS)

    async def cut_requests(self) -> None:
        """End all requests that are still open."""
        self._end(self._readers)
        if self._requests:
            await asyncio.wait([*self._requests], timeout=_LAST_SECONDS)
        self._end(self._requests)
        if self._requests:
            await asyncio.wait([*self._requests], timeout=_LAST_SECONDS)

    def _end(self, requests: Collection[Request]) -> None:
        for request in [*requests]:
            if request not in self._cut:
                self._cut.add(request)
                request.cancel()


def _current() -> Request:
    return cast("Request", asyncio.current_task())


def surplus(number: int, *, first: int, part_left: float) -> int:
    """Return how many of `number` requests must end now so that `first` requests end evenly over the whole time."""
    return max(0, number - math.ceil(first * part_left))


draining = Draining()
