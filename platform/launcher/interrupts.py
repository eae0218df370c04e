"""Stop signals, turned into an exception where we wait and nowhere else, so that no step is cut in its middle."""

import os
import select
import signal
from contextlib import suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Ctrl-C or a signal asked us to stop."""


class Interrupts:
    """Waits that a stop signal or the end of a child cut short. One per process, made in the main thread."""

    def __init__(self) -> None:
        self._requests = 0
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Python writes a byte there for every signal, which wakes the select below without a race.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._request)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self._requests += 1

    @property
    def impatient(self) -> bool:
        """Whether we were asked to stop a second time."""
        return self._requests > 1

    def pause(self, seconds: float) -> None:
        """Wait, at most so long. Raises Stopped when a stop was asked for, before or meanwhile."""
        self.rest(seconds)
        if self._requests:
            raise Stopped

    def rest(self, seconds: float) -> None:
        """Wait, at most so long, stopping or not."""
        if select.select([self._reader], [], [], max(seconds, 0))[0]:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)
