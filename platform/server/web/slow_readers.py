"""A time limit for clients that do not read the answers waiting on their connection.

Without it, an answer in memory, or the open file of a download, would stay as long as the client keeps the connection.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings

logger = logging.getLogger(__name__)
# The field `tcpi_bytes_acked` of Linux: the bytes that the client's system has confirmed. The bytes that left the
# process are no measure: megabytes may wait in the kernel, and leave the process in a few large steps.
_BYTES_ACKED = slice(120, 128)


class ReaderWatch:
    """Closes a connection if the client reads less than the minimum rate while an answer waits for it."""

    __slots__ = ("_abort", "_confirmed", "_socket", "_timer")

    def __init__(self, connection: Any, abort: Callable[[], None]) -> None:
        self._socket = connection
        self._abort = abort
        self._confirmed = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring. Called when the kernel takes no more data for the client; idempotent."""
        if self._timer is None and hasattr(socket, "TCP_INFO"):
            self._confirmed = self._bytes_confirmed()
            self._wait()

    def stop(self) -> None:
        """Stop measuring. Called when no data waits for the client any more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(settings.SLOW_READER_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        before, self._confirmed = self._confirmed, self._bytes_confirmed()
        if self._confirmed - before >= max(1, settings.BODY_MIN_BYTES_PER_SECOND * settings.SLOW_READER_SECONDS):
            self._wait()
            return
        logger.warning("disconnecting a client that reads too slowly")
        self._abort()

    def _bytes_confirmed(self) -> int:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)
