"""Several web processes on one port: a parent that has loaded the application forks them and replaces those that die.

All of them accept connections from one inherited socket, so new connections go to the living processes when one dies.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from core.work import heartbeats

logger = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Quick deaths in a row: each doubles the pause before the next start. The parent never gives up, as the cause may be a
# request that kills each process that it reaches, or a temporary lack of memory.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_QUICK_SECONDS = 10.0
# Time in which a process must end its runs after its parent was killed.
_DRAIN_SECONDS = 15.0
_SIGNAL_SECONDS = 0.2


@dataclass(slots=True)
class _Child:
    """The process with a number, or the plan to start it at `start_at`. `deaths` counts its quick deaths in a row."""

    number: int
    pid: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    deaths: int = 0


def fork(count: int) -> int | None:
    """Fork `count` processes. Return its number in each of them, and None in the parent after all have ended.

    The caller must have neither threads nor an event loop.
    """
    return _Parent(count).run()


class _Parent:
    def __init__(self, count: int) -> None:
        self._children = [_Child(number) for number in range(count)]
        self._is_stopping = False
        # Never written to. The children read the end of the file, which they get however the parent ends.
        self._life, self._lifeline = os.pipe()
        # A signal makes it readable, so that the parent wakes from `select`.
        self._signaled, self._signals = socket.socketpair()
        for end in (self._signaled, self._signals):
            end.settimeout(0)

    def run(self) -> int | None:
        signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        while True:
            for child in self._children:
                is_due = not child.pid and time.monotonic() >= child.start_at
                if is_due and not self._is_stopping and self._is_child(child):
                    return child.number
            if self._is_stopping and not any(child.pid for child in self._children):
                return None
            pauses = [child.start_at - time.monotonic() for child in self._children if not child.pid]
            timeout = max(0.0, min(pauses)) if pauses and not self._is_stopping else None
            select.select([self._signaled], [], [], timeout)
            with suppress(BlockingIOError):
                self._signaled.recv(1024)
            self._reap()

    def _stop(self, *_: object) -> None:
        self._is_stopping = True
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)

    def _is_child(self, child: _Child) -> bool:
        """Fork, and return true in the new process."""
        # Blocked until the child has replaced the parent's handlers, which would treat its signal as the parent's.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        child.started_at = time.monotonic()
        try:
            child.pid = os.fork()
        except OSError as failed:
            # The system has neither memory nor process ids left. The existing processes go on meanwhile.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._plan_start(child, f"cannot be started ({failed.strerror})")
            return False
        if not child.pid:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *_SIGNALS):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._lifeline)
            self._signaled.close()
            self._signals.close()
            threading.Thread(target=self._end_with_parent, name="parent", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return not child.pid

    def _end_with_parent(self) -> None:
        os.read(self._life, 1)
        # The second signal ends the drain: the port must be free for the next parent.
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_SIGNAL_SECONDS)
        time.sleep(_DRAIN_SECONDS)
        os._exit(1)

    def _reap(self) -> None:
        for child in self._children:
            pid, status = os.waitpid(child.pid, os.WNOHANG) if child.pid else (0, 0)
            if not pid:
                continue
            child.pid = 0
            if self._is_stopping:
                continue
            heartbeats.forget("web", pid)
            self._plan_start(child, f"died (exit code {os.waitstatus_to_exitcode(status)})")

    def _plan_start(self, child: _Child, problem: str) -> None:
        at = time.monotonic()
        is_quick = at - child.started_at < _QUICK_SECONDS
        child.deaths = child.deaths + 1 if is_quick else 0
        # The exponent is limited too: after a night of failed starts, the power would be too large for a float.
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(child.deaths - 1, 10)) if is_quick else 0.0
        child.start_at = at + pause
        logger.error("web process %d %s; starting it again in %.1f s", child.number, problem, pause)
