"""Notify workers that a response is queued. A lost message costs at most one poll interval of the workers."""

import logging
import threading

from celery import current_app
from kombu.exceptions import KombuError

logger = logging.getLogger(__name__)
# Sent by name: the task imports the worker, which must not be imported here.
_TASK = "responses.tasks.run_background"
# Older messages are useless: by then the workers have found the response by polling.
_EXPIRES_SECONDS = 10


def send_notification() -> None:
    """Send one message, which one worker receives. A broker that is down is logged: workers poll as well."""
    try:
        current_app.send_task(_TASK, expires=_EXPIRES_SECONDS, retry=False)
    except (KombuError, OSError):
        logger.warning("workers cannot be notified; they find queued responses by polling", exc_info=True)


class _Notifier:
    """Sends from its own thread, because sending blocks. Calls during a send share the next message."""

    def __init__(self) -> None:
        self._pending = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Ask for one notification and return at once; safe in any thread."""
        self._pending.set()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="notify-workers", daemon=True)
                self._thread.start()

    def _send(self) -> None:
        while self._pending.wait():
            self._pending.clear()
            send_notification()


notify_workers = _Notifier().notify
