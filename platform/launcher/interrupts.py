"""Stop signals. They raise an exception only while the launcher waits, so that no step is interrupted halfway."""

import os
import select
import signal
from contextlib import suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Ctrl-C or a stop signal was received."""


class Interrupts:
    """Waiting that ends early at a stop signal or the end of a child process.

    There is one instance per process, created in the main thread.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Python writes a byte to this pipe for every signal, which wakes the select below without a race.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in STOP_SIGNALS:
            # `nohup` ignores SIGHUP, which must stay so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._request)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self._requests += 1

    @property
    def stop_requested_twice(self) -> bool:
        """True after a second stop signal."""
        return self._requests > 1

    def pause(self, seconds: float) -> None:
        """Wait for at most `seconds`. Raises Stopped if a stop signal has been received."""
        self.rest(seconds)
        if self._requests:
            raise Stopped

    def rest(self, seconds: float) -> None:
        """Wait for at most `seconds` without raising."""
        if select.select([self._reader], [], [], max(seconds, 0))[0]:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)
