"""Bound on the memory of the WebSocket messages that a process receives at the same time, independent of the server.

A server keeps a message until it is complete, and the application until its response has started. So a message of more
than 1 MiB reserves its size before it is read. Until that is possible, nothing is read from its connection. After a
minute, or if a message in fragments turns out to be larger than the memory that is left, the connection is closed, and
its client may try again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from core.http.asgi import Scope

SENDER = "message_sender"
"""Key of the scope with the name of the caller, once it is known. Unknown callers send small messages only."""
RESERVATION = "reservation"
"""Key of a message with its `Reservation`, which lasts as long as something refers to it."""
TRY_AGAIN_LATER = 1013
BUSY = "Too many large messages are being received. Please try again later."
SLOW = "The message arrived too slowly."
_TOO_BIG = 1009
_POLICY = 1008
_LARGE_BYTES = 1024 * 1024
_WAIT_SECONDS = 60
# A message must arrive fast enough to be complete after this time.
_LONGEST_SECONDS = 600


class Reservation:
    """A part of the budget, released when the object is freed."""

    __slots__ = ("_budget", "sender", "size")

    def __init__(self, budget: "MessageBudget", sender: str, size: int) -> None:
        self._budget = budget
        self.sender = sender
        self.size = size

    def __del__(self) -> None:
        self._budget.add(self.sender, -self.size)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits for memory."""

    sender: str
    size: int
    place: asyncio.Future[Reservation]
    since: float = field(default_factory=time.monotonic)


class MessageBudget:
    """Bytes of messages in this process. One sender gets at most three quarters of them.

    During the first `patience` seconds that a message waits for memory, other messages may overtake it.
    """

    def __init__(self, *, patience: float = 10) -> None:
        self._patience = patience
        self._used: dict[str, int] = {}
        self._waiting: deque[_Waiting] = deque()

    def try_take(self, sender: str, size: int) -> Reservation | None:
        """Reserve some bytes, or return None if other messages use them."""
        if not self._has(sender, size):
            return None
        self.add(sender, size)
        return Reservation(self, sender, size)

    def try_extend(self, reservation: Reservation, size: int) -> bool:
        """Change the size of a reservation; return false if other messages use the rest of the budget."""
        if not self._has(reservation.sender, size - reservation.size):
            return False
        self.add(reservation.sender, size - reservation.size)
        reservation.size = size
        return True

    async def take(self, sender: str, size: int) -> Reservation:
        """Reserve some bytes as soon as they have been released, in the order of calls; raises `TimeoutError`."""
        place: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(sender, size, place))
        self._pass_on()
        async with asyncio.timeout(_WAIT_SECONDS):
            return await place

    def add(self, sender: str, size: int) -> None:
        """Count bytes of a sender; a negative size releases them."""
        used = self._used.pop(sender, 0) + size
        if used:
            self._used[sender] = used
        if size < 0:
            self._pass_on()

    def _has(self, sender: str, size: int) -> bool:
        used = sum(self._used.values())
        return size <= 0 or (used + size <= settings.SOCKET_MESSAGES_BYTES and self._has_share(sender, size))

    def _has_share(self, sender: str, size: int) -> bool:
        return self._used.get(sender, 0) + size <= settings.SOCKET_MESSAGES_BYTES * 3 // 4

    def _pass_on(self) -> None:
        waiting, self._waiting, blocked = self._waiting, deque(), set[str]()
        is_kept = False
        for message in waiting:
            if message.place.done():
                continue
            # Messages of one sender keep their order. Messages of other senders may overtake them.
            if not is_kept and message.sender not in blocked:
                reservation = self.try_take(message.sender, message.size)
                if reservation is not None:
                    message.place.set_result(reservation)
                    continue
                # Bytes that are released from now on are kept for a message that smaller ones would overtake again and
                # again, unless it waits for others of its sender.
                is_late = time.monotonic() - message.since >= self._patience
                is_kept = is_late and self._has_share(message.sender, message.size)
            self._waiting.append(message)
            blocked.add(message.sender)


budget = MessageBudget()


class IncomingMessage:
    """The message that a connection is receiving.

    `pause` and `resume` control the reading, and `fail` closes the connection with a code and a reason.
    """

    def __init__(
        self, *, pause: Callable[[], None], resume: Callable[[], None], fail: Callable[[int, str], None]
    ) -> None:
        self.scope: Scope = {}
        self._pause = pause
        self._resume = resume
        self._fail = fail
        self._reservation: Reservation | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._window: asyncio.TimerHandle | None = None
        self._window_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """True while the message waits for memory and must not be read."""
        return self._waiting is not None

    def received(self, size: int) -> None:
        """Count bytes that have arrived."""
        self._window_bytes += size

    def grows_to(self, size: int) -> bool:
        """Reserve the minimum size of the message; return false if the connection has been closed instead."""
        if size <= _LARGE_BYTES or self._waiting is not None:
            return True
        sender = self.scope.get(SENDER)
        if sender is None or size > settings.MAX_BODY_BYTES:
            self._fail(_TOO_BIG, "")
            return False
        if self._reservation is None:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(sender, size))
            self._pause()
        elif self._reservation.size < size and not budget.try_extend(self._reservation, size):
            self._fail(TRY_AGAIN_LATER, BUSY)
            return False
        return True

    def may_become(self, size: int) -> bool:
        """Reserve a size before the message reaches it; return false while the reservation has to wait."""
        sender = self.scope.get(SENDER)
        if self._waiting is not None:
            return False
        if size <= _LARGE_BYTES or sender is None or (self._reservation and self._reservation.size >= size):
            return True
        # Messages that wait for more release their memory: otherwise they could wait for each other.
        self._reservation = budget.try_take(sender, size)
        if self._reservation is None:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(sender, size))
            self._pause()
        else:
            self._start_window()
        return self._reservation is not None

    def ends_with(self, size: int) -> bool:
        """Reduce or extend the reservation to the final size; return false if the connection was closed instead."""
        if self._reservation is not None and self._reservation.size > size:
            budget.try_extend(self._reservation, size)
        if size <= _LARGE_BYTES:
            self._reservation = None
            self._stop_window()
        return self.grows_to(size)

    def hand_over(self, message: dict[str, Any]) -> None:
        """Give the reservation to the complete message, whose reader keeps it."""
        if message["type"] == "websocket.receive" and self._reservation is not None:
            message[RESERVATION], self._reservation = self._reservation, None
            self._stop_window()

    def close(self) -> None:
        """Release the reservation of a message that will not arrive completely."""
        self._stop_waiting()
        self._stop_window()
        self._reservation = None

    async def _wait(self, sender: str, size: int) -> None:
        try:
            self._reservation = await budget.take(sender, size)
        except TimeoutError:
            self._waiting = None
            self._fail(TRY_AGAIN_LATER, BUSY)
            return
        self._waiting = None
        self._start_window()
        self._resume()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._resume()

    # As for request bodies: a message that stops arriving must not keep its reservation.
    def _start_window(self) -> None:
        self._stop_window()
        self._window_bytes = 0
        self._window = asyncio.get_running_loop().call_later(settings.BODY_WINDOW_SECONDS, self._end_window)

    def _end_window(self) -> None:
        size = 0 if self._reservation is None else self._reservation.size
        rate = max(settings.BODY_MIN_BYTES_PER_SECOND, size // _LONGEST_SECONDS)
        if self._window_bytes < rate * settings.BODY_WINDOW_SECONDS:
            self._fail(_POLICY, SLOW)
        else:
            self._start_window()

    def _stop_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
