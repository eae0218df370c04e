"""The stream of bytes from a run to its client, independent of the format of the stream."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from django.conf import settings

from core.work.notifications import wait_within
from core.work.timed_event import TimedEvent

logger = logging.getLogger(__name__)
# A comment of server-sent events. It keeps proxies from closing the connection while a slow model sends nothing.
PING = b": ping\n\n"
PING_SECONDS = 10
# If a client has more unread bytes than this, the run waits for the client, so that slow readers use bounded memory. At
# 50 tokens per second, a model takes two minutes to generate as many bytes, so this rarely happens.
UNREAD_BYTES = 1024 * 1024
# Maximum number of bytes that are passed to the connection at once, unless a single piece is larger.
_PIECE_BYTES = 256 * 1024


class ClientStream:
    """The bytes that a client has not read yet. Without a reader, no bytes are kept."""

    def __init__(self, *, ping: bytes, has_reader: bool) -> None:
        self._ping = ping
        self._has_reader = has_reader
        # Not a `deque`, which takes 0.8 KB even when it is empty.
        self._ready: list[bytes] = []
        self._unread = 0
        self._wake = TimedEvent(PING_SECONDS)
        # Created only when the run waits for its client, which is rare, because an event takes 0.8 KB.
        self._has_room: asyncio.Event | None = None
        self._disconnect: Callable[[], None] | None = None
        self._is_closed = False
        self._error: Exception | None = None

    def put(self, data: bytes) -> None:
        """Add bytes."""
        if data and self._has_reader:
            self._ready.append(data)
            self._unread += len(data)
            self._wake.set()

    def close(self, error: Exception | None = None) -> None:
        """End the stream after the added bytes. Then `read` raises the `error`, if any. Only the first call counts."""
        if not self._is_closed:
            self._is_closed, self._error = True, error
            self._wake.set()

    def drop_reader(self) -> None:
        """Keep no more bytes, because the client has disconnected or does not read."""
        self._has_reader, self._unread = False, 0
        self._ready.clear()
        if self._has_room is not None:
            self._has_room.set()

    async def read(self, disconnect: Callable[[], None] | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes as they are added, and a ping whenever there are none for some time.

        Raises the error that was passed to `close`. `disconnect` is called if the run waits for the client and the
        client reads nothing for `SLOW_READER_SECONDS`.
        """
        self._disconnect = disconnect
        try:
            while True:
                self._wake.clear()
                if self._ready:
                    yield self._take()
                elif self._is_closed:
                    if self._error is not None:
                        raise self._error
                    return
                elif not await self._wake.wait():
                    yield self._ping
        finally:
            self._wake.close()

    def _take(self) -> bytes:
        if self._unread <= _PIECE_BYTES:
            data = b"".join(self._ready)
            self._ready.clear()
        else:
            data = self._ready.pop(0)
        self._unread -= len(data)
        if self._has_room is not None:
            self._has_room.set()
        return data

    @property
    def is_full(self) -> bool:
        """True if the client has so many unread bytes that the run should wait for the client."""
        return self._unread > UNREAD_BYTES

    async def wait_for_reader(self) -> None:
        """Wait until the client has read enough. A client that reads nothing is disconnected."""
        self._has_room = asyncio.Event()
        while self.is_full:
            self._has_room.clear()
            if not await wait_within(self._has_room, settings.SLOW_READER_SECONDS):
                logger.warning("disconnecting a client that reads too slowly")
                self.drop_reader()
                if self._disconnect is not None:
                    self._disconnect()
