"""Progress output on the terminal: finished steps with their time, and a status line during long steps."""

import shutil
import sys
from contextlib import suppress
from time import monotonic
from typing import TextIO

PLAIN_INTERVAL = 5.0  # seconds between status lines if a line cannot be overwritten
PLAIN_WIDTH = 100


class Report:
    """Progress on a stream. With ``plain``, or if the stream is not a terminal, it prints full lines without color."""

    def __init__(self, *, stream: TextIO = sys.stdout, plain: bool = False) -> None:
        self._stream = stream
        self._moving = stream.isatty() and not plain
        self._started = monotonic()
        self._last_sign = self._started
        self._has_status = False

    @property
    def elapsed(self) -> float:
        return monotonic() - self._started

    def step(self, text: str) -> None:
        """Print a finished step with the seconds since the start."""
        self._last_sign = monotonic()
        since = f"{self.elapsed:6.1f} s"
        self.line(f"\033[2m{since}\033[0m  {text}" if self._moving else f"{since}  {text}")

    def status(self, text: str) -> None:
        """Show the current activity on a line that is overwritten; in plain output, print a line every few seconds."""
        line = f"{self.elapsed:6.1f} s  {text}"
        if self._moving:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\033[K{line[:width]}")
            self._has_status = True
        elif monotonic() - self._last_sign > PLAIN_INTERVAL:
            self._last_sign = monotonic()
            self._write(f"{line[:PLAIN_WIDTH]}\n")

    def line(self, text: str = "") -> None:
        if self._has_status:
            self._write("\r\033[K")
            self._has_status = False
        self._write(f"{text}\n")

    def question(self, text: str) -> None:
        """Print a question whose answer is typed on the same line."""
        self.line()
        self._write(text)

    def strong(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._moving else text

    def _write(self, text: str) -> None:
        # A closed terminal or pipe must not end the platform or disturb its shutdown.
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
