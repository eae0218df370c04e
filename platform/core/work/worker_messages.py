"""Messages that wake workers: Celery tasks, sent by name, because the tasks import the code that sends them.

A lost message costs no more than a delay: workers also find their work by polling or by their schedule.
"""

import logging
import threading

from celery import current_app
from kombu.exceptions import KombuError

logger = logging.getLogger(__name__)


class WorkerMessage:
    """A task without arguments, which one worker receives. Messages older than `expires` seconds are dropped."""

    def __init__(self, task: str, *, expires: float) -> None:
        self._task = task
        self._expires = expires
        self._pending = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self) -> None:
        """Send one message. A broker that is down is only logged."""
        try:
            current_app.send_task(self._task, expires=self._expires, retry=False)
        except (KombuError, OSError):
            logger.warning("workers cannot be notified; they will find their work by polling", exc_info=True)

    def notify(self) -> None:
        """Send one message in the background; safe in any thread. All calls during a send share the next message."""
        self._pending.set()
        with self._lock:
            if self._thread is None:
                # Sending blocks, so it has a thread of its own.
                self._thread = threading.Thread(target=self._send_pending, name="notify-workers", daemon=True)
                self._thread.start()

    def _send_pending(self) -> None:
        while self._pending.wait():
            self._pending.clear()
            self.send()
